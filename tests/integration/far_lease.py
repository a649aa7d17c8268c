#!/usr/bin/env python3
"""far_lease - of two ckptd that share only the far tier one trains a run.

Goal: while a run is trained through one, a start through the other is refused with 78, and the
message names the holder and the remedy. After a clean end another start succeeds at once.
--checkpoint.take_over fences the older attempt: its trainer ends with 78, an alarm gives the
reason, and none of its checkpoints is acknowledged as `bucket`. An unavailable far tier stops no
start. Method: the real programs, two stores, one `dir:` tier.
"""

import glob
import json
import os
import signal

import lib_train
from lib_store import PATIENCE, World, make_tier, wait_until
from lib_tap import end, test
from tier import drained, far_has, tier_of, train

EVERY_MS = 100
RUN = "shared"
HOLD = "--training.steps", "100000", "--checkpoint.interval", "100000"


def lease(world):
    """The relevant part of the numbered objects; while one is replaced it may be missing."""
    names = sorted(glob.glob(os.path.join(world.far, RUN, "lease", "*")))
    try:
        with open(names[-1]) as file:
            return json.load(file)
    except (IndexError, FileNotFoundError, json.JSONDecodeError):
        return {}


def holds(world, attempt, ended=False):
    return lambda: (lease(world).get("attempt"), lease(world).get("ended")) == (attempt, ended)


def alarms(world):
    return world.status()["alarms"]


def finish(process):
    said = process.communicate(timeout=PATIENCE)[1]
    return process.returncode, said


def goes_on(world, attempt):
    """As that attempt, which ends in order."""
    process = train(world, RUN, *HOLD)
    wait_until(lambda: process.poll() is not None or holds(world, attempt)(), world.log)
    process.send_signal(signal.SIGTERM)
    code, said = finish(process)
    wait_until(lambda: code == 78 or holds(world, attempt, ended=True)(), world.log)
    return code != 78 and "being trained" not in said, (code, said)


def refused(old, new):
    """The older trainer continues, and is asked to shut down at last."""
    process = train(old, RUN, *HOLD, "--checkpoint.interval", "200")
    wait_until(holds(old, 1), old.log)
    code, said = finish(train(new, RUN))
    test("a start through another ckptd is refused with 78", code == 78, (code, said))
    test("which names host, attempt and what to do",
         f"run {RUN} is being trained through another ckptd, attempt 1 on {os.uname().nodename}"
         in said and "--checkpoint.take_over" in said, said)
    test("the older one trains on", process.poll() is None and
         not any("taken over" in text for text in alarms(old)), alarms(old))
    old.stop()
    test("a ckptd that ends gives the lease up", holds(old, 1, ended=True)(), lease(old))
    old.start(*old.options)
    wait_until(holds(old, 1), old.log)
    test("restarted it has the lease again with its trainer's next save", process.poll() is None)
    process.send_signal(signal.SIGTERM)
    code, said = finish(process)
    wait_until(holds(old, 1, ended=True), old.log)
    test("so does a trainer that ends", code != 78, (code, said))
    wait_until(drained(old), old.log)
    test("then another ckptd goes on", *goes_on(new, 2))


def fenced(old, new):
    process = train(old, RUN, "--training.steps", "100000", "--checkpoint.interval", "1000")
    wait_until(holds(old, 3), old.log)
    other = train(new, RUN, *HOLD, "--checkpoint.take_over")
    wait_until(lambda: other.poll() is not None or holds(new, 4)(), new.log)
    test("--checkpoint.take_over goes on at once", other.poll() is None, new.log()[-2000:])
    wait_until(lambda: any("taken over" in text for text in alarms(old)), old.log)
    code, said = finish(process)
    test("the older trainer ends with 78 at its next save", code == 78 and
         "attempt 3 was taken over through another ckptd by attempt 4" in said, (code, said))
    test("and an alarm tells of it", any("attempt 3 was taken over" in text
                                         for text in alarms(old)), alarms(old))
    test("the newer trains on", other.poll() is None and holds(new, 4)(), lease(new))
    new.process.kill()
    new.process.wait()
    other.kill()
    other.communicate()
    test("a lease that is not renewed runs out", *goes_on(old, 5))


def unacknowledged(old, new):
    """The older waits for the far tier, which takes no lease on a directory, when it is fenced."""
    wait_until(drained(old), old.log)
    new.start(*new.options)
    leases = os.path.join(old.far, RUN, "leases")
    if os.path.isdir(leases):
        os.rename(leases, leases + ".away")
    with open(leases, "w"):
        process = train(old, RUN, *HOLD, "--checkpoint.interval", "200", "--checkpoint.durability",
                        "bucket")
        wait_until(lambda: tier_of(old)["errors"] > 0 and holds(old, 6)(), old.log)
        process.send_signal(signal.SIGTERM)
    other = train(new, RUN, *HOLD, "--checkpoint.take_over")
    code, said = finish(process)
    test("nothing of a fenced attempt is acknowledged as bucket", code != 0 and
         "not durable as checkpoint.durability" in said and "was taken over" in said, (code, said))
    other.kill()
    other.communicate()
    os.unlink(leases)
    wait_until(drained(old), old.log)
    step = max(entry["step"] for entry in old.listed() if entry["attempt"] == 6)
    test("what it has committed goes to the far tier all the same", far_has(old, RUN, step, 6),
         old.log()[-2000:])
    new.stop()


def away(world):
    world.stop()
    os.rename(world.far, world.far + ".away")
    world.start(*world.options, "--tier.attempts", "local")
    code, said = finish(train(world, "apart", "--training.steps", "1"))
    test("a far tier that is away stops no start", code == 0, (code, said))
    test("and the log warns", "apart is started without the far tier" in world.log())
    world.stop()
    os.rename(world.far + ".away", world.far)
    world.start(*world.options)
    folder = os.path.join(world.far, "odd", "lease")
    os.makedirs(folder)
    with open(os.path.join(folder, "1".zfill(20)), "w") as file:
        file.write("no lease\n")
    code, said = finish(train(world, "odd", "--training.steps", "1"))
    test("nor does a lease that cannot be read", code == 0 and
         "odd is started, though it may be trained elsewhere" in world.log(), (code, said))


def main():
    worlds = World(), World()
    old, new = worlds
    make_tier(old.folder, os.path.join(old.folder, "far"))
    try:
        for world in worlds:
            world.far = os.path.join(old.folder, "far")
            world.options = ("--tier.store", "dir:" + world.far, "--tier.quiet", "false",
                             "--tier.lease_ms", EVERY_MS)
            world.options = tuple(map(str, world.options))
            lib_train.make_tokens(world.folder, lib_train.prose())
            world.start(*world.options)
        refused(old, new)
        fenced(old, new)
        unacknowledged(old, new)
        away(old)
        old.stop()
    finally:
        for world in reversed(worlds):
            world.close()
    end()


main()
