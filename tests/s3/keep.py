#!/usr/bin/env python3
"""keep - shards that a load fetches from a bucket are kept on the node's disk, and fetched once.

Goal: a node with an empty disk resumes from the bucket, and then has the checkpoint itself: listed
as local, whole, equal to the byte. Each byte was fetched once. A node that has part of it fetches
only the missing part. One without space reports it and continues without a copy. A ckptd that is
killed meanwhile leaves nothing that counts as a checkpoint. A drain asks once whether the bucket
has a shard, and Status counts each request by its method. Method: the real programs on the strict
server of the tests, which counts the requests, and the bytes that it gave of each object.
"""

import collections
import glob
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

from lib_server import TABLES, Server, is_data  # noqa: E402
from lib_store import PATIENCE, SAVER, World, change, comes, wait_until  # noqa: E402
from lib_tap import end, test  # noqa: E402
from mend import contents  # noqa: E402
from tier import drained  # noqa: E402

OPTIONS = "--tier.store", "s3://checkpoints/far", "--tier.quiet", "false"
RANKS = 6
LISTS = re.compile("[?&](list-type|uploads|uploadId)=")


def kinds(log):
    """As ckptd counts them: when it probes a bucket that is not open yet."""
    return collections.Counter(
        "list" if command == "GET" and LISTS.search(path) else command.lower()
        for command, path, _ in log if ".holdfast.probe" not in path)


class Bed:
    def __init__(self):
        self.server = Server()
        os.environ.update(self.server.environment)
        self.world = World()
        self.world.start(*OPTIONS)
        self.world.save_one(1, ranks=RANKS)
        wait_until(drained(self.world), "the drain")
        self.drain = list(self.server.log)
        self.is_counted = comes(lambda: self.counted() == kinds(self.server.log))
        self.requests = self.asked()
        self.run = self.world.listed()[0]["run"]
        self.world.stop()
        self.files = sorted(glob.glob(f"{self.world.store}/{self.run}/step-*/shard-*") +
                            glob.glob(f"{self.world.store}/{self.run}/step-*/manifest.json"))
        self.before = contents(self.files)

    def asked(self):
        return [row for row in self.world.status()["tier_io"]
                if row["tier"] == "far" and "bytes" not in row]

    def counted(self):
        return {row["op"]: row["operations"] for row in self.asked()}

    def forget(self):
        shutil.rmtree(self.world.store)

    def resume(self, *options):
        """Ranks load the newest. Returns the bytes that the bucket sent of each file since ckptd
        started."""
        self.server.read.clear()
        self.world.start(*OPTIONS, *options)
        return self.load()

    def load(self):
        return subprocess.run([SAVER, "load", self.world.server, "2", "1", "1"],
                              capture_output=True, text=True, timeout=PATIENCE)

    def given(self):
        return {os.path.basename(key): count for key, count in self.server.read.items()}

    def tiers(self):
        return [entry["tiers"] for entry in self.world.listed(*self.world.where)]

    def is_kept(self):
        return (not self.world.status()["mending"]["now"] and self.tiers() == ["local,far"] and
                all(map(os.path.exists, self.files)))


def fetched_once(bed, given, names):
    """Of these files every byte, once; of the other shards at most the bytes that verify the local
    ones."""
    for path, data in bed.before.items():
        name = os.path.basename(path)
        least = len(data) if name in names else 0
        if name.startswith("shard") and not least <= given.get(name, 0) <= least + TABLES:
            return False
    return True


def sent(bed):
    """For an object that is not in the bucket its creation finds that; no request checks it
    before."""
    looks = [path for command, path, _ in bed.drain
             if "/shard-" in path and command in ("HEAD", "GET") and "uploads=" not in path]
    test("a drain looks for a shard once before it sends it",
         len(looks) == len(set(looks)) == RANKS, looks)
    test("Status counts what the bucket was asked, by method, and says how long it took",
         bed.is_counted and {"get", "put", "list"} <= {row["op"] for row in bed.requests} and
         all(0 < row["p50_seconds"] <= row["p99_seconds"] and
             row["seconds"]["count"] == row["operations"] for row in bed.requests),
         (bed.requests, kinds(bed.drain)))


def empty_node(bed):
    bed.forget()
    loaded = bed.resume()
    wait_until(bed.is_kept, lambda: (bed.tiers(), bed.world.log()[-3000:]))
    names = {os.path.basename(path) for path in bed.files}
    test("an empty node loads from the bucket and keeps what it loaded, to the byte",
         loaded.returncode == 0 and contents(bed.files) == bed.before, loaded)
    test("each byte came once", fetched_once(bed, bed.given(), names), bed.given())
    bed.world.stop()
    test("what was kept verifies, and no mark is left",
         bed.world.cli("verify", "--store", bed.world.store, bed.run)[0] == 0 and
         not glob.glob(f"{bed.world.store}/{bed.run}/step-*/unfinished"))
    loaded = bed.resume()
    test("the next start loads it from its disk",
         loaded.returncode == 0 and not any(name.startswith("shard") for name in bed.given()),
         (loaded, bed.given()))
    bed.world.stop()


def reader(bed):
    """No rank: a tool that reads a checkpoint does not fill the disk."""
    bed.forget()
    bed.world.start(*OPTIONS)
    read = subprocess.run([SAVER, "read", bed.world.server, "1", "5000"], capture_output=True,
                          text=True, timeout=PATIENCE)
    test("what a reader alone loads is not kept", read.returncode == 0 and
         bed.tiers() == ["far"] and not bed.world.status()["mending"]["now"], (read, bed.tiers()))
    bed.world.stop()


def part_is_missing(bed):
    """A shard is gone, or damaged, when a load reaches it; it is the first one, so all others are
    read after that."""
    lost = next(path for path in bed.files if "shard-00001" in path)
    bed.server.delay_s, bed.server.is_delayed = 0.5, is_data  # all ask meanwhile
    for what in ("gone", "damaged"):
        bed.server.read.clear()
        bed.world.start(*OPTIONS, "--storage.queue_depth", "1")
        if what == "gone":
            os.remove(lost)
        else:
            change(lost, os.path.getsize(lost) // 2)
        loaded = bed.load()
        wait_until(lambda: bed.is_kept() and bed.world.status()["mending"]["mended"] == 1,
                   lambda: (bed.tiers(), bed.world.log()[-3000:]))
        test(f"with a shard {what} that one comes from the bucket, once, and no data else",
             loaded.returncode == 0 and contents(bed.files) == bed.before and
             fetched_once(bed, bed.given(), {os.path.basename(lost)}), (loaded, bed.given()))
        bed.world.stop()
    bed.server.delay_s = 0


def no_room(bed):
    bed.forget()
    loaded = bed.resume("--storage.usable_fraction", "0.01")
    wait_until(lambda: "is not kept on this node's disk" in bed.world.log(), bed.world.log)
    test("without room a load is served all the same, and the log says what lacks",
         loaded.returncode == 0 and bed.tiers() == ["far"] and
         "does not fit" in bed.world.log(), (loaded, bed.tiers()))
    bed.world.stop()


def killed(bed):
    """While it is fetched; the next start and load finish it."""
    bed.forget()
    bed.resume("--tier.rate", "1MiB")
    wait_until(lambda: glob.glob(f"{bed.world.store}/{bed.run}/step-*/unfinished"), "the mark")
    bed.world.process.kill()
    bed.world.process.wait()
    is_listed = bed.world.listed() != []
    loaded = bed.resume()
    wait_until(bed.is_kept, lambda: (bed.tiers(), bed.world.log()[-3000:]))
    test("what a killed ckptd had not kept is no checkpoint, and the next one keeps it",
         not is_listed and loaded.returncode == 0 and contents(bed.files) == bed.before, loaded)
    bed.world.stop()


def ended(bed):
    """While the files of shards are being opened in the bucket: no load waits for them any more."""
    bed.forget()
    bed.world.start(*OPTIONS)
    bed.server.delay_s = 1
    bed.server.is_delayed = lambda request: "shard-" in request.path and not is_data(request)
    begun = len(bed.server.log)
    with subprocess.Popen([SAVER, "load", bed.world.server, "2", "1", "1"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as ranks:
        wait_until(lambda: any("shard-" in path for _, path, _ in bed.server.log[begun:]),
                   bed.world.log)
        ranks.kill()
    code = bed.world.end()
    test("a ckptd that is told to end while it opens files in the bucket ends in order",
         code == 0, (code, bed.world.log()[-3000:]))
    bed.server.delay_s = 0


def main():
    bed = Bed()
    for story in (sent, empty_node, part_is_missing, reader, no_room, killed, ended):
        story(bed)
    test("the server saw nothing wrong", not bed.server.bugs, bed.server.bugs)
    bed.server.close()
    end()


if __name__ == "__main__":
    main()
