#!/usr/bin/env python3
"""stuck_disk - the shutdown of a ckptd whose disk does not answer.

Goal: a ckptd that is asked to shut down while a write hangs exits OVERTIME_MS (10 s) after
limits.drain_ms, as if killed, whatever signals arrive meanwhile and however the wall clock jumps.
Earlier commits are there at the next start. Method: a real ckptd over the back-end that delays
every request by minutes; `saver save` saves into it; SIGTERM, and then SIGUSR1 and another year
(build/shims/clock.so) several times a second.
"""

import signal
import subprocess
import time

from lib_store import SAVER, Clock, World, wait_until
from lib_tap import end, test

DELAY_US = 10**9  # at most; no save's requests are all spared
OVERTIME_S = 10
SLACK_S = 3


def wait_for_save(world):
    wait_until(lambda: any(save["ranks_ended"] > 0 for save in world.status()["saves"]), world.log)


def seconds_to_end(process, clock):
    """From SIGTERM on, with others beside it; None: it stays."""
    start, years = time.monotonic(), 0
    process.send_signal(signal.SIGTERM)
    while process.poll() is None:
        if time.monotonic() - start > OVERTIME_S + 2 * SLACK_S:
            return None
        process.send_signal(signal.SIGUSR1)
        years = 30 if years < 0 else years - 20  # back and forth
        clock.set(years)
        time.sleep(0.2)
    return time.monotonic() - start


def main():
    world = World()
    clock = Clock(world.folder)
    saver = None
    try:
        world.launch()
        world.save([1])
        world.stop()
        store = world.store
        world.store = f"fault:delay_us={DELAY_US}:local:{store}"
        world.launch("--limits.drain_ms", "0")
        saver = subprocess.Popen([SAVER, "save", world.server, "2", "1", "2"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_save(world)
        time.sleep(1)  # a rank's ended save is written at once, or on a busy machine soon
        took = seconds_to_end(world.process, clock)
        test("it leaves in time, whoever sends it signals or sets the clock",
             took is not None and took < OVERTIME_S + SLACK_S, (took, world.log()))
        test("and not before", took is not None and took >= OVERTIME_S - 1, took)
        test("with the code of a program that is to be started again",
             world.process.poll() == 75 and "the disk does not respond" in world.log(),
             (world.process.poll(), world.log()))
        world.store = store
        test("what was committed before is there", world.steps() == [1] and not world.all_verify())
    finally:
        if saver:
            saver.kill()
            saver.wait()
        world.close()
    end()


if __name__ == "__main__":
    main()
