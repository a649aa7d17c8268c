#!/usr/bin/env python3
"""golden - a store that an earlier build wrote is read by this one.

Goal: the files of each version of the formats stay readable, by the tools and by ckptd, to the bit,
and training resumes from them. Method: tests/golden holds a store per version of the formats,
written once by a build of that time (ckpt_example: after step s every weight is s) and never
rewritten: a format that changes gets another number, and another store.
"""

import glob
import json
import os
import struct
import subprocess
import tarfile

from lib_store import BUILD, World
from lib_tap import end, test

STEP, ROWS, COLUMNS = 3, 1000, 256  # of clients/examples/ckpt_example.c
WEIGHTS = "weights"


def weights_of(path):
    """The one tensor of an export, by hand."""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8:8 + size])[WEIGHTS]
    begin, stop = (8 + size + offset for offset in entry["data_offsets"])
    return entry["dtype"], entry["shape"], set(struct.iter_unpack("<f", data[begin:stop]))


def look(version, world):
    run, where = "example", ("--store", world.store)
    newest = f"{run}@{STEP}-a1"
    entries = world.listed()
    test(f"{version}: every checkpoint is listed, none as damaged",
         [(one["step"], one["attempt"]) for one in entries] == [(3, 1), (2, 1), (1, 1)] and
         not any("damage" in one for one in entries), entries)
    bad = world.all_verify()
    test(f"{version}: every block is proven", not bad, bad)
    code, out, err = world.cli("verify", newest, "--quick", *where)
    test(f"{version}: every header and table too", code == 0, out + err)
    path = os.path.join(world.folder, "export")
    code, _, err = world.cli("export", newest, "--output", path, *where)
    test(f"{version}: every value is what it was", code == 0 and
         weights_of(path) == ("F32", [ROWS, COLUMNS], {(float(STEP),)}), err)
    before = {path: open(path, "rb").read() for path in glob.glob(world.store + "/*/step-*/*")}
    world.launch()
    done = subprocess.run([os.path.join(BUILD, "ckpt_example"), world.server],
                          capture_output=True, text=True, timeout=60)
    test(f"{version}: a program goes on from it", done.returncode == 0 and
         done.stdout.count(f"loaded step {STEP}, saved by 2 ranks") == 2 and
         done.stdout.count(f"step {2 * STEP} is durable, weights[0] = {2 * STEP}") == 2,
         done.stdout + done.stderr)
    world.stop()
    after = {path: open(path, "rb").read() for path in before}
    test(f"{version}: and changes nothing of it", before and before == after)


def main():
    archives = sorted(glob.glob("tests/golden/*.tar.xz"))
    test("there is a store of versions 1 and 2", archives ==
         [f"tests/golden/store-{version}.tar.xz" for version in (1, 2)], archives)
    for archive in archives:
        world = World()
        try:
            with tarfile.open(archive) as file:
                file.extractall(world.folder)
            look(os.path.basename(archive).split(".")[0], world)
        finally:
            world.close()
    end()


if __name__ == "__main__":
    main()
