#!/usr/bin/env python3
"""failing_disk - a store that cannot be written does not stop training.

Goal: a trainer whose saves fail, once or from some save on for ever, says so and trains on with the
losses of an undisturbed run; what was committed before is listed, whole, and loads. It ends with 0
when its last save was written, else with 75, and started again on a good disk with 0.
Method: the real trainer, and ckptd over the back-end that fails operations with an errno.
also without io_uring
"""

import os
import re
import subprocess

import lib_train
from lib_store import PATIENCE, World
from lib_tap import end, test

STEPS, INTERVAL = 12, 3
SAVED = list(range(INTERVAL, STEPS + 1, INTERVAL))
EXIT_RUN_AGAIN = 75
# Each save creates a file, writes and syncs it; where the sync fails another file is tried, and
# when that one's fails too the store is offline.
FAULTS = (("a full disk, of the second save", "only=create,fail_at=2,errno=28", [3, 9, 12], 0,
           r"step 6 did not become durable.*No space left"),
          ("a full disk, from the second save on", "only=create,fail_from=2,errno=28", [3],
           EXIT_RUN_AGAIN, r"step 6 did not become durable.*No space left"),
          # The last save is tried again.
          ("a full disk, of the last save", "only=create,fail_at=4,errno=28", SAVED, 0,
           r"step 12 did not become durable.*No space left"),
          ("writes that fail from the first on", "only=write,fail_from=1,errno=5", [],
           EXIT_RUN_AGAIN, r"step 3 did not become durable"),
          ("a sync that fails once", "only=sync,fail_at=2,errno=5", SAVED, 0, None),
          ("syncs that fail from the second save on", "only=sync,fail_from=2,errno=5", [3],
           EXIT_RUN_AGAIN, r"step 6 did not become durable.*could not be synced"))


def train(world, run):
    """Exit code, what was said, the lines of losses of all its starts."""
    losses = os.path.join(world.folder, f"{run}.loss")
    done = subprocess.run(lib_train.command(
        world.folder, world.server, run, "--training.steps", STEPS, "--checkpoint.interval",
        INTERVAL, "--checkpoint.async_mode", "disabled", "--metrics.loss_file", losses),
        capture_output=True, text=True, timeout=PATIENCE)
    with open(losses) as file:
        lines = file.read().splitlines()
    return done.returncode, done.stderr + done.stdout, lines


def steps_of(world, run):
    return sorted(entry["step"] for entry in world.listed() if entry["run"] == run)


def failing(world, number, fault, right):
    what, settings, saved, want, warning = fault
    run, store = f"run{number}", world.store
    world.store = f"fault:seed=1,{settings}:local:{store}"
    world.launch()
    code, said, losses = train(world, run)
    test(f"{what}: every step is made, with the undisturbed losses", losses == right, said)
    test(f"{what}: the trainer ends with {want}", code == want, (code, said))
    found = re.search(r" warn checkpoint: " + warning, said) if warning else " warn " not in said
    test(f"{what}: " + ("it warns of the save" if warning else "nobody notices"), found, said)
    if want:
        test(f"{what}: and says that the last one is missing",
             f"the last checkpoint, of step {STEPS}, could not be saved" in said, said)
    test(f"{what}: ckptd ends well", world.end() == 0, world.log())
    world.store = store
    test(f"{what}: what was committed is there, whole",
         steps_of(world, run) == saved and not world.all_verify(), steps_of(world, run))
    world.launch()
    code, said, losses = train(world, run)
    newest = saved[-1] if saved else 0
    test(f"{what}: started again on a good disk it goes on from there and ends with 0",
         code == 0 and losses == right + right[newest:] and steps_of(world, run)[-1] == STEPS,
         (code, losses, said))
    world.stop()


def main():
    world = World()
    try:
        lib_train.make_tokens(world.folder, lib_train.prose())
        world.launch()
        code, said, right = train(world, "right")
        test("an undisturbed run ends with 0",
             code == 0 and len(right) == STEPS and steps_of(world, "right") == SAVED, said)
        world.stop()
        for number, fault in enumerate(FAULTS):
            failing(world, number, fault, right)
    finally:
        world.close()
    end()


if __name__ == "__main__":
    main()
