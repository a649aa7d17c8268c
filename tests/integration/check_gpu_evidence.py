#!/usr/bin/env python3
"""check_gpu_evidence - `make gpu-check`, `gpu-bench`, `gpu-bundle` report the results of a GPU, no
more.

Goal: without a GPU it is one line and status 78; with one, a difference is status 1. Method: the
scripts with the programs that are linked with NVIDIA's runtime, and with those on a simulated GPU
(tests/simgpu), whose results they do not write; the bundle, unpacked. The steps are two, and
kernels run in one order: kernels_cuda and gpus.sh have more. gpu_evidence.py tests the parts
without these programs.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

from lib_tap import end, skip, test

BUILD = os.path.abspath(os.environ.get("BUILD", "build"))
REAL = os.path.join(BUILD, "cuda/kernels"), os.path.join(BUILD, "trainer")
SIMULATED = os.path.join(BUILD, "cuda/on_simgpu"), os.path.join(BUILD, "tests/trainer_on_simgpu")
README = "kernels/cuda/README.md"
OPTIONS = "--flavor", "tiny", "--steps", "2", "--pool", "512MiB"
SIMULATED_RATES = os.path.join(BUILD, "cuda/rates_on_simgpu")
SHORT = {"LANES_SEEDS": "1"}
# Of one operation, and of a rate beside its goal.
MICROSECONDS, SHARE = r" +[0-9.]+ us +[0-9.,]+ ", r"[0-9.]+ %, goal [0-9]+"


def check(folder, programs, simgpu="seed=1"):
    return subprocess.run(["tests/cuda/gpu_check", "--evidence", os.path.join(folder, "evidence"),
                           "--readme", os.path.join(folder, "readme"), *OPTIONS],
                          env=dict(os.environ, GPU_KERNELS=programs[0], GPU_TRAINER=programs[1],
                                   SIMGPU=simgpu, **SHORT),
                          capture_output=True, text=True, timeout=240)


def look_at_simulated(folder):
    shutil.copyfile(README, os.path.join(folder, "readme"))
    done = check(folder, SIMULATED)
    said = done.stdout + done.stderr
    test("on a simulated GPU kernels, steps, kill and resume have the bits of the CPU",
         done.returncode == 0 and said.count("ok    ") == 8, said)
    test("and nothing is written", "nothing is written" in said and
         not os.path.exists(os.path.join(folder, "evidence")), said)
    done = check(folder, SIMULATED, "seed=0,fail=kernel:30")
    said = done.stdout + done.stderr
    test("a GPU that is lost on the way is status 1", done.returncode == 1 and "FAILED" in said,
         said)


def bench(programs, *options, **variables):
    return subprocess.run(["tests/cuda/gpu_bench", *options], capture_output=True, text=True,
                          env=dict(os.environ, GPU_START=programs[0], GPU_TRAINER=programs[1],
                                   **variables))


def look_at_simulated_bench():
    done = bench(("true", SIMULATED[1]), "--rows", "tiny", "--steps", "4", "--saves", "--fast",
                 "--kernels", GPU_RATES=SIMULATED_RATES)
    test("gpu_bench measures a row of steps, a save and a resume, and says what is not beside it",
         done.returncode == 0 and re.search(r" ms of steps of [0-9.]+ ms, goal [0-9.]+ ms",
                                            done.stdout) and
         re.search("from page-locked memory " + SHARE + ".* after its start", done.stdout) and
         re.search(r"tiny/64 +bf16 +[1-9][0-9,]* tokens/s, MFU", done.stdout) and
         "torch.compile is not measured" in done.stdout, done)
    test("and the fast reduction beside the canonical one",
         re.search(r"gradients of float: [1-9][0-9,]* tokens/s; of it canonical has " + SHARE,
                   done.stdout), done)
    rates = re.findall(r"^(\w+)" + MICROSECONDS + "GB/s, of the copy's rate " + SHARE, done.stdout,
                       re.M)
    test("and operations beside a copy, and our attention beside the library's",
         len(rates) == 14 and {"cross_entropy", "adamw", "digest"} <= set(rates) and
         len(re.findall("us ours, [0-9.]+ us the library's, of its rate " + SHARE,
                        done.stdout)) == 2, done)
    done = bench(("true", SIMULATED[1]), "--rows", "tiny", "--steps", "4",
                 SIMGPU="fail=cudaStreamBeginCapture:1+")
    test("a row whose kernels were queued one by one has failed",
         done.returncode == 1 and "FAILED" in done.stdout and
         "no CUDA graph was launched" in done.stdout, done)


def look_at_torch_beside(folder):
    """By programs in the place of torch_steps.py, which needs torch and a GPU."""
    said, script = [], os.path.join(folder, "steps.py")
    for program in ("import json; print('compiled'); print(json.dumps({'tokens_per_s': 0.5}))",
                    "import sys; print('torch_steps: torch is not here', file=sys.stderr); "
                    "sys.exit(78)", "import sys; sys.exit('out of memory')"):
        with open(script, "w") as file:
            file.write(program)
        done = bench(("true", SIMULATED[1]), "--rows", "tiny", "--steps", "4", "--torch",
                     GPU_TORCH_STEPS=script)
        said.append(done.stdout if done.returncode == 0 else done.stderr)
    ends = (r"torch.compile 0 tokens/s, ours/torch [1-9][0-9]*\.[0-9]{2}\n$",
            r"; torch is not here\n$", r"; torch.compile FAILED: out of memory\n$")
    test("gpu_bench --torch ends a row with torch.compile's rate and ours over it, or says why not",
         all(re.search(end_of_row, text) and "not measured" not in text
             for end_of_row, text in zip(ends, said)), said)


def look_at_bundle(folder):
    archive = os.path.join(folder, "bundle.tar.gz")
    made = subprocess.run(["tests/cuda/gpu_bundle", archive], capture_output=True, text=True)
    test("the bundle is one archive under 60 MB", made.returncode == 0 and
         os.path.getsize(archive) < 60e6, made.stdout + made.stderr)
    subprocess.run(["tar", "-xzf", archive, "-C", folder], check=True)
    root = os.path.join(folder, "holdfast-gpu")
    loaded = subprocess.run(["ldd", os.path.join(root, "build/trainer")], capture_output=True,
                            env=dict(os.environ, LD_LIBRARY_PATH=root + "/lib"), text=True).stdout
    foreign = [line for line in loaded.splitlines() if "=> /" in line and root not in line and
               not any(f"/lib{name}.so" in line for name in ("c", "m", "dl", "rt", "pthread",
                                                             "resolv"))]
    test("and brings every library that is not glibc's", not foreign, foreign)
    done = subprocess.run([os.path.join(root, "check"), *OPTIONS], capture_output=True, text=True,
                          cwd=folder)
    test("its check starts, says whose products it runs, and that no driver is here",
         done.returncode == 78 and "else by our own kernels" in done.stdout and
         len(done.stderr.splitlines()) == 1, done)


def main():
    folder = tempfile.mkdtemp(prefix="gc-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    try:
        if all(map(os.path.exists, SIMULATED)):
            look_at_simulated(folder)
            look_at_simulated_bench()
            look_at_torch_beside(folder)
        else:
            skip(["gpu_bench measures a row of steps, and says what it is not measured beside",
                  "and the fast reduction beside the canonical one",
                  "and operations beside a copy, and our attention beside the library's",
                  "gpu_bench --torch ends a row with torch.compile's rate and ours over it, "
                  "or says why not",
                  "on a simulated GPU kernels, steps, kill and resume have the bits of the CPU",
                  "and nothing is written", "a GPU that is lost on the way is status 1"],
                 "no nvcc: its programs were not built")
        if os.path.exists(REAL[0]) and not shutil.which("nvidia-smi"):
            done = check(folder, REAL)
            test("without a driver one line and status 78", done.returncode == 78 and
                 done.stdout == "" and len(done.stderr.splitlines()) == 1, done)
            done = bench((os.path.join(BUILD, "cuda/start"), REAL[1]))
            test("so has gpu_bench", done.returncode == 78 and done.stdout == "" and
                 len(done.stderr.splitlines()) == 1 and "no GPU" in done.stderr, done)
            look_at_bundle(folder)
        else:
            skip(["without a driver one line and status 78", "so has gpu_bench", "the bundle"],
                 "no nvcc, or there is a driver")
    finally:
        shutil.rmtree(folder)
    end()


if __name__ == "__main__":
    sys.exit(main())
