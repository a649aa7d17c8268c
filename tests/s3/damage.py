#!/usr/bin/env python3
"""damage - a byte of an object in a bucket of a real server, Ceph's RADOS gateway, is another one.

Goal: whichever byte of a shard or of the manifest it is, verify and a load on a machine that has
nothing but the bucket find it and name it, and load nothing of it; the ckptd that has a whole local
copy finds it by its scrub and mends it, to the byte, and the quarantine is lifted. Method: the real
programs; the object is fetched, changed and put by curl, with curl's own signature.
"""

import contextlib
import os
import random
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

import lib_rgw  # noqa: E402
import lib_tap  # noqa: E402
from lib_store import World, wait_until  # noqa: E402
from mend import read  # noqa: E402
from tier import drained, tier_of  # noqa: E402

SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))
FAR = "s3://checkpoints/far"
OPTIONS = "--tier.store", FAR, "--tier.quiet", "false"


class Bed:
    def __init__(self, gateway):
        self.gateway = gateway
        self.world, self.fresh = World(), World()
        self.world.start(*OPTIONS)
        self.world.save_one(1)
        wait_until(drained(self.world), "the drain")
        self.run = self.world.listed()[0]["run"]
        self.world.stop()
        self.folder = next(name for name in os.listdir(os.path.join(self.world.store, self.run))
                           if name.startswith("step-"))

    def curl(self, name, *options):
        url = f"{self.gateway.endpoint}/checkpoints/far/{self.run}/{self.folder}/{name}"
        return subprocess.run(
            ["curl", "-s", "-f", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user",
             f"{self.gateway.access_key}:{self.gateway.secret_key}", "-H",
             "x-amz-content-sha256: UNSIGNED-PAYLOAD", *options, url],
            check=True, capture_output=True, timeout=60).stdout

    def object(self, name):
        """None while it is being replaced."""
        try:
            return self.curl(name)
        except subprocess.CalledProcessError:
            return None

    def change(self, name, offset):
        data = bytearray(self.object(name))
        data[offset] ^= 0x10
        path = os.path.join(self.world.folder, "changed")
        with open(path, "wb") as file:
            file.write(data)
        self.curl(name, "-T", path)

    def verify(self):
        code, out, err = self.world.cli("verify", "--store", FAR, f"{self.run}@1")
        return code, out + err

    def load_alone(self):
        """On a machine that has nothing but the bucket; its exit code, and what was said."""
        before = len(self.fresh.log()) if self.fresh.process else 0
        self.fresh.start(*OPTIONS)
        done = read(self.fresh)
        self.fresh.stop()
        shutil.rmtree(self.fresh.store)
        return done.returncode, done.stderr + self.fresh.log()[before:]

    def close(self):
        self.world.close()
        self.fresh.close()


def is_whole(bed, name, before):
    tier = tier_of(bed.world)
    return bed.object(name) == before and tier["mended"] == 1 and tier["now"] is None


def damaged(bed, name, offset):
    before = bed.object(name)
    bed.change(name, offset)
    word = "manifest" if name == "manifest.json" else name.removesuffix(".safetensors")
    code, said = bed.verify()
    test = f"byte {offset} of {name}"
    lib_tap.test(f"{test}: verify finds it and names it", code != 0 and word in said, (code, said))
    code, said = bed.load_alone()
    lib_tap.test(f"{test}: a load finds it and names it", code != 0 and word in said, (code, said))
    bed.world.start(*OPTIONS, "--scrub.start_ms", "1", "--scrub.rate", "1GiB", "--scrub.period_s",
                    "0")
    wait_until(lambda: is_whole(bed, name, before),
               lambda: (tier_of(bed.world), bed.world.status()["far_scrub"],
                        bed.world.log()[-3000:]))
    bed.world.stop()
    code, said = bed.verify()
    loaded = bed.load_alone()
    lib_tap.test(f"{test}: it is mended from the local copy, to the byte, and loads",
                 code == 0 and loaded[0] == 0, (code, said, loaded))


def tell(_, gateway):
    print(f"# SEED={SEED}")
    chance = random.Random(SEED)
    os.environ.update(gateway.environment)
    with contextlib.closing(Bed(gateway)) as bed:
        shard = "shard-00002-of-00002.safetensors"
        size = len(bed.object(shard))
        for offset in (0, chance.randrange(4096, size - 8192), size - 1):
            damaged(bed, shard, offset)
        damaged(bed, "manifest.json", chance.randrange(len(bed.object("manifest.json"))))
    return lib_tap.end()


if __name__ == "__main__":
    sys.exit(lib_rgw.main(tell))
