#!/usr/bin/env python3
"""full_disk - the real programs on a file system without space, and on one without inodes.

Goal: a save that does not fit fails with that reason, and ckptd continues. Committed checkpoints
stay whole and load. A prune works on the full disk and makes room, and then saves are committed
again. Method: a small ext4 in a file, mounted in a private mount namespace; a filler takes the
space, empty files take the inodes. Needs root and loop devices, else skipped.
"""

import os
import shutil
import sys
import tempfile

from lib_hosts import Disk, Refused, own_mounts
from lib_store import World, mark
from lib_tap import end, test


def tools(what, disk, world, take):
    """Without a server: gc removes a crash's remains, and a prune of the directory its
    checkpoints."""
    unfinished = os.path.join(world.store, world.run, "step-00000077-a0077")
    os.mkdir(unfinished)
    open(os.path.join(unfinished, "shard-00001-of-00001.safetensors"), "w").close()
    mark(unfinished)
    take(disk)
    code, out, err = world.cli("gc", "--store", world.store)
    test(f"{what}: gc removes what a crash left",
         code == 0 and not os.path.exists(unfinished) and not world.all_verify(), (code, out, err))
    kept = world.steps()[-2:]
    take(disk)
    code, out, err = world.cli("verify", f"{world.run}@{kept[1]}", "--store", world.store)
    test(f"{what}: a tool that has no room for its lease says so and reads on",
         code == 0 and "without a lease" in err, (code, out, err))
    code, out, err = world.cli("prune", world.run, "--store", world.store, "--keep-last", 1,
                               "--most")
    test(f"{what}: a prune of the directory works",
         code == 0 and world.steps() == kept and not world.all_verify(),
         (code, out, err, world.steps()))


def story(what, mib, inodes, take, refills):
    """`refills`: a prune's freed space is used up again by a save; of inodes ckptd keeps some for
    removals."""
    folder = tempfile.mkdtemp(prefix="fd-")
    disk = Disk(folder, mib, inodes)
    world = World(os.path.join(disk.path, "store"))
    try:
        world.launch("--storage.usable_fraction", "1")
        world.save(range(1, 7))
        test(f"{what}: saves fit at first", world.steps() == list(range(1, 7)), world.steps())
        take(disk)
        ok, text = world.try_save(7)
        test(f"{what}: a save without room fails and says why",
             not ok and world.process.poll() is None and
             ("space" in text.lower() or "does not fit" in text), text)
        test(f"{what}: what was committed is listed and whole",
             world.steps() == list(range(1, 7)) and not world.all_verify(), world.steps())
        code, out, err = world.cli("gc", "--store", world.store, "--dry-run")
        test(f"{what}: gc looks at it all the same", code == 0, (code, out, err))
        code, out, err = world.cli("prune", world.run, "--server", world.server, "--keep-last", 3,
                                   "--most")
        test(f"{what}: a prune works and needs no room",
             code == 0 and world.steps() == [4, 5, 6] and not world.all_verify(),
             (code, out, err, world.steps()))
        ok, text = world.try_save(8)
        test(f"{what}: the room that it made takes the next save" if refills else
             f"{what}: what it freed is kept for removals",
             ok == refills and world.steps() == [4, 5, 6] + [8] * refills, text)
        test(f"{what}: ckptd ends well", world.end() == 0, world.log())
        tools(what, disk, world, take)
        world.launch("--storage.usable_fraction", "1")
        disk.free()
        ok, text = world.try_save(9)
        test(f"{what}: saves go on afterwards", ok and 9 in world.steps(), text)
        test(f"{what}: all of it is whole", not world.all_verify(), world.all_verify())
        test(f"{what}: ckptd ends well the second time", world.end() == 0, world.log())
    finally:
        world.close()
        disk.close()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    try:
        own_mounts()
        story("full disk", 96, 400, Disk.fill, True)
        story("no inodes", 96, 400, Disk.use_inodes, False)
    except Refused as reason:
        print(reason)
        sys.exit(77)
    end()


if __name__ == "__main__":
    main()
