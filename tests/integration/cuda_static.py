#!/usr/bin/env python3
"""cuda_static - what the compiler made of the .cu files stays within its budgets.

Goal: no kernel takes more registers or shared memory than kernels/cuda/budgets.toml says,
none spills or has a stack, and none that lacks `fuses` contains an instruction whose result is not
that of IEEE 754 or that fuses what the source does not: so the bits of a GPU are those of the
lanes of a CPU. Method: what ptxas said of each kernel (-Xptxas -v), for every architecture that was
compiled, and the PTX itself. Prints bytes, operations and the time that a GPU's data sheet would
bound each kernel to: a bound, not a speed; no kernel was timed. Skipped where there is no nvcc.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tomllib

from lib_tap import end, test

BUILD = os.environ.get("BUILD", "build")
FOLDER = os.path.join(BUILD, "obj/gpu/kernels/cuda")
ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
# Of PTX: approximate results, denormals as zeros, and a multiplication fused with an addition.
INEXACT = re.compile(r"\.(approx|ftz)\b")
FUSED = re.compile(r"\bfma\.\S+")
# Data sheets (dense, SXM): bytes/s of memory, bf16 operations/s of the tensor cores.
GPUS = {"H100": (3.35e12, 989e12), "H200": (4.8e12, 989e12), "B200": (8.0e12, 2250e12)}


def names_of(mangled):
    """Without template arguments and types: the name in the source."""
    text = subprocess.run(["c++filt", *mangled], capture_output=True, text=True, check=True).stdout
    names = [re.sub(r"<.*", "", line.split("(")[0]).split()[-1] for line in text.splitlines()]
    return dict(zip(mangled, names))


def read_logs():
    """[(kernel, architecture, registers, spilled bytes, stack bytes, shared bytes)]"""
    found, entry = [], None
    for path in sorted(glob.glob(FOLDER + "/*.log")):
        for line in open(path, encoding="utf-8"):
            entry = ENTRY.search(line) or entry
            stack = STACK.search(line)
            if stack:
                frame, *spills = map(int, stack.groups())
            used, shared = USED.search(line), SHARED.search(line)
            if used:
                found.append((*entry.groups(), int(used.group(1)), sum(spills), frame,
                              int(shared.group(1)) if shared else 0))
    names = names_of(sorted({row[0] for row in found}))
    return [(names[row[0]], *row[1:]) for row in found]


def read_ptx():
    """{kernel: its PTX}, the instances of a template together."""
    bodies = {}
    for path in sorted(glob.glob(FOLDER + "/*.ptx")):
        parts = re.split(r"^\s*(?:\.visible )?\.entry (\w+)", open(path).read(), flags=re.M)
        bodies.update(zip(parts[1::2], parts[2::2]))
    names, joined = names_of(sorted(bodies)), {}
    for mangled, body in bodies.items():
        joined[names[mangled]] = joined.get(names[mangled], "") + body
    return joined


def over_budget(rows, budgets):
    for kernel, arch, registers, _, _, shared in rows:
        budget = budgets.get(kernel, {"registers": 0, "shared": 0})
        if registers > budget["registers"] or shared > budget["shared"]:
            yield (f"{kernel} for {arch}: {registers} registers, {shared} bytes of shared memory; "
                   f"budget {budget['registers']}, {budget['shared']}")


def not_as_written(ptx, budgets):
    for kernel, body in ptx.items():
        inexact = INEXACT.search(body)
        if inexact:
            yield f"{kernel}: {inexact.group(0)}"
        fused = FUSED.search(body)
        if fused and not budgets.get(kernel, {}).get("fuses"):
            yield f"{kernel}: {fused.group(0)} that budgets.toml does not allow"


def print_bounds():
    """8,192 rows of a model 4,096 wide, bf16: bytes that must move, operations to be done."""
    rows, dim, hidden, vocab = 8192, 4096, 14336, 128256
    kernels = {
        "rmsnorm": (4 * rows * dim * 2, 0),
        "rmsnorm_backward": (4 * rows * dim * 2, 0),
        "swiglu": (3 * rows * hidden * 2, 0),
        "swiglu_backward": (5 * rows * hidden * 2, 0),
        "cross_entropy": (2 * rows * vocab * 2, 0),
        "adamw (8e9 float)": (7 * 8e9 * 4, 0),
        "linear (hidden)": (2 * (rows * dim + dim * hidden + rows * hidden),
                            2 * rows * dim * hidden),
    }
    for name, (moved, operations) in kernels.items():
        bounds = ", ".join(f"{gpu} {max(moved / rate, operations / flops) * 1e6:.0f} us"
                           for gpu, (rate, flops) in GPUS.items())
        print(f"# bound: {name}: {moved / 1e6:.0f} MB, {operations / 1e9:.0f} GFLOP: {bounds}")


def main():
    if not glob.glob(FOLDER + "/*.log") or not shutil.which("nvcc"):
        print("no nvcc: the .cu files were not compiled for GPUs")
        sys.exit(77)
    budgets = tomllib.load(open("kernels/cuda/budgets.toml", "rb"))
    rows, ptx = read_logs(), read_ptx()
    for row in rows:
        print("# %s for %s: %d registers, %d bytes spilled, %d of stack, %d of shared memory" % row)
    print_bounds()
    kernels = {row[0] for row in rows}
    test("every kernel has a budget, every budget a kernel, each kernel PTX",
         kernels == set(budgets) == set(ptx), sorted((kernels | set(ptx)) ^ set(budgets)))
    found = list(over_budget(rows, budgets))
    test("no kernel takes more registers or shared memory than its budget", not found,
         "\n".join(found))
    found = [row for row in rows if row[3] or row[4]]
    test("no kernel spills registers or has a stack", not found, found)
    found = list(not_as_written(ptx, budgets))
    test("the PTX rounds as IEEE 754 does, and fuses only what is written so", not found,
         "\n".join(found))
    start = subprocess.run([os.path.join(BUILD, "cuda/start")], capture_output=True, text=True)
    said = (start.stdout + start.stderr).splitlines()
    print("\n".join("# " + line for line in said))
    test("linked with NVIDIA's runtime and started: sums of a GPU, or one line and status 78",
         len(said) == 1 and (start.returncode == 0 and "sums are right" in said[0] or
                             start.returncode == 78 and said[0].startswith("start: CUDA: ")),
         (start.returncode, said))
    end()


if __name__ == "__main__":
    main()
