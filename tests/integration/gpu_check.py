#!/usr/bin/env python3
"""gpu_check - `make gpu-check` says what a GPU showed, and nothing else.

Goal: without a GPU it is one line and status 78; with one, a difference is status 1; the word "ran"
in kernels/cuda/README.md is there for what a committed file of evidence says, only. Method: the
script with the programs that are linked with NVIDIA's runtime, and with those on a simulated GPU
(tests/simgpu), whose results it does not write; the table, on copies.
"""

import os
import shutil
import subprocess
import sys
import tempfile

import lib_evidence
from lib_tap import end, skip, test

BUILD = os.path.abspath(os.environ.get("BUILD", "build"))
REAL = os.path.join(BUILD, "cuda/kernels"), os.path.join(BUILD, "trainer")
SIMULATED = os.path.join(BUILD, "cuda/on_simgpu"), os.path.join(BUILD, "tests/trainer_on_simgpu")
README, EVIDENCE = "kernels/cuda/README.md", "kernels/cuda/evidence"
OPTIONS = "--flavor", "tiny", "--steps", "4", "--pool", "256MiB"


def check(folder, programs, simgpu="seed=1"):
    return subprocess.run(["tests/cuda/gpu_check", "--evidence", os.path.join(folder, "evidence"),
                           "--readme", os.path.join(folder, "readme"), *OPTIONS],
                          env=dict(os.environ, GPU_KERNELS=programs[0], GPU_TRAINER=programs[1],
                                   SIMGPU=simgpu),
                          capture_output=True, text=True, timeout=240)


def look_at_table(folder):
    found = lib_evidence.unfounded(README, EVIDENCE)
    test("the table says \"ran\" for what the evidence says, and has every row", not found, found)
    names = [name for row in lib_evidence.ROWS.values() for name in row]
    evidence = {"gpu": "GPU", "driver": 1, "date": "2000-01-01",
                "compared": {name: 1 for name in names if name != "near: linear"}}
    copy = os.path.join(folder, "table")
    shutil.copyfile(README, copy)
    rows = lib_evidence.write_table(copy, evidence)
    text = open(copy).read()
    test("a row is written when all its operations passed", rows == len(lib_evidence.ROWS) - 1 and
         text.count("| GPU, 2000-01-01, driver 1 |") == rows, text)
    found = lib_evidence.unfounded(copy, EVIDENCE)
    test("without the file each of them is named", len(found) == rows, found)


def look_at_simulated(folder):
    shutil.copyfile(README, os.path.join(folder, "readme"))
    done = check(folder, SIMULATED)
    said = done.stdout + done.stderr
    test("on a simulated GPU kernels, steps, kill and resume have the bits of the CPU",
         done.returncode == 0 and said.count("ok    ") == 4, said)
    test("and nothing is written", "nothing is written" in said and
         not os.path.exists(os.path.join(folder, "evidence")), said)
    done = check(folder, SIMULATED, "seed=0,fail=kernel:900")
    said = done.stdout + done.stderr
    test("a GPU that is lost on the way is status 1", done.returncode == 1 and "FAILED" in said,
         said)


def main():
    folder = tempfile.mkdtemp(prefix="gc-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    try:
        look_at_table(folder)
        if all(map(os.path.exists, SIMULATED)):
            look_at_simulated(folder)
        else:
            skip(["on a simulated GPU kernels, steps, kill and resume have the bits of the CPU",
                  "and nothing is written", "a GPU that is lost on the way is status 1"],
                 "no nvcc: its programs were not built")
        if os.path.exists(REAL[0]) and not shutil.which("nvidia-smi"):
            done = check(folder, REAL)
            test("without a driver one line and status 78", done.returncode == 78 and
                 done.stdout == "" and len(done.stderr.splitlines()) == 1, done)
        else:
            skip(["without a driver one line and status 78"], "no nvcc, or there is a driver")
    finally:
        shutil.rmtree(folder)
    end()


if __name__ == "__main__":
    sys.exit(main())
