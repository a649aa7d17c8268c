#!/usr/bin/env python3
"""swapped - another bucket answers under the name of the far tier.

Goal: a bucket that was made again under its name, empty or with another owner, is noticed, at a
start and while ckptd serves: one message reports it, nothing is sent there, and the disk keeps the
checkpoints that drain. The former bucket is accepted again silently, the other one only after an
operator's command. Method: the strict server (lib_server.py), whose objects are exchanged.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

from lib_server import Object, Server  # noqa: E402
from lib_store import PATIENCE, World, wait_until  # noqa: E402
from lib_tap import end, test  # noqa: E402
from tier import alarms, drained  # noqa: E402

OPTIONS = ("--tier.store", "s3://checkpoints/far", "--tier.quiet", "false", "--tier.retry_ms", "20",
           "--tier.look_ms", "0", "--retention.keep_last", "2", "--retention.may_remove_most",
           "true", "--tier.attempts", "local")
SAID = "the far tier s3://checkpoints/far is not the store that was used before"


def swap(server, objects):
    """Those of the bucket from now on; which were there before."""
    with server.lock:
        before, server.objects = server.objects, objects
    return before


def sent(server):
    return [key for key in server.objects if "/step-" in key]


def start_that_ends(world):
    """Its exit code, and its output. A ckptd whose bucket answers slowly serves, and is shut down:
    then again."""
    for _ in range(10):
        before = len(world.log())
        world.spawn(*OPTIONS)
        wait_until(lambda: world.process.poll() is not None or "ckptd: version" in
                   world.log()[before:], world.log)
        if world.process.poll() is not None:
            break
        world.end()
    return world.process.wait(PATIENCE), world.log()[before:]


def at_a_start(world, server):
    ours = swap(server, {})
    for found in ("empty", "another's"):
        if found == "another's":
            swap(server, {"far/tier-identity": Object(b"0" * 32 + b"\n", "0" * 32, {},
                                                      server.now())})
        code, said = start_that_ends(world)
        test(f"a bucket that is {found} ends the start with 78, and the message says why",
             code == 78 and SAID in said and "remove tier-identity." in said and not sent(server),
             (code, said))
    swap(server, ours)


def while_it_serves(world, server):
    world.launch(*OPTIONS)
    ours = swap(server, {})
    for step in (4, 5):
        world.save_one(step)
    wait_until(lambda: any(SAID in text for text in alarms(world)), lambda: world.log()[-2000:])
    steps = world.steps()
    test("while ckptd serves it is an alarm, nothing is sent, and the disk keeps what it has",
         steps == [2, 3, 4, 5] and not sent(server),
         (alarms(world), steps, server.objects.keys()))
    code, out, err = world.cli("prune", world.run, "--keep-last", "2", "--most", *world.where)
    test("nor does a prune remove what the bucket of before was to have", world.steps() == steps,
         (code, out, err, world.steps()))
    swap(server, ours)
    # A list reads the far tier, and that ends the alarm.
    wait_until(lambda: drained(world)() and world.listed(*world.where) and not alarms(world) and
               world.steps() == [4, 5],
               lambda: (alarms(world), world.steps(), world.log()[-3000:]))
    test("the bucket of before is taken again, and retention goes on", len(
        [key for key in sent(server) if key.endswith("manifest.json")]) == 5, sent(server))
    world.stop()


def told(world, server):
    swap(server, {})
    notes = [name for name in os.listdir(world.store) if name.startswith("tier-identity.")]
    os.remove(os.path.join(world.store, notes[0]))
    world.launch(*OPTIONS)
    wait_until(lambda: drained(world)() and sent(server), lambda: world.log()[-2000:])
    test("another one is taken when the note was removed", len(notes) == 1 and not alarms(world),
         (notes, alarms(world)))
    world.stop()


def main():
    server, world = Server(), World()
    try:
        os.environ.update(server.environment)
        world.launch(*OPTIONS)
        world.save([1, 2, 3])
        wait_until(lambda: drained(world)() and world.steps() == [2, 3], world.log)
        world.stop()
        at_a_start(world, server)
        while_it_serves(world, server)
        told(world, server)
    finally:
        server.close()
        world.close()
    end()


if __name__ == "__main__":
    main()
