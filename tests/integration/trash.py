#!/usr/bin/env python3
"""trash - a checkpoint removed by mistake can be undeleted, until its term is over or a save needs
its space.

Goal: with retention.trash_s a prune, retention and rm leave whole checkpoints in <run>/trash, which
list, loads and retention ignore, and undelete restores every bit. --now removes for good. A save
that does not fit removes only as many of the oldest as it needs, or none where all of them are not
enough. A clock that jumps ends no term. (storage_store_move cuts the way into the trash anywhere.)
Method: the real programs; loads through libckpt; a loop-back file system of some MiB (skipped
without the right to mount).
"""

import glob
import json
import os
import shutil
import subprocess

from lib_store import PATIENCE, SAVER, Clock, World, comes_to
from lib_tap import end, skip, test

DAY = 86400
ON = ("--retention.trash_s", str(7 * DAY))


def loads(world, step):
    return subprocess.run([SAVER, "load", world.server, "2", "1", str(step)], timeout=PATIENCE,
                          capture_output=True).returncode == 0


def trash(world):
    folder = os.path.join(world.store, world.run, "trash")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(int(name[5:13]) for name in names if name.startswith("step-"))


def removed_and_back(world, *where):
    who = "a ckptd" if where == world.where else "a directory"
    code, out, err = world.cli("prune", world.run, "--keep-last", "2", "--most", *where)
    test(f"{who}: a prune leaves them in the trash, and says so", code == 0 and
         world.steps() == [4, 5] and trash(world) == [1, 2, 3] and "for 7 days" in out,
         (code, out, err, world.steps(), trash(world)))
    code, out, err = world.cli("rm", f"{world.run}@5-a5", *where, "--yes")
    test(f"{who}: rm too", code == 0 and "into the trash" in out and trash(world) == [1, 2, 3, 5],
         (out, err))
    code, out, err = world.cli("du", "--json", *where)
    test(f"{who}: du tells what it takes", json.loads(out)["trash"] > 4 * 6524928, (out, err))
    code, out, err = world.cli("undelete", world.run, *where, "--dry-run", "--json")
    told = [(one["step"], one["bytes"] > 0) for one in json.loads(out)["checkpoints"]]
    test(f"{who}: --dry-run tells what is there", code == 0 and trash(world) == [1, 2, 3, 5] and
         told == [(step, True) for step in (5, 3, 2, 1)], (out, err))
    code, out, err = world.cli("undelete", f"{world.run}@2", *where)
    test(f"{who}: one comes back", code == 0 and world.steps() == [2, 4] and "restored" in out,
         (out, err))
    code, out, err = world.cli("undelete", world.run, *where)
    test(f"{who}: and all of them", code == 0 and world.steps() == [1, 2, 3, 4, 5] and
         trash(world) == [] and world.all_verify() == [], (out, err))
    test(f"{who}: of what is not there it says so",
         world.cli("undelete", f"{world.run}@9", *where)[0] == 66)
    code, out, err = world.cli("rm", world.run, *where, "--yes")
    test(f"{who}: a whole run goes into the trash", code == 0 and world.steps() == [] and
         trash(world) == [1, 2, 3, 4, 5], (out, err))
    code, out, err = world.cli("undelete", world.run, *where)
    test(f"{who}: and comes back", code == 0 and world.steps() == [1, 2, 3, 4, 5], (out, err))


def for_good(world):
    code, out, err = world.cli("prune", world.run, "--keep-last", "4", "--now", *world.where)
    test("prune --now removes for good", code == 0 and world.steps() == [2, 3, 4, 5] and
         trash(world) == [] and "undelete" not in out, (out, err))
    world.cli("rm", f"{world.run}@2-a2", *world.where, "--yes")
    world.save_one(6)
    world.cli("rm", f"{world.run}@6-a6", *world.where, "--yes", "--now")
    test("and rm --now, which leaves what is in the trash", trash(world) == [2] and
         world.steps() == [3, 4, 5], trash(world))
    test("what is in the trash is in no list, and not loaded", not loads(world, 2) and
         loads(world, 3))


def by_rules(world):
    world.stop()
    world.launch(*ON, "--retention.keep_last", "2")
    world.save_one(7)
    test("retention removes into the trash, but the last two that were verified",
         comes_to(world.steps, [4, 5, 7]) and comes_to(lambda: trash(world), [2, 3]),
         (world.steps(), trash(world), world.log()))
    code, out, err = world.cli("undelete", f"{world.run}@3", *world.where)
    test("what retention removed comes back while the run is served, and loads", code == 0 and
         loads(world, 3), (out, err))
    world.stop()
    world.launch()
    world.cli("status", *world.where)
    test("without a term it stays until a person or a save wants the space",
         trash(world) == [2], world.log())
    code, out, _ = world.cli("server", "history", world.run, *world.where)
    test("the journal tells of removals into the trash and of what came back",
         "into the trash" in out and "undelete" in out, out)
    world.stop()


def by_time(world, clock):
    world.launch(*ON)
    world.save([1, 2, 3])
    world.cli("rm", f"{world.run}@1-a1", *world.where, "--yes")
    clock.set(1)
    world.cli("rm", f"{world.run}@2-a2", *world.where, "--yes")  # a check follows
    world.cli("undelete", world.run, "--dry-run", *world.where)  # after it
    test("a clock that jumps ahead ends no term", trash(world) == [1, 2], world.log())
    world.stop()
    clock.set(0, 60)
    world.launch("--retention.trash_s", "30")
    test("when its term is over it is gone, and no other",
         comes_to(lambda: (trash(world), "its time in the trash is over" in world.log()),
                  ([2], True)),
         (trash(world), world.log()))
    world.stop()


def full_disk(folder):
    """A save that lacks space takes it from the trash, the oldest first."""
    disk, mount = os.path.join(folder, "disk"), os.path.join(folder, "mount")
    names = ["a save that does not fit takes the oldest from the trash", "and no more",
             "health counts the trash as room",
             "where all of the trash is not enough it stays, and the save is refused"]
    with open(disk, "wb") as file:
        file.truncate(64 << 20)
    os.mkdir(mount)
    made = shutil.which("mkfs.ext4") and os.geteuid() == 0 and subprocess.run(
        ["mkfs.ext4", "-q", "-N", "512", disk], capture_output=True).returncode == 0
    if not made or subprocess.run(["mount", "-o", "loop", disk, mount],
                                  capture_output=True).returncode != 0:
        skip(names, "no file system can be mounted here")
        return
    world = World(store=os.path.join(mount, "store"))
    try:
        options = (*ON, "--storage.usable_fraction", "1", "--limits.look_ms", "20")
        world.launch(*options)
        world.save(range(1, 8))  # of 6.2 MiB
        world.cli("prune", world.run, "--keep-last", "2", "--most", *world.where)
        comes_to(lambda: trash(world), [1, 2, 3, 4, 5])
        names_of = glob.glob(os.path.join(world.store, world.run, "trash", "step-*"))
        by_age = sorted(names_of, key=lambda path: (path.rsplit(".", 1)[1], path))
        oldest = [int(os.path.basename(path)[5:13]) for path in by_age]
        world.save_one(8)
        world.save_one(9)
        emptied = world.log().count("space was needed for a save")
        test(names[0], world.steps() == [6, 7, 8, 9] and emptied > 0 and
             trash(world) == sorted(oldest[emptied:]), (trash(world), world.log()[-900:]))
        free = os.statvfs(mount)
        test(names[1], free.f_bavail * free.f_frsize < 6524928 + (1 << 20), free)
        test(names[2], world.cli("health", *world.where)[0] == 0)
        for step in trash(world)[:-1]:
            world.cli("undelete", f"{world.run}@{step}", *world.where)
        left = trash(world)
        for folder in glob.glob(os.path.join(world.store, world.run, "trash", "step-*")):
            os.remove(os.path.join(folder, "shard-00001-of-00002.safetensors"))
        with open(os.path.join(mount, "other"), "wb") as file:  # leaves room for nothing
            free = os.statvfs(mount)
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - (64 << 10))
        world.stop()
        world.launch(*options)
        good, said = world.try_save(10)
        test(names[3], not good and "does not fit" in said and trash(world) == left != [],
             (good, said, left, trash(world)))
        world.stop()
    finally:
        world.close()
        subprocess.run(["umount", mount], check=True)


def main():
    world = World()
    try:
        world.launch(*ON)
        world.save([1, 2, 3, 4, 5])
        removed_and_back(world, *world.where)
        world.stop()
        removed_and_back(world, "--store", world.store)
        world.launch(*ON)
        for_good(world)
        by_rules(world)
        full_disk(world.folder)
    finally:
        world.close()
    world = World()
    try:
        by_time(world, Clock(world.folder))
    finally:
        world.close()
    end()


main()
