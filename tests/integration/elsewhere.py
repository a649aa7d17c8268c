#!/usr/bin/env python3
"""elsewhere - through a ckptd every command reads checkpoints that only other tiers have.

Goal: a machine has lost its store, or has only some checkpoints on its disk. No reading command
ends with 0 after reading fewer than `list` shows. All data read is verified, and damage in the far
tier is reported. Commands that can only change local files report that there are none. Method: the
real programs on a `dir:` tier, whose checkpoints leave the local store; the answers on the tier's
own directory are the second opinion.
"""

import glob
import os
import shutil

from lib_store import World, change, make_tier, wait_until
from lib_tap import end, test
from tier import drained

OPTIONS = "--tier.quiet", "false", "--tier.look_ms", "0"
STEPS = 1, 2, 3


def read(path):
    with open(path, "rb") as file:
        return file.read()


def checks(world, name):
    """Those that a full verify has verified."""
    code, out, err = world.cli("verify", "--all", name, *world.where)
    return code, [int(line.split("@")[1].split("-")[0]) for line in out.splitlines()
                  if ": whole" in line], err


def reads(world):
    run = world.run
    listed = world.cli("list", *world.where)[1]
    test("STATE names the tier that has it", listed.count("remote tier (far)") == 3, listed)
    test("verify --all proves all that list shows", checks(world, run)[:2] == (0, [3, 2, 1]),
         checks(world, run))
    there = os.path.join(world.folder, "there"), os.path.join(world.folder, "here")
    for path, where in zip(there, (("--store", world.far), world.where)):
        code, out, err = world.cli("export", f"{run}@2", "--output", path, *where)
        test("export writes what the far tier has", code == 0, (code, out, err))
    test("bit for bit", read(there[0]) == read(there[1]))
    for words in (("show", run), ("diff", run + "@1", run + "@2"), ("du", run)):
        on_far, here = (world.cli(*words, *where)
                        for where in (("--store", world.far), world.where))
        test(f"{words[0]} says the same as on the far tier's directory",
             here[0] == on_far[0] and on_far[1].splitlines()[-1] in here[1], (here, on_far))
    for option in (("--dtype", "bf16"), ("--shards", "3")):
        code, out, err = world.cli("convert", f"{run}@1", *option, "--output",
                                   os.path.join(world.folder, option[0]), *world.where)
        test(f"convert {option[0]} reads it", code == 0, (code, out, err))


def names(world):
    run = world.run
    code, out, err = world.cli("tag", f"{run}@2", "best", *world.where)
    test("tag names it, and the tag means it", code == 0 and
         f"{run}@2-a2: whole" in world.cli("verify", f"{run}@best", *world.where)[1], (out, err))
    code, out, err = world.cli("pin", f"{run}@2", *world.where)
    pinned = [entry["step"] for entry in world.listed(*world.where) if entry["pinned"]]
    pins = [glob.glob(os.path.join(store, run, "pins", "*")) for store in (world.far, world.store)]
    test("pin keeps it in the far tier, and there alone", code == 0 and pinned == [2] and
         list(map(len, pins)) == [1, 0], (out, err, pinned, pins))
    code, out, err = world.cli("unpin", f"{run}@2", *world.where)
    test("and unpin lets it go", code == 0 and
         not os.listdir(os.path.join(world.far, run, "pins")), (out, err))
    code, out, err = world.cli("prune", run, "--keep-last", "1", "--dry-run", *world.where)
    test("prune says that none is in the store", code == 0 and "no checkpoint of" in out,
         (out, err))
    code, out, err = world.cli("repair", f"{run}@2", *world.where)
    test("repair says that no file of it is here", code == 66 and "only other tiers" in err, err)
    code, out, err = world.cli("cp", f"{run}@1", f"{run}-2", *world.where)
    test("cp brings it into the store", code == 0 and
         world.cli("verify", f"{run}-2", *world.where)[1].count("whole, local") == 1, (out, err))


def damage(world):
    shard = sorted(glob.glob(os.path.join(world.far, world.run, "step-00000003-*", "shard-*")))[0]
    change(shard, os.path.getsize(shard) // 2)
    code, proven, err = checks(world, world.run)
    test("damage in the far tier is found, with exit code 1", (code, proven) == (1, [2, 1]), err)
    _, said, _ = world.cli("verify", f"{world.run}@3", *world.where)
    test("ckptd does not say that it reads at once what it has no copy of",
         "ckptd was notified" in said and "its own store has no copy" in said and
         "at once" not in said, said)
    change(shard, os.path.getsize(shard) // 2)
    shutil.rmtree(os.path.join(world.far, world.run, "step-00000001-a0001"))
    code, out, err = world.cli("verify", f"{world.run}@1", *world.where)
    test("what has gone from there is not found", code == 66, (code, out, err))


def main():
    world = World()
    world.far = os.path.join(world.folder, "far")
    make_tier(world.folder, world.far)
    options = "--tier.store", "dir:" + world.far, *OPTIONS
    try:
        world.launch(*options)
        world.save(STEPS)
        wait_until(drained(world), world.log)
        world.cli("prune", world.run, "--keep-last", "2", "--now", *world.where)
        code, proven, err = checks(world, world.run)
        test("of a run that is here in part, all is read", (code, proven) == (0, [3, 2, 1]), err)
        kept = [entry["step"] for entry in world.listed(*world.where) if "verified" in entry]
        test("the result is kept beside those that are here", kept == [3, 2], kept)
        test("and its newest from the disk", "whole, local" in
             world.cli("verify", world.run, *world.where)[1])
        world.stop()
        shutil.rmtree(world.store)
        world.launch(*options)
        reads(world)
        names(world)
        damage(world)
        world.stop()
    finally:
        world.close()
    end()


main()
