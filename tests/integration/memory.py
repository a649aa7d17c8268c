#!/usr/bin/env python3
"""memory - the memory of ckpt-cli does not grow with the checkpoint.

Goal: every command that reads or writes tensors stays within the buffers that clients/cli/README.md
names, on a checkpoint that is several times as large; and on a store, or a ckptd, with MANY
checkpoints a command takes at most EACH more bytes for each than with two, and a prune PLANNED.
Method: a Llama of half a GB, whose file is mostly a hole, is imported. Another of the same shapes,
so that each tensor is read to be compared. The first gets later steps, without data, for a prune. A
small one is multiplied to MANY in the same way (SAMPLE=1: 10,000). Each command runs on them, and
the system reports its peak of resident memory.
"""

import ctypes
import itertools
import os
import shutil
import struct
import subprocess
import sys
import tempfile

from lib_store import CLI, World, at_step, copy_without_data, is_sanitized, sealed, write_llama
from lib_tap import end, test

MIB = 1 << 20
PROGRAM = 24  # MiB of the program itself, its libraries and stacks
READS, ASSEMBLES = 40 + PROGRAM, 168 + PROGRAM
LLAMA = 2048, 8192, 16000  # dim, hidden, vocab
STEPS = 6
MANY = 10000 if os.environ.get("SAMPLE") == "1" else 4000
SMALL = 256, 64, 64
EACH, PLANNED = 512, 1024  # bytes of a checkpoint in a catalog, and in the plan of a prune with it
NOISE = 1  # MiB, from run to run
PR_SET_CHILD_SUBREAPER = 36


def peak_of(*arguments):
    """(exit code, output, MiB). A program's peak begins with that of its parent: here a shell,
    which leaves the waiting to this script."""
    with tempfile.TemporaryFile("w+") as said:
        shell = subprocess.run(["sh", "-c", '"$@" >/dev/null & echo $!', "sh", CLI, *arguments],
                               stdout=subprocess.PIPE, stderr=said, text=True, check=True)
        _, status, usage = os.wait4(int(shell.stdout), 0)
        said.seek(0)
        return os.waitstatus_to_exitcode(status), said.read(), usage.ru_maxrss / 1024


def add_step(store, step):
    """Another checkpoint of run "big": its first under another step, with a metric and without
    data, whose manifest is sealed again (proto/format/manifest.c)."""
    first, later = (os.path.join(store, f"big/step-{number:08}-a0001") for number in (0, step))
    os.mkdir(later)
    with open(os.path.join(first, "manifest.json"), "rb") as file:
        text = at_step(file.read(), step)
    text = text.replace(b'"optimizer":{', b'"metrics":{"loss":%d},"optimizer":{' % step, 1)
    for name in os.listdir(first):
        if name.endswith(".safetensors"):
            shard, to = (os.path.join(folder, name) for folder in (first, later))
            text = text.replace(*copy_without_data(shard, to, step))
    with open(os.path.join(later, "manifest.json"), "wb") as file:
        file.write(sealed(text))


def peaks_of(where):
    """For commands that read every checkpoint, or search one among them: {name: MiB}."""
    peaks = {}
    for command in ("list", "list --json", "status", "status --watch --count 1", "du",
                    "gc --dry-run", "prune big --keep-last 3 --dry-run",
                    "prune big --keep-best 3 --dry-run", "show big", "pin big", "unpin big"):
        code, said, peaks[command] = peak_of(*command.split(), *where)
        if code != 0:
            test(f"{command} ends well", False, (where[0], code, said))
    return peaks


def compare(where, of_two):
    for command, peak in peaks_of(where).items():
        most = PLANNED if command.startswith("prune") else EACH
        more = peak - of_two[command]
        print(f"# {command}: {peak:.1f} MiB, {more * MIB / MANY:.0f} bytes for each")
        test(f"{command} {where[0]} takes at most {most} bytes for each of {MANY}",
             more <= most * MANY / MIB + NOISE, (peak, of_two[command]))


def many(folder):
    world = World(os.path.join(folder, "many"))
    where = ("--store", world.store)
    try:
        os.mkdir(os.path.join(folder, "small"))
        write_llama(os.path.join(folder, "small"), *SMALL, lambda size: b"")
        code, said, _ = peak_of("import", os.path.join(folder, "small"), "--run", "big", *where)
        test("there is a checkpoint", code == 0, said)
        add_step(world.store, 1)
        of_two = peaks_of(where)
        world.launch()
        of_two_served = peaks_of(world.where)
        world.stop()
        for step in range(2, MANY):
            add_step(world.store, step)
        compare(where, of_two)
        world.launch()
        test("none of them is damaged", "quarantined" not in world.log(), world.log()[-900:])
        compare(world.where, of_two_served)
        world.stop()
    finally:
        world.close()


def main():
    if is_sanitized("ckpt-cli"):
        print("sanitizers take memory of their own")
        sys.exit(77)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    folder = tempfile.mkdtemp(prefix="me-")
    store, output, other = (os.path.join(folder, name) for name in ("store", "output", "other"))
    where = ("--store", store)
    try:
        os.mkdir(other)
        numbers = itertools.count(1)  # no two tensors are equal
        for model in (folder, other):
            size = write_llama(model, *LLAMA, lambda size: struct.pack("<f", next(numbers)))
        test("the checkpoint is larger than any limit", size > 2 * ASSEMBLES * MIB, size)
        for command, most in (
                (("import", folder, "--run", "big", "--shards", "3", *where), ASSEMBLES),
                (("import", other, "--run", "other", "--shards", "2", *where), ASSEMBLES),
                (("list", *where), PROGRAM),
                (("show", "big", *where), PROGRAM),
                (("du", *where), PROGRAM),
                (("gc", "--dry-run", *where), PROGRAM),
                (("verify", "big", *where), READS),
                (("verify", "big", "--quick", *where), PROGRAM),
                (("diff", "big", "other", *where), ASSEMBLES),
                (("convert", "big", "--output", output, "--dtype", "bf16", *where), ASSEMBLES),
                (("convert", "big", "--output", output, "--shards", "5", *where), ASSEMBLES),
                (("export", "big", "--output", output, *where), ASSEMBLES),
                (("export", "big", "--output", output, "--format", "hf", *where), ASSEMBLES),
                (("prune", "big", "--keep-best", "1", "--most", *where), PROGRAM)):
            if command[0] == "prune":
                for step in range(1, STEPS):
                    add_step(store, step)
            code, said, peak = peak_of(*command)
            name = " ".join(word for word in command[:1] + command[2:] if "/" not in word)
            print(f"# {name}: {peak:.0f} MiB")
            test(f"{name} takes at most {most} MiB",
                 code == (command[0] == "diff") and peak <= most, (code, said, peak))
            if os.path.isdir(output):
                shutil.rmtree(output)
            elif os.path.exists(output):
                os.remove(output)
        left = sorted(os.listdir(os.path.join(store, "big")))
        test("the prune has removed what no rule keeps, and not the one that verify has read whole",
             [name for name in left if name.startswith("step-")] ==
             [f"step-{step:08}-a0001" for step in (0, 1, STEPS - 2, STEPS - 1)], left)
        many(folder)
    finally:
        shutil.rmtree(folder)
    end()


if __name__ == "__main__":
    main()
