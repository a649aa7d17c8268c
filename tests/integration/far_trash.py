#!/usr/bin/env python3
"""far_trash - checkpoints that the far tier's rules or an operator removed there can be undeleted,
until tier.trash_s.

Goal: with tier.trash_s a checkpoint that retention or `rm` removes in a `dir:` tier lies in its
trash, is in no list, and `undelete` restores every bit. When its term is over it alone is removed;
--now is final. Method: the real programs on a `dir:` tier; the checkpoints leave the local store,
so only the tier has them.
"""

import os

from lib_store import World, comes_to, make_tier, wait_until
from lib_tap import end, test
from tier import drained

LOCAL = ("--retention.keep_last", "1", "--retention.may_remove_most", "true", "--tier.quiet",
         "false", "--tier.look_ms", "0")
RULES = "--tier.keep_last", "2"
DAY = "--tier.trash_s", "86400"


def far_steps(world, folder=""):
    path = os.path.join(world.far, world.run, folder)
    names = os.listdir(path) if os.path.isdir(path) else []
    return sorted(int(name[5:13]) for name in names if name.startswith("step-"))


def save(world, *steps):
    for step in steps:
        world.save_one(step)
        wait_until(drained(world), world.log)
    world.run = world.run or world.listed()[0]["run"]


def verifies(world, step):
    code, out, err = world.cli("verify", f"{world.run}@{step}", "--store", world.far)
    return code == 0, out + err


def comes_back(world, options):
    world.launch(*options, *RULES, *DAY)
    save(world, 1, 2, 3)
    test("what the tier's rules remove lies in its trash",
         comes_to(lambda: (far_steps(world), far_steps(world, "trash")), ([2, 3], [1])),
         (far_steps(world), far_steps(world, "trash"), world.log()[-3000:]))
    listed = {entry["step"] for entry in world.listed(*world.where)}
    code, out, err = world.cli("undelete", world.run, "--dry-run", *world.where)
    test("it is in no list; --dry-run tells where it is", listed == {2, 3} and code == 0 and
         "in the far tier" in out and far_steps(world, "trash") == [1], (listed, out, err))
    world.stop()
    world.launch(*options, *DAY)  # without the rules, which would remove it again
    code, out, err = world.cli("undelete", f"{world.run}@1", *world.where)
    good, said = verifies(world, 1)
    test("it comes back with every bit", code == 0 and good and 1 in far_steps(world),
         (out, err, said))
    test("and is in the list", 1 in {entry["step"] for entry in world.listed(*world.where)})


def comes_and_drains(world, options):
    """As after a loss of the tier's trash: no save comes that makes ckptd scan the queue."""
    world.launch(*options, "--retention.trash_s", "86400", *DAY)
    save(world, 4)
    world.cli("rm", f"{world.run}@4-a4", "--yes", *world.where)
    wait_until(lambda: 4 not in far_steps(world) and 4 in far_steps(world, "trash"), world.log)
    os.rename(os.path.join(world.far, world.run, "trash"), os.path.join(world.folder, "lost"))
    code, out, err = world.cli("undelete", f"{world.run}@4", *world.where)
    test("what comes back here alone drains at once", code == 0 and
         comes_to(lambda: 4 in far_steps(world), True), (out, err, far_steps(world)))
    world.stop()


def main():
    world = World()
    world.far = os.path.join(world.folder, "far")
    make_tier(world.folder, world.far)
    try:
        options = "--tier.store", "dir:" + world.far, *LOCAL
        comes_back(world, options)
        code, out, err = world.cli("rm", f"{world.run}@2-a2", "--yes", *world.where)
        test("rm goes there too", code == 0 and 2 not in far_steps(world) and
             2 in far_steps(world, "trash"), (out, err))
        world.stop()
        world.launch(*options, "--tier.trash_s", "1")
        test("when its term is over it is gone for good",
             comes_to(lambda: far_steps(world, "trash"), []), world.log()[-3000:])
        test("and what is in the list stays whole", far_steps(world) == [1, 3] and
             all(verifies(world, step)[0] for step in (1, 3)), far_steps(world))
        wait_until(lambda: 1 in {entry["step"] for entry in world.listed(*world.where)}, world.log)
        code, out, err = world.cli("rm", f"{world.run}@1-a1", "--yes", "--now", *world.where)
        test("rm --now is final", code == 0 and far_steps(world) == [3] and
             far_steps(world, "trash") == [], (out, err))
        world.stop()
        comes_and_drains(world, options)
    finally:
        world.close()
    end()


main()
