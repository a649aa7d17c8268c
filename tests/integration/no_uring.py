#!/usr/bin/env python3
"""no_uring - ckptd and the tools where the system refuses io_uring, as many containers do.

Goal: on threads they do all that they do on io_uring: save, load, verify, prune, live through
SIGKILL; and they say which it is and why. Method: this script runs itself behind a seccomp filter
(build/shims/no_uring), which everything that it starts inherits. `make test-no-uring` runs the
whole suite so.
"""

import json
import os
import subprocess
import sys
import time

from lib_store import BUILD, SAVER, World
from lib_tap import end, test

REFUSE = os.path.join(BUILD, "shims/no_uring")
KILLS = 4


def load(world, step):
    return subprocess.run([SAVER, "load", world.server, "3", "1", str(step)], timeout=60,
                          capture_output=True).returncode == 0


def kill_while_saving(world):
    """SIGKILL in the middle of a save, again and again; the steps that must be there."""
    acknowledged = world.steps()
    for number in range(KILLS):
        step = acknowledged[-1] + 1
        saver = subprocess.Popen([SAVER, "save", world.server, "2", "1", str(step)],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.02 * number)
        world.process.kill()
        world.process.wait()
        saver.kill()
        saver.wait()
        world.launch()
        world.save([step + 1])
        acknowledged.append(step + 1)
    return acknowledged


def main():
    world = World()
    try:
        world.launch()
        code, out, err = world.cli("status", "--server", world.server, "--json")
        storage = json.loads(out)["storage"] if code == 0 else err
        test("ckptd says that it writes by threads, and why",
             "pwrite threads (the system refused io_uring" in storage, storage)
        world.save([1, 2, 3])
        test("saves are committed", world.steps() == [1, 2, 3], world.steps())
        test("another number of ranks loads them, to the bit", load(world, 3) and load(world, 1))
        world.stop()
        world.launch()
        test("also from the disk, after a restart", load(world, 3) and load(world, 2))
        must = kill_while_saving(world)
        test("a killed ckptd loses nothing that was acknowledged",
             set(must) <= set(world.steps()), (must, world.steps()))
        bad = world.all_verify()
        test("what is listed is whole", not bad, bad)
        code, out, err = world.cli("prune", world.run, "--server", world.server, "--keep-last", 3,
                                   "--most")
        test("a prune removes what it says", code == 0 and len(world.steps()) == 3,
             (code, out, err, world.steps()))
        test("ckptd ends in order", world.end() == 0, world.log())
        code, out, err = world.cli("gc", "--store", world.store)
        test("so do the tools on the directory", code == 0 and not world.all_verify(),
             (code, out, err))
    finally:
        world.close()
    end()


if __name__ == "__main__":
    if "BEHIND_THE_FILTER" in os.environ:
        main()
    elif subprocess.run([REFUSE, "true"], capture_output=True).returncode != 0:
        print("a seccomp filter is not permitted here")
        sys.exit(77)
    else:
        os.execve(REFUSE, [REFUSE, sys.executable, *sys.argv],
                  dict(os.environ, BEHIND_THE_FILTER="1"))
