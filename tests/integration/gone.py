#!/usr/bin/env python3
"""gone - a ckptd that is killed right after a commit, before the trainer knows of it.

Goal: the trainer does not call the step lost: it asks the next ckptd, which has it, and logs that
it is durable. Method: the real programs; SIGKILL at the line of the commit, and another ckptd on
the same store after longer than the trainer's pause between two questions.
"""

import os
import re
import subprocess
import time

from lib_store import World, comes, comes_to
from lib_tap import end, test
from lib_train import command, make_tokens, prose

AWAY_S = 2.5  # trainer/save/save.c: POLL_SECONDS is 1


def main():
    world = World()
    path = os.path.join(world.folder, "trainer.log")
    world.launch()
    make_tokens(world.folder, prose())
    with open(path, "w") as log:
        trainer = subprocess.Popen(command(world.folder, world.server, "g", "--comm.ranks", "1",
                                           "--training.steps", "1000000",
                                           "--checkpoint.interval", "1000000",
                                           "--checkpoint.enable_first_step_checkpoint", "true"),
                                   stdout=log, stderr=subprocess.STDOUT)

    def said():
        with open(path) as log:
            return log.read()
    try:
        comes(lambda: "step 1, attempt 1 committed" in world.log(), pause=0.002)
        world.process.kill()
        world.process.wait()
        heard = re.search(r"step 1 is durable", said())
        time.sleep(AWAY_S)
        world.launch()
        test("the trainer had not heard of the commit", not heard, said())
        test("a step that ckptd committed before it was killed is durable by the next one",
             comes_to(lambda: "step 1 is durable (local)" in said(), True), said())
        test("and was never called lost", "did not become" not in said() and
             "is not known" not in said(), said())
    finally:
        trainer.kill()
        trainer.wait()
        world.close()
    end()


main()
