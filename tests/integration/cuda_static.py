#!/usr/bin/env python3
"""cuda_static - the compiler's output for the .cu files stays within its budgets.

Goal: no kernel takes more registers or shared memory than kernels/cuda/budgets.toml allows, none
spills or has a stack. As many blocks fit a multiprocessor as its source, or `blocks`, requires. A
kernel without `fuses` contains no instruction that deviates from IEEE 754 or fuses operations which
the source does not. So the bits of a GPU are those of the lanes of a CPU. Reads of 16 bytes in the
source are one load. Method: the report of ptxas for each kernel (-Xptxas -v), for every compiled
architecture, and the PTX itself. Prints occupancy, bytes, operations and each kernel's lower bound
of time by a GPU's data sheet (lib_cuda.py has the formulas): no kernel was timed. Skipped without
nvcc.
"""

import os
import re
import subprocess
import sys

import lib_cuda
from lib_tap import end, test

BUILD = os.environ.get("BUILD", "build")
FOLDER = os.path.join(BUILD, "obj/gpu/kernels/cuda")
# Of PTX: approximate results, denormals as zeros, and a multiplication fused with an addition.
INEXACT = re.compile(r"\.(approx|ftz)\b")
FUSED = re.compile(r"\bfma\.\S+")
WIDE_LOAD = re.compile(r"\bld\.global(?:\.nc)?\.v4\.")


def over_budget(rows, budgets):
    for row in rows:
        budget = budgets.get(row["kernel"], {"registers": {}, "shared": 0})
        registers = budget["registers"].get(row["architecture"], 0)
        if row["registers"] > registers or row["shared"] > budget["shared"]:
            yield (f"{row['kernel']} for {row['architecture']}: {row['registers']} registers, "
                   f"{row['shared']} bytes of shared memory; budget {registers}, "
                   f"{budget['shared']}")


def not_as_written(ptx, names, budgets):
    for mangled, body in ptx.items():
        kernel = names[mangled]
        inexact = INEXACT.search(body)
        if inexact:
            yield f"{kernel}: {inexact.group(0)}"
        fused = FUSED.search(body)
        if fused and not budgets.get(kernel, {}).get("fuses"):
            yield f"{kernel}: {fused.group(0)} that budgets.toml does not allow"


def narrow(ptx, names, budgets):
    """Kernels whose widest instance has fewer loads of 16 bytes than their source means."""
    most = {}
    for mangled, body in ptx.items():
        kernel = names[mangled]
        most[kernel] = max(most.get(kernel, 0), len(WIDE_LOAD.findall(body)))
    for kernel, loads in most.items():
        wanted = budgets.get(kernel, {}).get("loads", 0)
        if loads < wanted:
            yield f"{kernel}: {loads} loads of 16 bytes, not {wanted}"


def too_few_blocks(rows, ptx, budgets, limits):
    """Prints the occupancy of each instance; yields those with fewer blocks than required."""
    for row in rows:
        threads = int(lib_cuda.THREADS.search(ptx[row["mangled"]]).group(1))
        wanted = int(lib_cuda.BLOCKS.search(ptx[row["mangled"]]).group(1))
        budget = budgets.get(row["kernel"], {})
        wanted = budget.get("blocks", {}).get(row["architecture"], wanted)
        dynamic = lib_cuda.number(budget.get("dynamic", "0"))
        on = limits[row["architecture"]]
        blocks, least = lib_cuda.fitting_blocks(row, threads, dynamic, on)
        text = (f"{row['kernel']} for {row['architecture']}: {row['registers']} registers, "
                f"{row['shared']} + {dynamic} bytes of shared memory: {blocks} blocks, "
                f"{blocks * threads // 32} of {on['warps']} warps, limited by {least}")
        print("# " + text)
        if blocks < wanted:
            yield f"{text}; its source asks for {wanted} blocks"


def print_bounds(budgets, gpus):
    print("# bounds, not speeds: 8,192 tokens of a sequence, 4,096 wide, 8e9 parameters")
    for kernel, budget in budgets.items():
        moved, done, times = lib_cuda.bounds(budget, gpus)
        print(f"# bound: {kernel}: {moved / 1e6:.1f} MB, {done / 1e9:.2f} GFLOP: " +
              ", ".join(f"{gpu} {seconds * 1e6:.1f} us ({by})"
                        for gpu, (seconds, by) in times.items()))


def started():
    start = subprocess.run([os.path.join(BUILD, "cuda/start")], capture_output=True, text=True)
    said = (start.stdout + start.stderr).splitlines()
    print("\n".join("# " + line for line in said))
    test("linked with NVIDIA's runtime and started: sums of a GPU, or one line and status 78",
         len(said) == 1 and (start.returncode == 0 and "sums are right" in said[0] or
                             start.returncode == 78 and said[0].startswith("start: CUDA: ")),
         (start.returncode, said))


def main():
    if not os.path.exists(os.path.join(BUILD, "cuda/start")):
        print("no nvcc: the .cu files were not compiled for GPUs")
        sys.exit(77)
    budgets, hardware = map(lib_cuda.load, ("kernels/cuda/budgets.toml", "kernels/cuda/gpus.toml"))
    rows, ptx = lib_cuda.read_logs(FOLDER), lib_cuda.read_ptx(FOLDER)
    names = lib_cuda.names_of(sorted(ptx))
    print_bounds(budgets, hardware["gpu"])
    kernels, of_ptx = {row["kernel"] for row in rows}, set(names.values())
    test("every kernel has a budget, every budget a kernel, each kernel PTX",
         kernels == set(budgets) == of_ptx, sorted((kernels | of_ptx) ^ set(budgets)))
    found = list(over_budget(rows, budgets))
    test("no kernel takes more registers or shared memory than its budget", not found,
         "\n".join(found))
    found = [row for row in rows if row["spilled"] or row["stack"]]
    test("no kernel spills registers or has a stack", not found, found)
    found = list(too_few_blocks(rows, ptx, budgets, hardware["multiprocessor"]))
    test("as many blocks fit a multiprocessor as a kernel's source asks for", not found,
         "\n".join(found))
    found = list(not_as_written(ptx, names, budgets))
    test("the PTX rounds as IEEE 754 does, and fuses only what is written so", not found,
         "\n".join(found))
    found = list(narrow(ptx, names, budgets))
    test("what is read 16 bytes at a time is loaded so", not found, "\n".join(found))
    started()
    end()


if __name__ == "__main__":
    main()
