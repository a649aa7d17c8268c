#!/usr/bin/env python3
"""scrub - the next ckptd does not reread the parts of a bucket that the scrub has read.

Goal: a ckptd that is killed in the midst of a checkpoint continues with the next shard. A
checkpoint that was read whole is not read again before scrub.period_s, on any machine. A forged
text, or one with a future time, is ignored. Two ckptd that scrub one bucket do not delay each
other; an operator's pause holds no lock. The contents of another store under the bucket's name are
no damage, and nothing is written there. Method: the real programs on the strict server of the
tests, which counts the bytes that it gave of each object.
"""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

from lib_server import TABLES, Object, Server  # noqa: E402
from lib_store import World, wait_until  # noqa: E402
from lib_tap import end, test  # noqa: E402
from tier import drained  # noqa: E402

OPTIONS = "--tier.store", "s3://checkpoints/far", "--tier.quiet", "false"
FAST = *OPTIONS, "--scrub.start_ms", "1", "--scrub.rate", "1GiB"
SLOW = *OPTIONS, "--scrub.start_ms", "1", "--scrub.rate", "256KiB"
STEPS = 1, 2


class Bed:
    def __init__(self):
        self.server = Server()
        os.environ.update(self.server.environment)
        self.world, self.other = World(), World()
        self.world.start(*OPTIONS)
        for step in STEPS:
            self.world.save_one(step)
        wait_until(drained(self.world), "the drain")
        self.world.stop()

    def kept(self):
        """Number and text of the recorded results of the run."""
        with self.server.lock:
            found = [(key, thing.data.decode()) for key, thing in self.server.objects.items()
                     if "/proven/" in key]
        return max(found, default=("", ""))

    def tell(self, text):
        """Something else, as if it were newer."""
        key, _ = self.kept()
        folder, _, number = key.rpartition("/")
        key = f"{folder}/{int(number) + 1:0{len(number)}d}"
        with self.server.lock:
            self.server.objects[key] = Object(text.encode(), "0" * 32, {}, self.server.now())

    def start(self, world, *options):
        self.server.read.clear()
        world.start(*options)

    def read(self):
        """The shards of which more was sent than the bytes that verify a table."""
        with self.server.lock:
            return sorted((int(key.split("/step-")[1][:8]), int(key.split("/shard-")[1][:5]))
                          for key, count in self.server.read.items()
                          if "/shard-" in key and count > TABLES)

    def read_by(self, world, count):
        wait_until(lambda: world.status()["far_scrub"]["checkpoints_read"] >= count,
                   lambda: (world.status()["far_scrub"], world.log()[-2000:]))
        return self.read()

    def wait_paused(self, world):
        wait_until(lambda: world.status()["far_scrub"]["doing"] == "paused" and
                   not any("/leases/" in key for key in list(self.server.objects)),
                   lambda: world.status()["far_scrub"])

    def idle(self, world):
        """It knows the recorded results, and waits."""
        wait_until(lambda: any("/proven/" in key for key in self.server.read) and
                   world.status()["far_scrub"]["doing"] == "waiting", "the scrub")
        return self.read()


def goes_on(bed):
    world = bed.world
    bed.start(world, *SLOW)
    wait_until(lambda: "place" in bed.kept()[1], lambda: (bed.kept(), world.log()[-2000:]))
    world.process.kill()
    world.process.wait()
    for key in [key for key in bed.server.objects if "/leases/" in key]:
        del bed.server.objects[key]  # a killed process's lease stays until its group expires
    first = bed.read()
    bed.start(world, *FAST)
    rest = bed.read_by(world, len(STEPS))
    world.stop()
    everything = [(step, shard) for step in STEPS for shard in (1, 2)]
    test("a scrub that was killed goes on with the next shard",
         len(first) == 1 and sorted(first + rest) == everything, (first, rest))


def not_again(bed):
    for world, where in ((bed.world, "by the next ckptd"), (bed.other, "on another machine")):
        bed.start(world, *FAST)
        test(f"what was read is not read again, {where}", bed.idle(world) == [], bed.read())
        world.stop()


def not_believed(bed):
    head = bed.kept()[1].split("\n")[0]
    attempts = [line.split()[:2] for line in bed.kept()[1].split("\n")[1:] if line[:1].isdigit()]
    lies = {"that nobody wrote": "\0\1\2 place 1 2 3",
            "cut off": f"{head}\n{' '.join(attempts[0])}",
            "of the future": "\n".join([head, *(f"{step} {attempt} {int(time.time()) + 10**8}"
                                                for step, attempt in attempts), ""]),
            "of a place that is not there": f"{head}\nplace {' '.join(attempts[0])} 77 1 "
                                            f"{int(time.time())}\n"}
    for what, text in lies.items():
        bed.tell(text)
        bed.start(bed.world, *FAST)
        read = bed.read_by(bed.world, len(STEPS))
        bed.world.stop()
        test(f"a text {what} proves nothing", len(read) == 2 * len(STEPS), read)


def together(bed):
    worlds = bed.world, bed.other
    for world in worlds:
        world.start(*FAST, "--scrub.period_s", "0")
    for world in worlds:
        bed.read_by(world, 6)
    number = bed.kept()[0]
    wait_until(lambda: bed.kept()[0] > number, "another number")
    said = [world.status()["far_scrub"] for world in worlds]
    test("two that scrub one bucket do not hold each other up",
         all(one["damaged"] == 0 for one in said), said)
    bed.other.stop()


def paused(bed):
    world = bed.world
    code, out, err = world.cli("server", "scrub", "pause", *world.where)
    bed.wait_paused(world)
    bed.server.read.clear()
    world.listed(*world.where)
    test("a pause stops it, and leaves no lease", code == 0 and bed.read() == [], (out, err))
    bed.tell(bed.kept()[1])
    number = bed.kept()[0]
    world.cli("server", "scrub", "start", *world.where)
    wait_until(lambda: bed.kept()[0] > number, lambda: (number, world.status()["far_scrub"]))
    test("where another ckptd has written the number it reads that, and goes on",
         bed.kept()[0] > number)
    world.stop()


def another_store(bed, what, etag_of):
    """Its shards have other bytes; it comes in place of the one of before while nothing is read."""
    world, server = bed.world, bed.server
    world.start(*FAST, "--scrub.period_s", "0")
    bed.read_by(world, 3)
    world.cli("server", "scrub", "pause", *world.where)
    bed.wait_paused(world)
    other = {}
    with server.lock:
        for key, found in server.objects.items():
            data, etag = found.data, found.etag
            if "/shard-" in key:
                data = bytes(byte ^ 1 for byte in data[:4096]) + data[4096:]
            elif key.endswith("tier-identity"):
                data, etag = b"0" * 32 + b"\n", etag_of(found)
            other[key] = Object(data, etag, found.meta, found.changed)
        ours, server.objects = server.objects, dict(other)
    world.cli("server", "scrub", "start", *world.where)
    wait_until(lambda: "was not read in the far tier" in world.log() or
               world.status()["far_scrub"]["damaged"] > 0,
               lambda: (world.status()["far_scrub"], world.log()[-2000:]))
    found = world.status()["far_scrub"]
    world.stop()
    test(f"what a store {what} has is no damage, and nothing is written there",
         found["damaged"] == 0 and "is damaged in the far tier" not in world.log() and
         set(server.objects) == set(other),
         (found, set(server.objects) - set(other), world.log()[-2000:]))
    server.objects = ours


def others(bed):
    another_store(bed, "of another identity", lambda found: "0" * 32)
    another_store(bed, "whose identity is damaged", lambda found: found.etag)


def main():
    bed = Bed()
    for story in (goes_on, not_again, not_believed, together, paused, others):
        story(bed)
    test("the server saw nothing wrong", not bed.server.bugs, bed.server.bugs)
    bed.world.close()
    bed.other.close()
    end()


if __name__ == "__main__":
    main()
