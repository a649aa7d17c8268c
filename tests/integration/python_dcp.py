#!/usr/bin/env python3
"""python_dcp - the calls that torch's DCP makes of holdfast.dcp, replayed without torch.

Goal: holdfast.sharded works on the items of an FSDP2, HSDP or tensor-parallel state dict: every
rank's boxes are saved as one checkpoint, each tensor from one replica, one rank writes the items
that no mesh splits, other ranks load their slices and no more; several boxes of one tensor on a
rank; changes of shape; objects; a rank that fails, and the end of the run then; rollbacks, also
beside the files of `fallback`. Method: tests/golden/dcp/calls.json, recorded and compared by
tests/interop/dcp.py. Ranks are threads, each with its own connection to a real ckptd. An element's
value follows from its tensor and its index.
"""

import ast
import doctest
import json
import os
import subprocess
import sys
import threading
import time
import zlib

from lib_store import CLI, World, logged, take_libckpt
from lib_tap import need, run, tests_of_script

need("numpy")
import numpy  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "clients/python/src"))
sys.dont_write_bytecode = True
take_libckpt()
import holdfast  # noqa: E402
from holdfast import dtypes, errors, kept, saving, sharded  # noqa: E402
from holdfast.saving import Saves  # noqa: E402
from holdfast.sharded import Item, Saver  # noqa: E402

with open(os.path.join(ROOT, "tests/golden/dcp/calls.json")) as recorded:
    RECORDED = json.load(recorded)
CALLS = RECORDED["plans"][0]["calls"]


class Ranks:
    """Threads that gather by a barrier; runs `task(rank, gather)` on each, and returns the
    results."""

    def __init__(self, count):
        self.count, self.barrier = count, threading.Barrier(count, timeout=60)
        self.given, self.results = [None] * count, [None] * count

    def gather_of(self, rank):
        def gather(value):
            self.given[rank] = value
            self.barrier.wait()
            given = list(self.given)
            self.barrier.wait()
            return given
        return gather

    def run(self, task):
        def start(rank):
            try:
                self.results[rank] = task(rank, self.gather_of(rank))
            except Exception as error:
                self.results[rank] = error
        threads = [threading.Thread(target=start, args=(rank,)) for rank in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in self.results:
            if isinstance(result, Exception):
                raise result
        return self.results


def values(name, dtype, size, offset, extent, step=1):
    """The elements of a box: each follows from its tensor, step and place in the whole."""
    at = numpy.arange(int(numpy.prod(size)), dtype=numpy.uint64).reshape(size)
    box = at[tuple(slice(low, low + length) for low, length in zip(offset, extent)) or ...]
    with numpy.errstate(over="ignore"):
        mixed = (box + numpy.uint64(zlib.crc32(name.encode()) + step)) * numpy.uint64(
            0x9e3779b97f4a7c15)
    bits = dtypes.bits(dtype)
    out = (mixed >> numpy.uint64(64 - 8 * bits.itemsize)).astype(bits).view(dtypes.to_numpy(dtype))
    return numpy.array(out)  # of a scalar, too


def same(found, wanted):
    """To the bit: the values may be NaN."""
    return found.shape == wanted.shape and found.tobytes() == wanted.tobytes()


def held_by(call, rank, step=1):
    """The items and objects of a recorded rank; those that no mesh splits differ from rank to
    rank."""
    items, objects = [], {}
    for name, kind, *box in call[rank][0]:
        if kind == "BYTE_IO":
            objects[name] = f"{name} of {rank} at {step}".encode()
            continue
        size, offset, extent, dtype = box
        shift = step if kind == "SHARD" else step + 1000 * rank
        items.append(Item(name, tuple(size), tuple(offset),
                          values(name, dtype, size, offset, extent, shift), kind == "SHARD"))
    return items, objects


def save_call(world, mesh, run_name, steps=(1,), calls=CALLS):
    ranks = Ranks(len(calls[mesh]))

    def task(rank, gather):
        saver = Saver(world.server, run_name, rank, ranks.count, gather, take_over=True)
        for step in steps:
            items, objects = held_by(calls[mesh], rank, step)
            saver.save(step, items, objects, {"mesh": mesh} if rank == 0 else None, {"r": rank})
            for item in items:
                item.tensor[...] = 1  # the copy is the save's
        saver.wait(steps[-1], timeout=30)
        saver.close()
        return saver.client.attempt

    return ranks.run(task)


def save_items(world, run_name, count, items_of):
    """One save by so many ranks, of the items of items_of(rank)."""
    def task(rank, gather):
        saver = Saver(world.server, run_name, rank, count, gather)
        saver.save(1, items_of(rank), {})
        saver.wait(1, timeout=30)
        saver.close()

    Ranks(count).run(task)


def check_whole(world, mesh, name, calls):
    assert set(save_call(world, mesh, name, calls=calls)) == {1}
    with holdfast.Client(world.server, name) as client:
        metadata = client.metadata()
        stored = sharded.tensors_of(metadata)
        assert metadata.state == {"mesh": mesh}
    with holdfast.open(name, server=world.server) as found:
        for fqn, kind, *box in calls[mesh][0][0]:
            if kind == "BYTE_IO":
                continue
            size, dtype = tuple(box[0]), box[3]
            assert stored[fqn].size == size and stored[fqn].dtype == dtype
            whole = found[fqn][...]
            writers = [rank for rank in range(len(calls[mesh]))
                       if same(whole, values(fqn, dtype, size, (0,) * len(size),
                                                          size, 1 + 1000 * rank))]
            assert writers if kind == "TENSOR" else writers == [0], (mesh, fqn, writers)


def recorded_meshes_come_back_whole(world):
    """Of each recording: of torch 2.6, whose FSDP2 needs a GPU, tensor parallelism alone."""
    assert {"2.6.0", "2.8.0", "2.15.0"} <= {one for group in RECORDED["plans"]
                                            for one in group["torch"]}
    for place, group in enumerate(RECORDED["plans"]):
        for mesh in {"fsdp", "hsdp", "fsdp+tp", "tp"} & set(group["calls"]):
            name = mesh.replace("+", "-") + (f"-{place}" if place else "")
            check_whole(world, mesh, name, group["calls"])


def recorded_loads_ask_for_their_slices(world):
    """The requests of three ranks of torch, for a save of four."""
    save_call(world, "fsdp", "asked")
    loads = CALLS["fsdp3"]
    client = holdfast.Client(world.server, "asked")
    metadata = client.metadata()
    stored = sharded.tensors_of(metadata)
    seen = {}
    for rank, (_, reads) in enumerate(loads):
        parts, checks = [], []
        for fqn, kind, offset, inner, lengths in reads:
            if kind == "BYTE_IO":
                continue
            one = stored[fqn]
            memory = numpy.zeros(lengths, dtypes.to_numpy(one.dtype))
            parts.append(one.part(offset, inner, lengths, memory.ctypes.data, memory))
            checks.append((fqn, one, [a + b for a, b in zip(offset, inner)], lengths, memory))
            seen[fqn] = seen.get(fqn, 0) + int(numpy.prod(lengths))
        client.load_parts(parts, 1)
        for fqn, one, at, lengths, memory in checks:
            if one.size and fqn != "model.seen":
                assert same(memory, values(fqn, one.dtype, one.size, at, lengths)), fqn
    assert seen["model.up.weight"] == 26 * 12  # each element once, by one of the three


def objects_come_from_one_rank_each(world):
    save_call(world, "fsdp", "objects")
    client = holdfast.Client(world.server, "objects")
    metadata = client.metadata()
    objects, abouts = sharded.read_objects(client, metadata)
    names = {name for name, kind, *_ in CALLS["fsdp"][0][0] if kind == "BYTE_IO"}
    assert set(objects) == names and len(names) > 5
    assert {raw.split(b" of ")[0].decode() for raw in objects.values()} == names
    assert sorted(about["r"] for about in abouts) == [0, 1, 2, 3]
    each = [holdfast.open("objects", server=world.server).object(f"dcp/{rank}")
            for rank in range(4)]
    assert sum(len(sharded.unpack(blob)[0]) for blob in each) == len(names)  # none twice
    broken = sharded.pack({"a": b"1"})[:-3]
    try:
        sharded.unpack(b"\xff" * 7 + broken)
        raise AssertionError("it was believed")
    except holdfast.errors.CorruptError:
        pass


def replicas_that_differ_are_told_and_not_mixed(world):
    """Of two replicas of two shards each, whose values differ: a tensor is one's, whole."""
    save_items(world, "apart", 4, lambda rank: [
        Item(name, (26, 12), (13 * (rank % 2), 0), numpy.full((13, 12), rank // 2, "float32"), True)
        for name in "abcd"])
    with holdfast.open("apart", server=world.server) as found:
        held = [numpy.unique(found[name][...]).tolist() for name in "abcd"]
        told = found.metadata.mesh["replicas_differ"]
    assert held == [[0], [1], [0], [1]], held  # and each replica wrote a half
    assert [(one["tensor"], one["offset"], one["kept"], one["differ"]) for one in told["first"]] \
        == [(name, [13 * half, 0], 2 * kept + half, [2 * (1 - kept) + half])
            for name, kept in zip("abcd", (0, 1, 0, 1)) for half in (0, 1)], told


def whole_tensors_that_differ_are_told_where_they_are_alike(world):
    """Items of one type and size are compared, like statistics of a batch norm; another is one
    rank's, and items of one rank alone are saved."""
    def items_of(rank):
        items = [Item("norm.mean", (5,), (0,), numpy.full(5, rank == 1, "float32")),
                 Item("norm.count", (), (), numpy.array(7, "int64")),
                 Item("ragged", (2 + rank,), (0,), numpy.full(2 + rank, rank, "float32"))]
        if rank == 2:
            items.append(Item("alone", (3,), (0,), numpy.arange(3, dtype="float32")))
        return items

    save_items(world, "plain", 3, items_of)
    with holdfast.open("plain", server=world.server) as found:
        mean = found["norm.mean"][...].tolist()
        assert mean in ([0] * 5, [1] * 5) and found["norm.count"][...] == 7, mean
        ragged = found["ragged"][...]
        assert (ragged == len(ragged) - 2).all(), ragged
        assert found["alone"][...].tolist() == [0, 1, 2]
        told = found.metadata.mesh["replicas_differ"]["first"]
    assert [one["tensor"] for one in told] == ["norm.mean"], told
    assert 1 in [told[0]["kept"], *told[0]["differ"]], told


def later_saves_need_no_new_description(world):
    assert set(save_call(world, "tp", "again", (1, 2, 3))) == {1}  # one attempt
    with holdfast.open("again@2", server=world.server) as found:
        size = found["model.up.weight"].shape
        assert same(found["model.up.weight"][...],
                                 values("model.up.weight", "F32", size, (0, 0), size, 2))


def several_boxes_of_a_tensor_on_one_rank(world):
    """Rows of two halves, as of fused projections: each rank has a piece of both."""
    def items_of(rank):
        items = [Item("w@13", (8, 3), (half + 2 * rank, 0),
                      values("w", "F32", (8, 3), (half + 2 * rank, 0), (2, 3)), True)
                 for half in (0, 4)]
        items += [Item("c", (6, 4, 2), (3 * rank, column, 0),
                       values("c", "F16", (6, 4, 2), (3 * rank, column, 0), (3, 1, 2)), True)
                  for column in range(4)]
        return items

    save_items(world, "boxes", 2, items_of)
    client = holdfast.Client(world.server, "boxes")
    stored = sharded.tensors_of(client.metadata())
    assert list(stored) == ["c", "w@13"] and stored["w@13"].size == (8, 3)
    assert sorted(box[0] for box in stored["w@13"].boxes) == [(0, 0), (2, 0), (4, 0), (6, 0)]
    row = numpy.zeros((1, 3), numpy.float32)
    client.load_parts([stored["w@13"].part((4, 0), (1, 0), (1, 3), row.ctypes.data, row)], 1)
    assert same(row, values("w", "F32", (8, 3), (5, 0), (1, 3)))
    held = [[0, 1, 4, 5], [0, 2]]  # another cut, of several boxes too
    into, parts = numpy.zeros((4, 2), numpy.float32), []
    for offset, inner in sharded.boxes_of(held):
        box = numpy.zeros(into[inner].shape, numpy.float32)
        parts.append((stored["w@13"].part(offset, (0, 0), box.shape, box.ctypes.data, box), inner))
    assert len(parts) == 4
    client.load_parts([part for part, _ in parts], 1)
    for part, inner in parts:
        into[inner] = part.source
    assert same(into, values("w", "F32", (8, 3), (0, 0), (8, 3))[numpy.ix_(*held)])
    with holdfast.open("boxes", server=world.server) as found:
        assert list(found) == ["c", "w%4013"], list(found)
        assert same(found["w%4013"][1:7], values("w", "F32", (8, 3), (1, 0), (6, 3)))


def types_that_are_carried_come_back_in_any_cut(world):
    """As floats under a name that says which they are; two boxes of it on each rank."""
    whole = numpy.arange(32, dtype="c8").reshape(8, 4) * (1 - 2j)
    save_items(world, "carried", 2, lambda rank: [
        Item("w@1", (8, 4), (row, 0), whole[row:row + 2], True)
        for row in (2 * rank, 2 * rank + 4)])
    client = holdfast.Client(world.server, "carried")
    stored = sharded.tensors_of(client.metadata())["w@1"]
    assert (stored.dtype, stored.size, len(stored.boxes)) == ("complex64", (8, 4), 4), stored
    into = numpy.zeros((4, 2), numpy.complex64)
    client.load_parts([stored.part((2, 0), (1, 1), (4, 2), into.ctypes.data, into)])
    assert same(into, whole[3:7, 1:3].copy())
    with holdfast.open("carried", server=world.server) as found:
        assert same(found["w%401"][...], whole), list(found)


def held_in(path):
    """{name: (shape, bytes)} of a safetensors file."""
    with open(path, "rb") as file:
        head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    return {name: (one["shape"], data[slice(*one["data_offsets"])]) for name, one in head.items()
            if name != "__metadata__"}


def files_of_ckpt_cli_have_whole_tensors_and_no_objects(world):
    """follow and export of a tensor that is stored as boxes give that tensor."""
    folder = os.path.join(world.folder, "followed")
    os.mkdir(folder)
    subprocess.run([CLI, "follow", "boxes", "--count", "1", "--output", folder, *world.where],
                   check=True, stdout=subprocess.DEVNULL, timeout=60)
    out = os.path.join(world.folder, "boxes.safetensors")
    subprocess.run([CLI, "export", "boxes", "--output", out, "--store", world.store], check=True,
                   stdout=subprocess.DEVNULL, timeout=60)
    sizes = {"w%254013": ("w", "F32", (8, 3)), "c": ("c", "F16", (6, 4, 2))}
    for path in (out, os.path.join(folder, os.listdir(folder)[0])):
        found = held_in(path)
        assert found == {name: (list(size), values(of, dtype, size, (0,) * len(size),
                                                   size).tobytes())
                         for name, (of, dtype, size) in sizes.items()}, (path, found)
    subprocess.run([CLI, "follow", "objects", "--count", "1", "--output", folder, *world.where],
                   check=True, stdout=subprocess.DEVNULL, timeout=60)
    out = os.path.join(world.folder, "objects.safetensors")
    told = subprocess.run([CLI, "export", "objects", "--output", out, "--json", "--store",
                           world.store], check=True, capture_output=True, timeout=60)
    assert json.loads(told.stdout)["objects_left_out"] == 4, told
    for path in (out, max(os.path.join(folder, name) for name in os.listdir(folder))):
        names = set(held_in(path))
        assert "model.up.weight" in names and not any("object:" in name for name in names), names


def a_change_on_one_rank_is_described_by_all(world):
    ranks = Ranks(3)

    def task(rank, gather):
        saver = Saver(world.server, "change", rank, 3, gather)
        item = Item("w", (6,), (2 * rank,), numpy.full(2, rank), True)
        for step, size in ((1, 10), (2, 12), (3, 50000), (4, 60000)):
            size = size if rank == 1 else 12
            saver.save(step, [item], {f"o{rank}": bytes(size)})
        saver.wait(4, timeout=30)
        saver.close()
        return saver.client.attempt

    attempts = ranks.run(task)
    assert attempts == [2, 2, 2], attempts  # rank 1's object outgrew its room once
    client = holdfast.Client(world.server, "change")
    for step, length in ((1, 10), (3, 50000), (4, 60000)):
        objects, _ = sharded.read_objects(client, client.metadata(step))
        assert len(objects["o1"]) == length
    assert client.metadata(2).state == {}


def ranks_that_save_different_steps_are_told(world):
    ranks = Ranks(2)

    def task(rank, gather):
        saver = Saver(world.server, "steps", rank, 2, gather)
        try:
            saver.save(5 + rank, [Item("w", (2,), (rank,), numpy.zeros(1), True)], {})
        except holdfast.errors.InvalidError as error:
            return str(error)
        finally:
            saver.close()

    assert all("[5, 6]" in said for said in ranks.run(task))


def an_attempt_that_cannot_be_taken_fails_on_every_rank(world):
    holder = holdfast.Client(world.server, "held")
    holder.save(1, {"a": numpy.zeros(1)})
    ranks = Ranks(2)

    def task(rank, gather):
        saver = Saver(world.server, "held", rank, 2, gather)
        try:
            saver.save(2, [Item("w", (2,), (rank,), numpy.zeros(1), True)], {})
        except holdfast.errors.ExistsError as error:
            return str(error)
        finally:
            saver.close()

    assert all("is being trained" in said for said in ranks.run(task))
    holder.close()


def session_of(world, name, rank=0, count=1, gather=lambda value: [value], **options):
    """A holdfast.dcp.Session without torch. Ranks are threads: each has its own name for ckptd,
    which records the steps read under it."""
    server = world.server.replace("unix:/", "unix:/" + "./" * rank)
    return Saves(name, server, Saver(server, name, rank, count, gather), gather, timeout=30,
                 **options)


def save_one(session, step, tensor=None, name="w"):
    """Logs, or raises; returns the message."""
    with logged() as said:
        tensor = numpy.zeros(4) if tensor is None else tensor
        if session.save(step, [Item(name, tensor.shape, (0,) * tensor.ndim, tensor)], {}, None,
                        None) == saving.Outcome.SAVED:
            session.finish(step)
    return said


def refused_by(kind, function):
    try:
        function()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def what_can_never_be_saved_raises_on_every_rank(world):
    """At once, though the session only logs others and one rank alone has it."""
    ranks = Ranks(2)
    bad = [("when", numpy.zeros(4, "M8[s]")), ("n" * 200, numpy.zeros(4)),
           ("deep", numpy.zeros((4,) + (1,) * 8))]

    def task(rank, gather):
        session, said = session_of(world, "never", rank, 2, gather), []
        for step, (name, tensor) in enumerate(bad, 1):
            name, tensor = (name, tensor) if rank == 1 else ("w", numpy.zeros(4))
            said.append(refused_by(errors.InvalidError,
                                   lambda: save_one(session, step, tensor, name)))
        assert save_one(session, 9) == []
        session.close()
        return said

    began = time.monotonic()
    for said in ranks.run(task):
        assert "when" in said[0] and "datetime64" in said[0], said
        assert "191" in said[1] and "nnn" in said[1] and "deep has 9 dim" in said[2], said
    assert time.monotonic() - began < 30  # a rank that went on alone would wait 60 s


def failed_saves_in_a_row_end_the_run(world):
    """While another client has the run."""
    holder = holdfast.Client(world.server, "row")
    holder.save(1, {"w": numpy.zeros(4)}).wait()
    session = session_of(world, "row", max_failures=2)
    lasting = session_of(world, "row", max_failures=0)
    assert "step 2 was not saved" in save_one(session, 2)[0]
    told = refused_by(errors.AbortedError, lambda: save_one(session, 3))
    assert "2 saves in a row" in told and "is being trained" in told and "max_failures" in told
    assert all("continues" in save_one(lasting, step)[0] for step in (2, 3, 4, 5))
    holder.close()
    assert save_one(session, 6) == []  # from here on it counts anew
    assert all("continues" in save_one(session, 6)[0] for _ in range(3))  # it is there
    lasting.saver.client.close()
    other = holdfast.Client(world.server, "row", take_over=True)
    other.start()
    told = refused_by(errors.StaleError, lambda: save_one(session, 7))
    assert "attempt" in told, told
    session.close()
    other.close()


def a_future_that_no_caller_asks_is_raised_later(world):
    session = session_of(world, "asked-for")
    bad = [Item("when", (4,), (0,), numpy.zeros(4, "M8[s]"))]
    good = [Item("w", (4,), (0,), numpy.zeros(4))]

    def save(step, items):
        staged = session.copy_later(step, items, {}, None, None)
        return staged, session.finish_later(step, staged)

    assert save(1, good)[1].result() is True
    for future in save(2, bad):
        assert isinstance(future.exception(), errors.InvalidError), future
    for place in (0, 1):  # either future reports it
        both = save(3, bad)
        refused_by(errors.InvalidError, both[place].result)
        while not both[1].done():
            time.sleep(0.01)
        assert save(4 + place, good)[1].result() is True
    staged, durable = save(6, bad)
    while not durable.done():
        time.sleep(0.01)
    refused_by(errors.InvalidError, lambda: save(7, good))
    save(8, bad)
    refused_by(errors.InvalidError, session.close)


def a_copy_in_a_thread_waits_for_what_the_caller_has_under_way(world):
    session = session_of(world, "under-way")
    array = numpy.zeros(4)

    def finish():
        array[:] = 7

    staged = session.copy_later(1, [Item("w", (4,), (0,), array)], {}, None, None, None, finish)
    assert session.finish_later(1, staged).result()
    session.close()
    with holdfast.open("under-way", server=world.server) as found:
        assert found["w"][...].tolist() == [7] * 4


def a_lost_save_is_no_true_future(world):
    holder = holdfast.Client(world.server, "untrue")
    holder.save(1, {"w": numpy.zeros(4)}).wait()
    session = session_of(world, "untrue", max_failures=3)
    with logged():
        staged = session.copy_later(2, [Item("w", (4,), (0,), numpy.zeros(4))], {}, None, None)
        assert session.finish_later(2, staged).result() is False
        session.saved[3] = saving.Outcome.SAVED  # of a copy that ckptd never commits
        assert session.finish_later(3, staged).result() is False
        session.saved[4] = saving.Outcome.SAVED
        refused_by(errors.AbortedError, session.finish_later(4, staged).result)
        assert session.keep_or_finish(5) == saving.Outcome.FILES  # where a writer can still do it
        assert session.streak.note(6, False) == 1  # which is no failure
    holder.close()
    session.close()


def a_rollback_of_ranks_takes_a_new_attempt(world):
    """Where one rank alone has read the step that they go back to; without that all raise."""
    ranks = Ranks(2)

    def task(rank, gather):
        session = session_of(world, "went-back", rank, 2, gather)
        items = [Item("w", (4,), (2 * rank,), numpy.full(2, rank), True)]
        for step in (10, 50):
            session.save(step, items, {}, None, None)
        told = refused_by(errors.GoesBackError,
                          lambda: session.save(20, items, {}, None, None))
        if rank == 1:
            session.saver.wait(10, timeout=30)
            holdfast.Client(session.server, "went-back").load({"w": numpy.zeros(4, int)}, step=10)
        gather(None)
        session.save(20, items, {}, None, None)
        session.finish(20)
        session.rollback(15)
        gather(None)
        session.save(18, items, {}, None, None)
        session.finish(18)
        session.close()
        return told, session.saver.client.attempt

    assert all("has begun step 50" in told and attempt == 3 for told, attempt in ranks.run(task))
    client = holdfast.Client(world.server, "went-back")
    assert [(info.step, info.attempt) for info in client.list()] == [
        (18, 3), (20, 2), (50, 1), (10, 1)]


def the_newest_of_ckptd_and_files_is_told_by_attempt_then_time(world):
    """Files of step 50, then a rollback to 10: step 20, which ckptd has, is the newest."""
    folder, name = os.path.join(world.folder, "kept"), "mixed"

    def keep(step, attempt, age=0.0):
        os.makedirs(kept.path_of(folder, step))
        if attempt is not None:
            kept.write_note(kept.path_of(folder, step), attempt)
        assert found(step) != (step, True)  # it is not whole
        path = os.path.join(kept.path_of(folder, step), ".metadata")
        with open(path, "wb"):
            os.utime(path, (time.time() + age, time.time() + age))

    def found(step=None):
        one = kept.find(name, world.server, folder, step)
        return one and (one.step, one.is_file)

    assert found() is None and kept.find(name, world.server, None, None) is None
    with holdfast.Client(world.server, name) as client:
        client.save(10, {"w": numpy.zeros(4)}).wait()
        keep(50, 1)
        assert found() == (50, True) and found(10) == (10, False)
        client.note_begun(50)
        client.load({"w": numpy.zeros(4)}, step=10)
        client.note_begun(15)  # files again: ckptd is still away
        client.save(20, {"w": numpy.zeros(4)}).wait()
        assert client.attempt == 2
        assert (found(), found(50)) == ((20, False), (50, True)), (found(), found(50))
        keep(60, 1)  # of the attempt before, however late
        assert found() == (20, False)
        keep(40, None, -3600)  # as an older version of the package left it
        assert found() == (20, False)
        keep(15, 3)
        assert found() == (15, True)
        keep(5, None, 3600)
        assert found() == (5, True)
        assert kept.find(name, "unix:/no/ckptd", folder, None).step == 5


def methods_of(kind):
    """{name: ast.arguments, or None of a property} of a class of holdfast.dcp, without torch."""
    with open(os.path.join(ROOT, "clients/python/src/holdfast/dcp.py"), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind)
    return {node.name: None if any(getattr(one, "id", "") == "property"
                                   for one in node.decorator_list) else node.args
            for node in found.body if isinstance(node, ast.FunctionDef)}


def takes(arguments, count, names):
    """Can a method be called with `count` arguments and these names?"""
    given = [one.arg for one in arguments.args[1:]]
    needed = given[count:len(given) - len(arguments.defaults)]
    known = given[count:] + [one.arg for one in arguments.kwonlyargs]
    return ((count <= len(given) or arguments.vararg is not None)
            and (arguments.kwarg is not None or set(names) <= set(known))
            and set(needed) <= set(names))


def methods_take_what_every_recorded_torch_gives(world):
    versions = set()
    for group in RECORDED["methods"]:
        versions.update(group["torch"])
        for ranks in group["calls"].values():
            assert len(ranks) == 2 and all(ranks)
            for kind, name, count, names, is_ours in (call for calls in ranks for call in calls):
                methods = methods_of(kind)
                assert is_ours == (name in methods), (group["torch"], kind, name)
                if is_ours and count is not None:
                    assert takes(methods[name], count, names), (group["torch"], kind, name, names)
    assert {"2.6.0", "2.8.0", "2.15.0"} <= versions, versions


def the_examples_in_the_docstrings_are_true(world):
    for module in (sharded, saving, kept):
        result = doctest.testmod(module)
        assert result.attempted > 0 and result.failed == 0, (module, result)


if __name__ == "__main__":
    bed = World()
    bed.start("--memory.pool_bytes", "256MiB", "--limits.takeover_ms", "200")
    passed = run(tests_of_script(*sys.argv[1:]), bed)
    bed.close()
    sys.exit(not passed)
