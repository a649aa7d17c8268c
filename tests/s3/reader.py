#!/usr/bin/env python3
"""reader - libckpt and holdfast on a bucket, without ckptd.

Goal: a checkpoint in a bucket opens as one in a directory does: lists, metadata, lazy tensors,
whole and in slices, bit for bit. A slice reads only the blocks that hold it, by ranged GETs, and
nothing of other shards. A damaged byte is named and never returned. A follower continues with new
checkpoints, gives none in part, and skips damage. A wrong key, run or bucket gives one line.
Method: a ckptd saves, ckpt-cli copies to the strict server of the tests, the package reads.
"""

import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests/integration"))
sys.path.insert(0, os.path.join(ROOT, "clients/python/src"))
sys.dont_write_bytecode = True

from lib_drive import environment  # noqa: E402
from lib_server import Fault, Object, Server  # noqa: E402
from lib_store import CLI, World, logged, take_libckpt  # noqa: E402
from lib_tap import need, run  # noqa: E402

need("numpy")
import numpy  # noqa: E402

take_libckpt()
import holdfast  # noqa: E402

MIB = 1 << 20
ROWS = 24 << 10  # of 1 KiB: 24 MiB
RANKS = """
import sys, numpy, holdfast
server, rank, attempt = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
big = numpy.arange(256 * %d, dtype=numpy.uint32).reshape(-1, 256)
half = len(big) // 2
with holdfast.Client(server, "wide", rank, 2) as client:
    print(client.start(attempt or None), flush=True)
    for step in (1, 2):
        client.save(step, {"big": holdfast.Slice(big[half * rank:][:half] + step, big.shape,
                                                 (half * rank, 0)),
                           "small": numpy.float32(step)}, {"epoch": step}).wait(timeout=60)
""" % ROWS


class Bed:
    """A directory with two checkpoints of two shards, and a bucket that has them, too."""

    def __init__(self):
        self.server, self.read = Server(), 0
        self.world = World()
        self.world.launch("--memory.pool_bytes", "128MiB")
        first = self.rank(0, 0)
        ranks = [first, self.rank(1, int(first.stdout.readline()))]
        assert [rank.wait(120) for rank in ranks] == [0, 0], self.world.log()
        self.world.stop()
        self.cli("cp", "--store", self.world.store, "wide", "s3://checkpoints/models:wide")
        get = self.server.get
        self.server.get = lambda request: self.counted(get(request), request)

    def rank(self, number, attempt):
        return subprocess.Popen([sys.executable, "-c", RANKS, self.world.server, str(number),
                                 str(attempt)], stdout=subprocess.PIPE, text=True,
                                env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)))

    def counted(self, answer, request):
        self.read += len(answer.body) if request.command == "GET" else 0
        return answer

    def cli(self, *arguments):
        done = subprocess.run([CLI, *map(str, arguments)], capture_output=True, text=True,
                              timeout=60, env=environment(self.server.environment))
        assert done.returncode == 0, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def use(self, settings):
        for name in list(os.environ):
            if name.startswith(("AWS_", "HOLDFAST_S3_")):
                del os.environ[name]
        os.environ.update(settings, HOLDFAST_S3_RETRY_S="10", HOLDFAST_S3_STALL_S="2")

    def close(self):
        self.server.close()
        self.world.close()


def big(step):
    return numpy.arange(256 * ROWS, dtype=numpy.uint32).reshape(-1, 256) + numpy.uint32(step)


def check_reads(store):
    """All that the package does with a store."""
    with holdfast.Client(holdfast.store_address(store), "wide") as client:
        assert [(info.step, info.durability) for info in client.list()] == [
            (2, "bucket"), (1, "bucket")]
        assert {info.run for info in client.list(all_runs=True)} == {"wide"}
    with holdfast.open(f"{store}/wide@1") as found:
        assert (found.step, found.state, set(found)) == (1, {"epoch": 1}, {"big", "small"})
        assert numpy.array_equal(found["big"][...], big(1)) and found["small"][()] == 1
    with holdfast.open("wide", store=store) as found:  # the newest
        assert found.step == 2
        middle = slice(ROWS // 2 - 3, ROWS // 2 + 3)  # of both shards
        assert numpy.array_equal(found["big"][middle, 5:9], big(2)[middle, 5:9])


def lists_tensors_and_slices_are_those_that_were_saved(bed):
    bed.use(bed.server.environment)
    check_reads("s3://checkpoints/models")
    assert not bed.server.bugs, bed.server.bugs


def a_slice_costs_the_blocks_that_hold_it(bed):
    bed.use(bed.server.environment)
    with holdfast.open("s3://checkpoints/models/wide@2") as found:
        begun, bed.read = len(bed.server.log), 0
        row = ROWS // 2 - 9  # at the end of the first shard
        assert numpy.array_equal(found["big"][row], big(2)[row])
        asked = [entry for entry in bed.server.log[begun:] if "shard-" in entry[1]]
        assert bed.read < 2 * MIB, bed.read
        assert asked and all("shard-00001" in path for _, path, _ in asked), asked


def a_damaged_byte_is_named_and_never_given(bed):
    bed.use(bed.server.environment)
    key = next(key for key in bed.server.objects if "step-00000002" in key and "shard-00002" in key)
    good = bed.server.objects[key].data
    at = len(good) // 2
    bed.server.objects[key].data = good[:at] + bytes([good[at] ^ 1]) + good[at + 1:]
    try:
        with holdfast.open("s3://checkpoints/models/wide@2") as found:
            assert numpy.array_equal(found["big"][:9], big(2)[:9])  # another shard
            try:
                found["big"][...]
                raise AssertionError("damage was given")
            except holdfast.CorruptError as error:
                assert "shard 1 of wide@2" in str(error), error
    finally:
        bed.server.objects[key].data = good


def what_is_not_there_is_one_line(bed):
    bed.use(bed.server.environment)
    for spec, kind in (("s3://checkpoints/models/none@1", holdfast.NotFoundError),
                       ("s3://checkpoints/models/wide@9", holdfast.NotFoundError),
                       ("s3://nobucket/models/wide@1", holdfast.HoldfastError)):
        try:
            holdfast.open(spec)
            raise AssertionError(spec)
        except kind as error:
            assert "\n" not in str(error), error
    with holdfast.Client("s3://checkpoints/models", "wide") as client:
        try:
            client.save(3, {"a": numpy.zeros(1)})
            raise AssertionError("a save into a bucket")
        except holdfast.InvalidError as error:
            assert "read-only" in str(error), error


def a_list_asks_twice_for_a_checkpoint_and_tells_what_lies_beside_it(bed):
    store = ("--store", "s3://checkpoints/models")
    bed.cli("pin", "wide@1", *store, "--note", "kept")
    bed.cli("verify", "wide@2", *store)
    begun = len(bed.server.log)
    newer, older = json.loads(bed.cli("list", *store, "--json"))
    asked = [path.split("?")[0] for method, path, _ in bed.server.log[begun:] if "step-" in path]
    assert (older["pinned"], older["pin_note"], newer["pinned"]) == (True, "kept", False)
    assert newer["verified"]["damages"] == 0 and "verified" not in older, (newer, older)
    assert sorted(path.split("/")[-1] for path in asked) == [
        "manifest.json"] * 2 + ["step-00000001-a0001"] + ["verified.json"] * 2, asked
    bed.cli("unpin", "wide@1", *store)


def put_first(bed, prefix):
    """Step 1 lies there; returns the objects of step 2, which was saved later, by their keys."""
    later = {}
    for key, one in list(bed.server.objects.items()):
        if key.startswith("models/wide/"):
            place = later if "step-00000002" in key else bed.server.objects
            place[prefix + key[len("models"):]] = one
    return later


def nothing_behind(store, after):
    """The messages while no later version comes."""
    with logged() as told:
        try:
            raise AssertionError(next(holdfast.follow("wide", store=store, after=after, every=0.02,
                                                      timeout=0.5)).info)
        except holdfast.TimeoutError:
            return told


def is_manifest(key):
    return key.endswith("manifest.json")


def follow_goes_on_in_a_bucket_and_gives_nothing_half(bed):
    """Step 2 comes shards first, then whole, while the server fails for a moment."""
    bed.use(bed.server.environment)
    store, later = "s3://checkpoints/flow", put_first(bed, "flow")
    flow = holdfast.follow("wide", {"big": slice(5, 7)}, store=store, every=0.02, timeout=60)
    first = next(flow)
    assert first.step == 1 and numpy.array_equal(first.weights["big"], big(1)[5:7])
    bed.server.objects.update((key, one) for key, one in later.items() if not is_manifest(key))
    assert nothing_behind(store, (1, 1)) == []
    bed.server.fault = Fault(number=2, what="503", times=3)
    bed.server.objects.update(later)
    second = next(flow)
    assert second.step == 2 and numpy.array_equal(second.weights["big"], big(2)[5:7])
    assert bed.server.fault.done == 3
    bed.server.fault = None
    flow.close()


def a_damaged_version_in_a_bucket_is_a_warning(bed):
    bed.use(bed.server.environment)
    store, later = "s3://checkpoints/flow-damaged", put_first(bed, "flow-damaged")
    key, = (key for key in later if is_manifest(key))
    bed.server.objects.update(later)
    bed.server.objects[key] = Object(later[key].data[:-40], "x", {}, later[key].changed)
    told = nothing_behind(store, (1, 1))
    assert len(told) == 1 and "wide@2-a1 is skipped" in told[0], told
    bed.server.objects.pop(key)
    flow = holdfast.follow("wide", store=store, every=0.02, timeout=60)
    assert next(flow).step == 1
    flow.close()


TESTS = [lists_tensors_and_slices_are_those_that_were_saved, a_slice_costs_the_blocks_that_hold_it,
         a_damaged_byte_is_named_and_never_given, what_is_not_there_is_one_line,
         a_list_asks_twice_for_a_checkpoint_and_tells_what_lies_beside_it,
         follow_goes_on_in_a_bucket_and_gives_nothing_half,
         a_damaged_version_in_a_bucket_is_a_warning]

if __name__ == "__main__":
    bed = Bed()
    try:
        passed = run(TESTS, bed)
    finally:
        bed.close()
    sys.exit(not passed)
