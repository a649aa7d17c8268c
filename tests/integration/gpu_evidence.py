#!/usr/bin/env python3
"""gpu_evidence - the table of kernels/cuda/README.md says the same as the committed evidence, no
more.

Goal: the word "ran" is used only for operations in a file of kernels/cuda/evidence; each operation
is in a row; gpu_bench's arithmetic is right. Method: the table of the tree, and copies of it; no
program runs except the trainer's estimate. check_gpu_evidence.py runs the rest on simulated GPUs.
"""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile

import lib_evidence
from lib_tap import end, test

BUILD = os.path.abspath(os.environ.get("BUILD", "build"))
README, EVIDENCE = "kernels/cuda/README.md", "kernels/cuda/evidence"


def look_at_operations():
    with open("kernels/kernels.h", encoding="utf-8") as file:
        operations = re.findall(r"^    X\([A-Z0-9_]+, (\w+), ", file.read(), re.M)
    compared = {name.split(": ")[1] for row in lib_evidence.ROWS.values() for name in row}
    test("each operation of KERNEL_OPS is compared in a row", len(operations) > 20 and
         set(operations) <= compared, set(operations) - compared)


def look_at_table(folder):
    found = lib_evidence.unfounded(README, EVIDENCE)
    test("the table says \"ran\" for what the evidence says, and has every row (else run "
         "tests/integration/lib_evidence.py)", not found, found)
    names = [name for row in lib_evidence.ROWS.values() for name in row]
    evidence = {"gpu": "GPU", "driver": 1, "date": "2000-01-01",
                "compared": {name: 1 for name in names if name != "near: linear"},
                "sources": lib_evidence.sources_of(README)}
    copy = os.path.join(folder, "table")
    shutil.copyfile(README, copy)
    rows = lib_evidence.write_table(copy, [evidence])
    text = open(copy).read()
    test("a row is written when all its operations passed", rows == len(lib_evidence.ROWS) - 1 and
         text.count("| GPU, 2000-01-01, driver 1 |") == rows, text)
    found = lib_evidence.unfounded(copy, EVIDENCE)
    test("without the file each of them is named", len(found) >= rows, found)
    evidence["sources"]["RoPE"] = "others"
    ran = lib_evidence.write_table(copy, [evidence])
    text = open(copy).read()
    test("a row whose sources have changed since ran before", ran == rows - 1 and
         text.count("| before: GPU, 2000-01-01, driver 1 |") == 1, text)


def look_at_bounds():
    done = subprocess.run(["tests/cuda/gpu_bench", "--bound", "--rows", "8B/8192"],
                          capture_output=True, text=True,
                          env=dict(os.environ, GPU_START="false",
                                   GPU_TRAINER=os.path.join(BUILD, "trainer")))
    found = re.findall(r"(H100|H200|B200) +bound +([0-9,]+) tokens/s", done.stdout)
    rates = [int(rate.replace(",", "")) for _, rate in found]
    # A step of 8.03e9 parameters takes 6 operations each: 20,525 tokens/s at 989e12.
    test("gpu_bench --bound prints what data sheets allow, and that nothing was timed",
         done.returncode == 0 and [name for name, _ in found] == ["H100", "H200", "B200"] and
         1000 < rates[0] < rates[1] < 20525 and "no kernel was timed" in done.stdout, done)


def look_at_arithmetic():
    """Rates and times of a program in the place of rates.c, and the derived figures."""
    module = runpy.run_path("tests/cuda/gpu_bench", run_name="gpu_bench")
    timed = {"copy": (0.5, 1000), "host_to_device": (1, 100), "device_to_host": (2, 100)}
    goal = module["save_goal"]
    test("a save may cost a hundredth of a step that its copy fits, else what the copy takes more",
         goal(400, 8, timed) == 0.08 and goal(401, 8, timed) == 401 / 50 - 8,
         (goal(400, 8, timed), goal(401, 8, timed)))
    of = {"dim": 3, "heads": 2, "kv_heads": 1, "head_dim": 5, "hidden": 7, "rows": 11}
    # Weights, twice: 20 rows of 3 for q, k, v; 10 of w_o; 7 each of three. Rows: 3, 10, 3, 7 and
    # gradients of 20, 3, 7, 7, 3.
    weights, rows, gradients = 2 * 3 * (20 + 10 + 3 * 7), 22 * (3 + 10 + 3 + 7), 22 * (20 + 20)
    test("rows that several products read one after the other become codes once",
         module["pack_values"](of) == (weights + rows + gradients,
                                       weights + 22 * 10 + 22 * (20 + 6)),
         module["pack_values"](of))


def main():
    folder = tempfile.mkdtemp(prefix="ge-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    try:
        look_at_operations()
        look_at_table(folder)
        look_at_bounds()
        look_at_arithmetic()
    finally:
        shutil.rmtree(folder)
    end()


if __name__ == "__main__":
    sys.exit(main())
