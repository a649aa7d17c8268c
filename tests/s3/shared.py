#!/usr/bin/env python3
"""shared - two ckptd on one bucket: neither removes checkpoints that the other leases or pins.

Goal: a pin lies in the bucket, whether it was made before the drain, during it, or after it. Every
ckptd lists it and its retention keeps the checkpoint. A pin that the bucket refused is not reported
as made. A load from the bucket leases the checkpoint there, also when it began on the node's own
disk. The lease lasts as long as the load, however slow that is, and expires by the server's clock
after its ckptd was killed. A scan of the bucket sends many requests at once. Method: the real
programs on the strict server of the tests, which holds requests until the test releases them.
"""

import os
import shutil
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

from lib_server import Crowd, Fault, Object, Server, is_data  # noqa: E402
from lib_store import PATIENCE, SAVER, World, at_step, change, comes, wait_until  # noqa: E402
from lib_tap import end, test  # noqa: E402
from tier import drained, tier_of  # noqa: E402

LEASE_S = 5
SETTLE_S = 20
OPTIONS = ("--tier.store", "s3://checkpoints/far", "--tier.quiet", "false", "--tier.look_ms", "0")
RULES = ("--tier.keep_last", "2", "--retention.keep_last", "2", "--retention.may_remove_most",
         "true")


class Bed:
    def __init__(self):
        self.server = Server()
        os.environ.update(self.server.environment, HOLDFAST_S3_LEASE_S=str(LEASE_S),
                          HOLDFAST_S3_RETRY_S="2", HOLDFAST_S3_STALL_S=str(PATIENCE))
        self.one, self.other = World(), World()
        self.run = None
        self.gate = threading.Event()

    def close(self):
        for world in (self.one, self.other):
            world.stop()
            world.close()
        test("the strict server has no bug of its own", not self.server.bugs, self.server.bugs)

    def keys(self, *parts):
        """Of the objects whose keys have all of these."""
        with self.server.lock:
            return [key for key in self.server.objects if all(part in key for part in parts)]

    def far_steps(self):
        return sorted({int(key.split("/step-")[1][:8]) for key in self.keys("manifest.json")})

    def settled(self, *steps):
        """Those in the bucket, once they are these, or after a while."""
        comes(lambda: self.far_steps() == list(steps), SETTLE_S)
        return self.far_steps()

    def save(self, world, *steps):
        for step in steps:
            world.save_one(step)
            wait_until(drained(world), lambda: (step, tier_of(world), world.log()[-2000:]))
        self.run = self.run or world.listed()[0]["run"]

    def entry(self, world, step):
        found = [entry for entry in world.listed(*world.where) if entry["step"] == step]
        return found[0] if found else {}

    def name(self, world, step):
        return f"{self.run}@{step}-a{self.entry(world, step)['attempt']}"

    def leases(self, step):
        return self.keys("/leases/", f"step-{step:08d}")

    def lease_puts(self, step):
        """It is renewed in every third of its time."""
        return sum(command == "PUT" and "/leases/" in path and f"step-{step:08d}" in path
                   for command, path, _ in list(self.server.log))

    def hold_back(self, which):
        """Requests that match wait until let_go(), or until others are held."""
        before, gate = self.gate, threading.Event()
        self.gate = gate
        self.server.is_delayed = lambda request: which(request) and gate.wait(PATIENCE)
        self.server.delay_s = 0.001
        before.set()

    def let_go(self):
        self.gate.set()
        self.server.delay_s = 0

    def read(self, world, step, which=is_data):
        """A load that stops in the bucket, and leases the checkpoint there."""
        self.hold_back(which)
        reading = subprocess.Popen([SAVER, "read", world.server, str(step), "5000"],
                                   stderr=subprocess.PIPE, text=True)
        wait_until(lambda: self.leases(step) or reading.poll() is not None, "a lease")
        return reading


def goes_along(bed):
    one, other = bed.one, bed.other
    one.start(*OPTIONS, "--tier.every", "1000")
    bed.save(one, 1, 2)
    code, out, err = one.cli("pin", bed.name(one, 1), "--note", "for the paper", *one.where)
    test("a pin on what is not in the bucket is local, and says so",
         code == 0 and "local" in out and not bed.keys("/pins/"), (out, err))
    one.stop()
    one.start(*OPTIONS)
    wait_until(drained(one), "the drain")
    puts = [path for command, path, _ in bed.server.log if command == "PUT"]
    pin = next((i for i, path in enumerate(puts) if "/pins/step-00000001" in path), len(puts))
    manifest = next(i for i, path in enumerate(puts)
                    if "step-00000001" in path and path.endswith("manifest.json"))
    test("a checkpoint that drains takes its pin along, before it exists there",
         pin < manifest, puts)
    other.start(*OPTIONS, *RULES)
    entry = bed.entry(other, 1)
    out = other.cli("show", bed.name(other, 1), *other.where)[1]
    test("another ckptd lists the pin, and why",
         entry.get("pinned") and "for the paper" in entry["pin_note"] and
         not bed.entry(other, 2)["pinned"], (entry, out))
    bed.save(other, 3, 4, 5)
    test("and its retention honours it, in its plan",
         bed.settled(1, 4, 5) == [1, 4, 5] and "is in pins" not in other.log(),
         (bed.far_steps(), other.log()[-2000:]))


def behind_the_drain(bed):
    one, other = bed.one, bed.other
    code, out, err = one.cli("pin", bed.name(one, 4), *one.where)
    test("a pin on what is in the bucket is made there",
         code == 0 and "bucket" in out and bed.keys("/pins/", "step-00000004"), (out, err))
    bed.save(other, 6, 7)
    test("which the other's next retention honours",
         bed.settled(1, 4, 6, 7) == [1, 4, 6, 7], bed.far_steps())
    code, out, err = one.cli("unpin", bed.name(one, 4), *one.where)
    test("unpinning takes it out of the bucket",
         code == 0 and not bed.keys("/pins/", "step-00000004") and
         not bed.entry(other, 4)["pinned"], (out, err))
    bed.save(other, 8)
    test("and it goes by the rules again", bed.settled(1, 7, 8) == [1, 7, 8], bed.far_steps())


def lists_that_lag(bed):
    """The other one's saves are known here only from the bucket."""
    def steps():
        return sorted(entry["step"] for entry in bed.one.listed(*bed.one.where))

    # A list may show what the look before it found: step 6 is in the bucket no more.
    wait_until(lambda: 6 not in steps(), steps)
    before, lag = steps(), bed.server.lag
    with bed.server.lock:
        bed.server.lag, bed.server.history = 1 << 30, [{}]  # as before the first change
    bed.server.fault = Fault(1, "stale", times=1 << 30,
                             match=lambda request: "list-type" in request.parameters)
    steps()  # the look that it begins may end after it
    during, hits = steps(), bed.server.fault.done
    bed.server.fault, bed.server.lag = None, lag
    test("what a list that lags does not name stays, as its manifest is found",
         hits > 0 and during == before != [], (hits, before, during))


def not_taken(bed):
    one = bed.one
    name = bed.name(one, 8)
    bed.server.fault = Fault(1, "503", times=10**6,
                             match=lambda request: "/pins/" in request.path)
    code, out, err = one.cli("pin", name, *one.where)
    bed.server.fault = None
    test("a pin that the bucket does not take is not called made",
         code != 0 and "only on this node" in err, (code, out, err))
    code, out, err = one.cli("pin", name, *one.where)
    test("and is made by the next call", code == 0 and bed.keys("/pins/", "step-00000008"),
         (code, out, err))


def under_way(bed):
    """The drain has looked for a pin; the manifest is on its way."""
    one = bed.one
    bed.hold_back(lambda request: request.command == "PUT" and "step-00000009" in request.path and
                  request.path.endswith("manifest.json"))
    one.save_one(9)
    wait_until(lambda: any("step-00000009" in path and path.endswith("manifest.json")
                           for command, path, _ in bed.server.log if command == "PUT"),
               "the manifest's request")
    code, out, err = one.cli("pin", bed.name(one, 9), *one.where)
    bed.let_go()
    wait_until(drained(one), "the drain")
    test("a pin that is made while its checkpoint drains gets there, too",
         code == 0 and bed.keys("/pins/", "step-00000009"), (code, out, err))
    for step in (8, 9):
        one.cli("unpin", bed.name(one, step), *one.where)


def while_it_loads(bed):
    """`one` loads slowly a checkpoint that the rules of `other` remove."""
    one, other = bed.one, bed.other
    one.stop()
    shutil.rmtree(one.store)
    one.start(*OPTIONS)
    bed.save(other, 10, 11)
    bed.entry(one, 10)  # the scan is over: the next request for that manifest is the load's
    reading = bed.read(one, 10, lambda request: request.command == "GET" and
                       "step-00000010" in request.path and request.path.endswith("manifest.json"))
    test("a load from the bucket leases the checkpoint there, before it reads the manifest",
         bed.leases(10), bed.keys("/leases/"))
    bed.hold_back(is_data)
    bed.save(other, 12, 13)
    renewed = bed.lease_puts(10)
    wait_until(lambda: bed.lease_puts(10) >= renewed + 4, one.log)  # longer than it lasts
    bed.save(other, 14)
    test("what is being loaded stays, however long that takes",
         bed.settled(1, 10, 13, 14) == [1, 10, 13, 14], bed.far_steps())
    bed.let_go()
    said = reading.communicate(timeout=PATIENCE)[1]
    wait_until(lambda: not bed.leases(10), lambda: bed.keys("/leases/"))
    test("and is loaded whole", reading.returncode == 0, (said, one.log()[-2000:]))
    bed.save(other, 15)
    test("behind the load it goes", bed.settled(1, 14, 15) == [1, 14, 15], bed.far_steps())


def killed(bed):
    one, other = bed.one, bed.other
    reading = bed.read(one, 14)
    one.process.kill()
    one.process.wait()
    bed.let_go()
    reading.communicate(timeout=PATIENCE)
    left = bed.leases(14)
    bed.server.clock_s += LEASE_S + 1
    bed.save(other, 16, 17)
    test("the lease of a ckptd that was killed expires by the server's clock",
         left and bed.settled(1, 16, 17) == [1, 16, 17], (left, bed.far_steps()))
    ahead = other.status()["tier"]["clock_ahead_seconds"]
    test("which status tells", abs(ahead - bed.server.clock_s) <= 1, (ahead, bed.server.clock_s))


def began_on_the_disk(bed):
    one = bed.one
    one.start(*OPTIONS)
    subprocess.run([SAVER, "load", one.server, "2", "1", "17"], check=True, timeout=PATIENCE)
    wait_until(lambda: "local" in bed.entry(one, 17)["tiers"], lambda: bed.entry(one, 17))
    one.stop()
    folder = os.path.join(one.store, bed.run)
    step = next(name for name in os.listdir(folder) if name.startswith("step-00000017"))
    shard = next(name for name in os.listdir(os.path.join(folder, step)) if "shard-00001" in name)
    path = os.path.join(folder, step, shard)
    change(path, os.path.getsize(path) // 2)
    one.start(*OPTIONS)
    reading = bed.read(one, 17)
    leased = bed.leases(17)
    bed.let_go()
    said = reading.communicate(timeout=PATIENCE)[1]
    test("a load that goes on in the bucket, as the disk's copy is damaged, leases it there",
         leased and reading.returncode == 0, (leased, said, one.log()[-2000:]))


def looked_at_together(bed):
    """By a ckptd that knows none of them; every second is pinned."""
    steps, connections = range(101, 125), 6
    server, made = bed.server, bed.keys("far/", "manifest.json")[0]

    def put(key, data):
        with server.lock:
            server.objects[key] = Object(data, "x", {}, server.objects[made].changed)

    def directory(kind, step):
        return f"looked/{bed.run}/{kind}step-{step:08d}-a0001"

    for step in steps:
        put(directory("", step) + "/manifest.json", at_step(server.objects[made].data, step))
        if step % 2:
            put(directory("pins/", step), b"of %d" % step)

    def listed(*pinned):
        found = [(entry["step"], entry["durability"], entry.get("pin_note", ""))
                 for entry in world.listed(*world.where)]
        return found == [(step, "bucket", f"of {step}" if step in pinned else "")
                         for step in reversed(steps)] or found

    crowd = Crowd(connections, lambda request: request.key.endswith("manifest.json"))
    server.delay_s, server.is_delayed = 0.001, crowd
    world = World()
    world.start("--tier.store", "s3://checkpoints/looked", "--tier.connections", str(connections),
                "--tier.look_ms", "0")
    found = listed(*steps[::2])
    server.delay_s = 0
    test("a look at the bucket reads many checkpoints and pins at once, and lists all in order",
         found is True and crowd.most == connections, (crowd.most, found, world.log()[-2000:]))
    put(directory("pins/", 102), b"of 102")
    begun = len(server.log)
    found = listed(102, *steps[::2])
    asked = [path for _, path, _ in server.log[begun:] if path.endswith("manifest.json")]
    test("the next finds a new pin, and reads no manifest again", found is True and not asked,
         (found, asked))
    world.stop()
    world.close()


def main():
    bed = Bed()
    for story in (goes_along, behind_the_drain, lists_that_lag, not_taken, under_way,
                  while_it_loads, killed, began_on_the_disk, looked_at_together):
        story(bed)
    bed.close()
    end()


if __name__ == "__main__":
    main()
