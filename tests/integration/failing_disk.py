#!/usr/bin/env python3
"""failing_disk - a store that cannot be written does not stop training.

Goal: a trainer whose saves fail, once or from some save on for ever, reports it and continues with
the losses of an undisturbed run; earlier committed checkpoints are listed, whole, and load. It ends
with 0 when its last save was written, else with 75, and started again on a good disk with 0.
Method: the real trainer, and ckptd over the back-end that fails operations with an errno. Each
fault has a store, three faults run at a time: most of the time is pauses between tries of the last
save.
"""

import concurrent.futures
import os
import re
import subprocess

import lib_train
from lib_store import PATIENCE, World
from lib_tap import end, test

STEPS, INTERVAL = 12, 3
FINAL = "--checkpoint.final_seconds", 3
AT_ONCE = 3
SAVED = list(range(INTERVAL, STEPS + 1, INTERVAL))
EXIT_RUN_AGAIN = 75
# On a busy machine steps wait for samples, of which a trainer warns: not a matter of saves.
QUIET = "--metrics.data_wait_max_percent", 0
# Each save creates a file, writes and syncs it. Where the sync fails another file is tried, and
# when that one's fails too the store is offline. The fault, its operation, the committed steps,
# exit code, warning, and options: one save is tried until it has failed often enough, others of its
# kind until their time is over.
FAULTS = (("a full disk, from the second save on", "only=create,fail_from=2,errno=28", [3],
           EXIT_RUN_AGAIN, r"step 6 did not become durable.*No space left", ()),
          ("a full disk, of the second save", "only=create,fail_at=2,errno=28", [3, 9, 12], 0,
           r"step 6 did not become durable.*No space left", ()),
          # The last save is tried again.
          ("a full disk, of the last save", "only=create,fail_at=4,errno=28", SAVED, 0,
           r"step 12 did not become durable.*No space left", ()),
          ("writes that fail from the first on", "only=write,fail_from=1,errno=5", [],
           EXIT_RUN_AGAIN, r"step 3 did not become durable", FINAL),
          ("a sync that fails once", "only=sync,fail_at=2,errno=5", SAVED, 0, None, ()),
          ("syncs that fail from the second save on", "only=sync,fail_from=2,errno=5", [3],
           EXIT_RUN_AGAIN, r"step 6 did not become durable.*could not be synced", FINAL))
RUN = "run"


def train(world, tokens, *options):
    """Exit code, output, the lines of losses of all its starts."""
    losses = os.path.join(world.folder, "losses")
    done = subprocess.run(lib_train.command(
        tokens, world.server, RUN, "--training.steps", STEPS, "--checkpoint.interval",
        INTERVAL, "--checkpoint.async_mode", "disabled", "--metrics.loss_file", losses, *QUIET,
        *options), capture_output=True, text=True, timeout=PATIENCE)
    with open(losses) as file:
        lines = file.read().splitlines()
    return done.returncode, done.stderr + done.stdout, lines


def failing(tokens, fault, right):
    """The arguments of test(), for each finding."""
    what, settings, saved, want, warning, options = fault
    found, world = [], World()
    try:
        store = world.store
        world.store = f"fault:seed=1,{settings}:local:{store}"
        world.launch()
        code, said, losses = train(world, tokens, *options)
        found.append(("every step is made, with the undisturbed losses", losses == right, said))
        found.append((f"the trainer ends with {want}", code == want, (code, said)))
        warns = re.search(r" warn checkpoint: " + warning, said) if warning else None
        found.append(("it warns of the save", warns, said) if warning else
                     ("nobody notices", " warn " not in said, said))
        if want:
            late = " within checkpoint.final_seconds" if options else ""
            found.append(("and says that the last one is missing, and why it gave up", re.search(
                f"the last checkpoint, of step {STEPS}, could not be saved{late} \\(", said), said))
        warned = [line.split(" warn ")[1] for line in said.splitlines() if " warn " in line]
        found.append(("it warns again only of something else", all(
            one != other for one, other in zip(warned, warned[1:])), said))
        found.append(("ckptd ends well", world.end() == 0, world.log()))
        world.store = store
        steps = world.steps()
        found.append(("what was committed is there, whole", steps == saved and
                      not world.all_verify(), steps))
        world.launch()
        code, said, losses = train(world, tokens)
        newest = saved[-1] if saved else 0
        found.append(("started again on a good disk it goes on from there and ends with 0",
                      code == 0 and losses == right + right[newest:] and
                      world.steps()[-1] == STEPS, (code, losses, said)))
        world.stop()
    finally:
        world.close()
    return [(f"{what}: {name}", *rest) for name, *rest in found]


def main():
    world = World()
    try:
        lib_train.make_tokens(world.folder, lib_train.prose())
        world.launch()
        code, said, right = train(world, world.folder)
        test("an undisturbed run ends with 0",
             code == 0 and len(right) == STEPS and world.steps() == SAVED, said)
        world.stop()
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for found in pool.map(lambda fault: failing(world.folder, fault, right), FAULTS):
                for finding in found:
                    test(*finding)
    finally:
        world.close()
    end()


if __name__ == "__main__":
    main()
