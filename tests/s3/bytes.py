#!/usr/bin/env python3
"""bytes - each byte of a small checkpoint in a bucket is another one, in turn.

Goal: whichever byte of a shard or of the manifest it is, a load from the bucket and verify find it
and name the object, and nothing but the right values is ever given; the ckptd with the local copy
mends the object to the byte. Method: two shards of a few KiB in the strict server (lib_server.py),
whose objects are changed in its memory. The package loads, without a ckptd, and ckpt-cli verifies.

With TORTURE=1 every byte is loaded and verified, and every 64th is repaired. Else one of LOADS,
VERIFIES and MENDS, from where SEED says.
"""

import os
import random
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests/integration"))
sys.path.insert(0, os.path.join(ROOT, "clients/python/src"))
sys.dont_write_bytecode = True

from lib_server import Server  # noqa: E402
from lib_store import World, take_libckpt, wait_until  # noqa: E402
from lib_tap import need, run  # noqa: E402

need("numpy")
import numpy  # noqa: E402

take_libckpt()
import holdfast  # noqa: E402
from tier import drained  # noqa: E402

TORTURE = bool(os.environ.get("TORTURE"))
SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))
LOADS, VERIFIES, MENDS = (1, 1, 64) if TORTURE else (53, 997, 3001)
FAR = "s3://checkpoints/far"
OPTIONS = "--tier.store", FAR, "--tier.quiet", "false"
RANK = """
import sys, numpy, holdfast
server, rank, attempt = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
values = numpy.arange(512, dtype=numpy.float32)
with holdfast.Client(server, "small", rank, 2) as client:
    print(client.start(attempt or None), flush=True)
    client.save(1, {"a": holdfast.Slice(values[256 * rank:][:256], (512,), (256 * rank,))}
                ).wait(timeout=60)
"""
VALUES = numpy.arange(512, dtype=numpy.float32)


class Bed:
    def __init__(self):
        self.server = Server()
        os.environ.update(self.server.environment, HOLDFAST_S3_RETRY_S="10")
        self.world = World()
        self.world.launch(*OPTIONS)
        first = self.rank(0, 0)
        ranks = [first, self.rank(1, int(first.stdout.readline()))]
        assert [rank.wait(120) for rank in ranks] == [0, 0], self.world.log()
        wait_until(drained(self.world), "the drain")
        self.world.stop()
        self.good = {key: one.data for key, one in self.server.objects.items() if "/step-" in key
                     and key.endswith((".safetensors", "/manifest.json"))}
        assert len(self.good) == 3, self.server.objects.keys()
        self.chance = random.Random(SEED)

    def rank(self, number, attempt):
        return subprocess.Popen([sys.executable, "-c", RANK, self.world.server, str(number),
                                 str(attempt)], stdout=subprocess.PIPE, text=True,
                                env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)))

    def put(self, key, data):
        with self.server.lock:
            self.server.objects[key].data = data

    def is_good(self, key):
        with self.server.lock:  # it is not there while it is replaced
            return key in self.server.objects and self.server.objects[key].data == self.good[key]

    def is_mended(self, key):
        """And released from quarantine, which ckptd ends after the last object that it puts."""
        with self.server.lock:
            is_quarantined = any("/quarantine/" in other for other in self.server.objects)
        return self.is_good(key) and not is_quarantined

    def changed(self, stride):
        """Changes each byte in turn while the caller checks: key and place."""
        for key, data in sorted(self.good.items()):
            for at in range(self.chance.randrange(stride), len(data), stride):
                other = bytes([data[at] ^ self.chance.randrange(1, 256)])
                self.put(key, data[:at] + other + data[at + 1:])
                yield key, at
                self.put(key, data)

    def close(self):
        self.server.close()
        self.world.close()


def load():
    with holdfast.open(f"{FAR}/small@1") as found:
        return found["a"][...]


def each_is_mended_from_the_local_copy_to_the_byte(bed):
    count = 0
    bed.world.launch(*OPTIONS, "--scrub.start_ms", "1", "--scrub.rate", "1GiB",
                     "--scrub.period_s", "0")
    for key, at in bed.changed(MENDS):
        count += 1
        wait_until(lambda: bed.is_mended(key), lambda: (key, at, bed.world.status()["far_scrub"],
                                                      bed.world.log()[-2000:]))
    # Not `count`: two checks may find one byte, and one repair two, when each ends late.
    assert bed.world.status()["tier"]["mended"] > 0, bed.world.log()
    read = bed.world.status()["far_scrub"]["checkpoints_read"]
    wait_until(lambda: bed.world.status()["far_scrub"]["checkpoints_read"] > read + 1 and
               all(bed.is_mended(key) for key in bed.good), bed.world.log)
    print(f"# SEED={SEED}, {count} bytes")
    bed.world.stop()
    code, out, err = bed.world.cli("verify", "--store", FAR, "small@1")
    assert code == 0, (out, err, bed.world.log()[-2000:])


def verify_finds_each_and_names_the_object(bed):
    count, bad = 0, []
    for key, at in bed.changed(VERIFIES):
        count += 1
        code, out, err = bed.world.cli("verify", "--store", FAR, "small@1")
        name = "manifest" if "manifest" in key else os.path.basename(key)
        if code == 0 or name not in out + err:
            bad.append((name, at, code, out + err))
    print(f"# SEED={SEED}, {count} bytes")
    assert not bad, (len(bad), bad[:20])


def a_load_finds_each_and_names_the_object(bed):
    assert numpy.array_equal(load(), VALUES)
    count, bad = 0, []
    for key, at in bed.changed(LOADS):
        count += 1
        name = "manifest" if "manifest" in key else f"shard {int(key[-26:-21]) - 1}"
        try:
            is_right = numpy.array_equal(load(), VALUES)
            bad.append((key, at, "it was loaded: values are " + ("right" if is_right else "WRONG")))
        except holdfast.HoldfastError as error:
            if name not in str(error) and os.path.basename(key)[:11] not in str(error):
                bad.append((key, at, str(error)))
    print(f"# SEED={SEED}, {count} bytes")
    assert not bad, (len(bad), bad[:20])


# The library removes the keys from this process' environment, so child processes are started first.
TESTS = [each_is_mended_from_the_local_copy_to_the_byte, verify_finds_each_and_names_the_object,
         a_load_finds_each_and_names_the_object]

if __name__ == "__main__":
    bed = Bed()
    try:
        good = run(TESTS, bed)
    finally:
        bed.close()
    sys.exit(0 if good else 1)
