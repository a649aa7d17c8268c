#!/usr/bin/env python3
"""memory - what ckpt-cli takes of memory does not grow with the checkpoint.

Goal: every command that reads or writes tensors stays within the buffers that clients/cli/README.md
names, on a checkpoint that is several times as large. Method: a Llama of half a GB, whose file is
mostly a hole, is imported; each command runs on it, and the system tells its peak of resident
memory (never less than this script takes, which starts it).
time limit: 120 s
"""

import itertools
import os
import shutil
import struct
import subprocess
import sys
import tempfile

from lib_store import CLI, write_llama
from lib_tap import end, test

MIB = 1 << 20
PROGRAM = 24  # MiB of the program itself, its libraries and stacks
READS, WRITES = 40 + PROGRAM, 168 + PROGRAM
LLAMA = 2048, 8192, 16000  # dim, hidden, vocab


def peak_of(*arguments):
    """(exit code, what it said, MiB)"""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([CLI, *arguments], stdout=subprocess.DEVNULL, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        return process.returncode, said.read(), usage.ru_maxrss / 1024


def main():
    with open(CLI, "rb") as file:
        if b"san_init" in file.read():
            print("sanitizers take memory of their own")
            sys.exit(77)
    folder = tempfile.mkdtemp(prefix="me-")
    store, output = (os.path.join(folder, name) for name in ("store", "output"))
    where = ("--store", store)
    try:
        numbers = itertools.count(1)  # no two tensors are equal
        size = write_llama(folder, *LLAMA, lambda size: struct.pack("<f", next(numbers)))
        test("the checkpoint is larger than any limit", size > 2 * WRITES * MIB, size)
        for command, most in (
                (("import", folder, "--run", "big", "--shards", "3", *where), WRITES),
                (("list", *where), PROGRAM),
                (("show", "big", *where), PROGRAM),
                (("du", *where), PROGRAM),
                (("gc", "--dry-run", *where), PROGRAM),
                (("verify", "big", *where), READS),
                (("verify", "big", "--quick", *where), PROGRAM),
                (("convert", "big", "--output", output, "--dtype", "bf16", *where), WRITES),
                (("reshard", "big", "--output", output, "--shards", "5", *where), WRITES),
                (("export", "big", "--output", output, *where), WRITES),
                (("export", "big", "--output", output, "--format", "hf", *where), WRITES)):
            code, said, peak = peak_of(*command)
            name = " ".join(word for word in command[:1] + command[2:] if "/" not in word)
            print(f"# {name}: {peak:.0f} MiB")
            test(f"{name} takes at most {most} MiB", code == 0 and peak <= most, (code, said, peak))
            if os.path.isdir(output):
                shutil.rmtree(output)
            elif os.path.exists(output):
                os.remove(output)
    finally:
        shutil.rmtree(folder)
    end()


if __name__ == "__main__":
    main()
