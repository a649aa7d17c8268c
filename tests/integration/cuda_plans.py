#!/usr/bin/env python3
"""cuda_plans - cuDNN takes the graphs of attention for absent GPUs.

Goal: the graphs of library/dnn_graph.c, forward and backward, are ones for which NVIDIA's library
has a flash kernel that repeats its bits: the word "accepted" of kernels/cuda/README.md; and their
workspace is the one in the memory plan, and in --estimate without a GPU. Method: build/cuda/plans
asks the real library, with properties of the GPU written from its data sheet (tests/cuda/h200.json,
b200.json) and a stand-in for the driver (tests/cuda/driver.c). A shape that no engine takes shows
that refusals are detected. Skipped without cuDNN.
"""

import os
import subprocess
import sys

from lib_tap import end, test

BUILD = os.environ.get("BUILD", "build")
PLANS = os.path.join(BUILD, "cuda/plans")
# batch, sequence, heads, heads of keys, values of a head: 8B, its half, 3B, 125M; a shape between.
SHAPES = ("1,4096,32,8,128", "1,2048,32,8,128", "1,4096,24,8,128", "8,1024,12,12,64",
          "2,333,4,2,64")
REFUSED = "1,1024,8,8,1024"
# And its kernels. Of a B200 the only backward that repeats its bits is one for older GPUs.
GPUS = (("H200", "sm90_flash_fprop", "sm90_flash_bprop"),
        ("B200", "sm100_flash_fprop", "sm80_flash_bprop"))


def skip_all(reason):
    print(reason)
    sys.exit(77)


def asked(gpu, *shapes):
    environment = dict(os.environ, LD_LIBRARY_PATH=os.path.join(BUILD, "cuda/driver"))
    said = subprocess.run([PLANS, f"tests/cuda/{gpu.lower()}.json", *shapes], capture_output=True,
                          text=True, env=environment)
    print("\n".join("# " + line for line in (said.stdout + said.stderr).splitlines()))
    return said


def estimated(shape):
    """Bytes of the backward's workspace, as trainer/plan/gpu_memory.c has it."""
    batch, seq, heads, kv_heads, width = map(int, shape.split(","))
    return batch * heads * seq * (2 * seq + (4 * width if heads > kv_heads else 0))


def ask(gpu, *kernels):
    said = asked(gpu, *SHAPES)
    if said.returncode == 78:
        skip_all("cuDNN is not here: make deps-cuda gets it")
    accepted = dict(line.split(": accepted, ") for line in said.stdout.splitlines()
                    if ": accepted, " in line)
    for direction, kernel in zip(("forward", "backward"), kernels):
        test(f"attention's {direction} is accepted at every shape for a {gpu}, by a flash kernel",
             all(f"{shape} {direction}" in accepted for shape in SHAPES) and
             said.returncode == 0 and said.stdout.count(kernel) == len(SHAPES))
    of = {key: int(text.split()[0]) for key, text in accepted.items()}
    far = [shape for shape in SHAPES[:4]
           if not 0.95 < of.get(f"{shape} backward", 0) / estimated(shape) < 1.05]
    test(f"the backward's workspace on a {gpu} is what --estimate says, the forward's is small",
         not far and of.get(f"{SHAPES[0]} forward", 1 << 30) < 1 << 20, far)


def main():
    if not os.path.exists(PLANS):
        skip_all("cuDNN's headers or nvcc are not here: make deps-cuda gets them")
    for gpu in GPUS:
        ask(*gpu)
    refused = asked("H200", REFUSED)
    test("what no engine takes is refused, with the library's reason",
         refused.returncode == 1 and "cuDNN refuses attention (status 3" in refused.stdout)


main()
end()
