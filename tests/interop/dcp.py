#!/usr/bin/env python3
"""dcp - torch.distributed.checkpoint through ckptd (holdfast.dcp), by the torch from PyPI.

Goal: a state that FSDP2, HSDP, tensor parallel and both together save by dcp.save and
dcp.async_save loads on any other mesh, bit for bit, with optimizer and Python objects. A copied
save survives kill -9. No pickle is loaded without request. torch makes the calls that
tests/integration/python_dcp.py replays without it. Saves that fail: dcp_failures.py. Method: gloo
on the CPU with 2, 3 and 4 processes and a real ckptd. The whole state of one mesh, gathered by
torch itself, is the reference. With --record the recorded calls are rewritten. Words on the command
line choose tests by their names. lib_overlay.py: the DCP of an older torch.
"""
import doctest
import inspect
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

from lib_dcp import ROOT, end, job, make, spoil, state_of, torch, whole
import lib_calls
from lib_streams import OnDevice, Queued
from lib_store import CLI, World, change, logged
from lib_tap import Skip, run
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

import holdfast
import holdfast.dcp
from holdfast import pinned
from holdfast.arrays import Part

FOLDER = os.path.join(ROOT, "tests/golden/dcp/folder")
KILLS = int(os.environ.get("KILLS", "4"))
OPTIONS = ("--memory.pool_bytes", "512MiB", "--retention.keep_last", "8")


def session(server, name, **options):
    return holdfast.dcp.Session(name, server, take_over=True, **options)


# ---- the ranks ----


def save_on(rank, mesh, server, name, reference):
    model, optimizer = make(mesh)
    state = state_of(model, optimizer)
    keep = session(server, name)
    dcp.save(state, storage_writer=keep.writer(1, {"from": mesh}))
    stager = {"async_stager": keep.stager(2)} if lib_calls.stages() else {}  # else it copies first
    dcp.async_save(state, storage_writer=keep.writer(2), **stager).result()
    for step in (3, 4, 5):  # these overlap
        staged, durable = holdfast.dcp.async_save(state, keep, step, overlap=True)
        staged.result()
    spoil(state)  # the copies are the saves'
    assert durable.result()
    all_of_it = whole(state_of(*make(mesh)))
    if rank == 0:
        torch.save(all_of_it, reference)
    keep.close()


def load_on(rank, mesh, server, name, reference, steps):
    wanted = torch.load(reference, weights_only=True)
    state = state_of(*make(mesh))
    keep = session(server, name)
    for step in steps:
        spoil(state)
        assert holdfast.dcp.load(state, keep, step) == step
        found = whole(state)
        assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
        for key, value in wanted.items():
            same = torch.equal(value, found[key]) if isinstance(value, torch.Tensor) \
                else value == found[key]
            assert same, (mesh, step, key, value, found[key])
    keep.close()


STRIDED = torch.arange(96.0).view(8, 12)  # fused rows: of both halves each rank has a part


def strided_state():
    """A rank's part is no box: rows 0, 1, 4, 5 or 2, 3, 6, 7, all of them or half of each."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh.get_coordinate()
    rows = STRIDED[[0, 1, 4, 5] if dp == 0 else [2, 3, 6, 7]]
    strided = _StridedShard(0, split_factor=2)
    return {name: DTensor.from_local(local.clone(), mesh, [strided, other], run_check=False,
                                     shape=STRIDED.size(), stride=STRIDED.stride())
            for name, local, other in (("fused", rows, Replicate()),
                                       ("cut", rows[:, 6 * tp:6 * tp + 6], Shard(1)))}


def misfit_on(rank, mesh, server, name):
    """Plain dcp.load, by its own planner, of a state that does not fit; then a partial one."""
    model, optimizer = make(mesh)
    keep = session(server, name)
    holdfast.dcp.save({"model": model.state_dict()}, keep, 1)
    state = {"model": model.state_dict(), "more": {f"x{i:02}": torch.zeros(2) for i in range(12)}}
    state["model"]["seen"] = torch.zeros(3, dtype=torch.int64)
    try:
        dcp.load(state, storage_reader=keep.reader())
        raise AssertionError("it was loaded")
    except BaseException as error:  # DCP's own kind, around ours
        told = str(error)
    assert "model.seen: [] in the checkpoint, [3] here" in told, told
    assert "more.x08 [2]: not in the checkpoint" in told and "and 3 more" in told, told
    assert "x09" not in told
    state["model"]["seen"] = torch.zeros((), dtype=torch.int64)
    spoil(state)
    dcp.load(state, storage_reader=keep.reader(), planner=DefaultLoadPlanner(
        allow_partial_load=True))
    assert state["model"]["seen"] == 7 and (state["more"]["x00"] == 1).all()
    keep.close()


def plain_state():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {name: distribute_tensor(STRIDED, mesh, [Shard(0)]) for name in ("fused", "cut")}


def strided_on(rank, mesh, server, name, make_saved, make_loaded):
    """Saves the state of one (by all ways, if it can), loads it into that of the other."""
    keep = session(server, name)
    if make_saved is not None:
        state = make_saved()
        holdfast.dcp.save(state, keep, 1)
        dcp.save(state, storage_writer=keep.writer(2), planner=holdfast.dcp.SavePlanner())
        if "async_stager" in inspect.signature(dcp.async_save).parameters:
            dcp.async_save(state, storage_writer=keep.writer(3), async_stager=keep.stager(3),
                           planner=holdfast.dcp.SavePlanner()).result()
        holdfast.dcp.async_save(state, keep, 4)[1].result()
    for info in keep.saver.client.list() if make_loaded else ():
        state, want = make_loaded(), make_loaded()
        spoil(state)
        dcp.load(state, storage_reader=keep.reader(info.step))  # its own planner
        for one in state:
            assert torch.equal(state[one].to_local(), want[one].to_local()), (info, rank, one)
    keep.close()


def stage_on(rank, mesh, server, name):
    """A ShardedTensor, and a tensor of one stage of a pipeline alone."""
    from torch.distributed._shard import sharded_tensor

    rows = STRIDED.chunk(2)[rank].clone()
    shard = sharded_tensor.Shard.from_tensor_and_offsets(rows, [4 * rank, 0], rank)
    state = {"sharded": sharded_tensor.init_from_local_shards([shard], 8, 12),
             f"stage{rank}": {"w": torch.full((3,), float(rank))}}
    keep = session(server, name)
    dcp.save(state, storage_writer=keep.writer(1))
    holdfast.dcp.async_save(state, keep, 2)[1].result()
    for step in (1, 2):
        rows.zero_()
        state[f"stage{rank}"]["w"].zero_()
        dcp.load(state, storage_reader=keep.reader(step))
        local = state["sharded"].local_shards()[0].tensor
        assert torch.equal(local, STRIDED.chunk(2)[rank]), local
        assert (state[f"stage{rank}"]["w"] == rank).all()
    keep.close()


def record_on(rank, mesh, server, name, out, loads):
    """The items of a save, and of the loads of the stored state."""
    state = state_of(*make(mesh))
    planner = DefaultSavePlanner()
    planner.set_up_planner(state, is_coordinator=rank == 0)
    saves = [[item.index.fqn, item.type.name, list(item.tensor_data.size),
              list(item.tensor_data.chunk.offsets), list(item.tensor_data.chunk.sizes),
              holdfast.dcp.dtypes.of_torch(item.tensor_data.properties.dtype)]
             if item.tensor_data is not None else [item.index.fqn, item.type.name]
             for item in planner.create_local_plan().items]
    reads = []
    if loads:
        reader = holdfast.dcp.Reader(name, server)
        planner = DefaultLoadPlanner()
        planner.set_up_planner(state, reader.read_metadata(), rank == 0)
        reads = [[item.storage_index.fqn, item.type.name, list(item.storage_index.offset or []),
                  list(item.storage_offsets), list(item.lengths)]
                 for item in planner.create_local_plan().items]
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, (saves, reads))
    if rank == 0:
        with open(out, "w") as file:
            json.dump(every, file)


# ---- tests ----


def every_mesh_loads_what_every_mesh_saved(world):
    meshes = [("fsdp", ["fsdp3", "tp"]), ("hsdp", ["fsdp"]), ("fsdp+tp", ["fsdp3", "hsdp"]),
              ("tp", ["fsdp+tp"])]
    for saved, others in meshes:
        name = f"net-{saved.replace('+', '-')}"
        reference = os.path.join(world.folder, name)
        job(save_on, saved, world.server, name, reference)
        for mesh in others:
            job(load_on, mesh, world.server, name, reference, [1, 2, 5])
        with holdfast.open(f"{name}@1", store=world.store) as found:
            assert found.state == {"from": saved}
            want = torch.load(reference, weights_only=True)["model.up.weight"]
            assert torch.equal(found["model.up.weight"].torch(), want)


def several_boxes_on_a_rank_are_saved_and_loaded(world):
    job(strided_on, "fsdp+tp", world.server, "strided", strided_state, strided_state)
    job(strided_on, "fsdp3", world.server, "strided", None, plain_state)
    job(strided_on, "fsdp3", world.server, "rows", plain_state, None)
    job(strided_on, "fsdp+tp", world.server, "rows", None, strided_state)
    with holdfast.open("strided@4", server=world.server) as found:
        assert torch.equal(found["fused"].torch(), STRIDED)


def stages_and_sharded_tensors_come_back(world):
    job(stage_on, "fsdp2", world.server, "stages")
    whole_state = holdfast.dcp.load_whole("stages", server=world.server)
    assert torch.equal(whole_state["sharded"], STRIDED), whole_state
    assert [whole_state[f"stage{i}"]["w"].mean() for i in (0, 1)] == [0, 1]


def a_single_process_needs_no_group(world):
    keep = session(world.server, "alone")
    model, optimizer = make("single")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "half":
             torch.arange(6, dtype=torch.bfloat16), "five": torch.arange(32.).view(2, 2, 2, 2, 2)}
    want = whole(state)
    dcp.save(state, storage_writer=keep.writer(1))
    spoil(state)
    dcp.load(state, storage_reader=keep.reader())
    assert all(torch.equal(value, whole(state)[key]) if isinstance(value, torch.Tensor)
               else value == whole(state)[key] for key, value in want.items())
    keep.close()


class Halves(holdfast.dcp.SavePlanner):
    """A user's planner, that saves the weights in bfloat16."""

    def set_up_planner(self, state_dict, *args, **named):
        super().set_up_planner({name: value.bfloat16() for name, value in state_dict.items()},
                               *args, **named)


def the_planner_of_an_async_save_is_asked(world):
    if not lib_calls.stages():
        raise Skip("this DCP has no stagers")
    keep = session(world.server, "planned")
    dcp.async_save({"w": torch.ones(4)}, storage_writer=keep.writer(1), planner=Halves(),
                   async_stager=keep.stager(1)).result()
    dcp.async_save({"w": torch.ones(4)}, storage_writer=keep.writer(2),
                   async_stager=keep.stager(2)).result()
    keep.close()
    for step, dtype in ((1, "BF16"), (2, "F32")):
        with holdfast.open(f"planned@{step}", server=world.server) as found:
            assert found["w"].dtype == dtype, (step, found["w"].dtype)


def a_copy_waits_for_what_the_streams_of_the_caller_have_queued(world):
    """Simulated: torch.cuda with streams and events that record the order of work."""
    told, caller = [], threading.get_ident()

    class Event:
        def record(self, stream):
            told.append(("record", stream, threading.get_ident() == caller))

        def synchronize(self):
            told.append(("synchronize", threading.get_ident() == caller))

    class OnDevice:
        is_cuda, device = True, torch.device("cuda", 1)

    was = torch.cuda.Event, torch.cuda.current_stream
    torch.cuda.Event, torch.cuda.current_stream = Event, lambda device: ("stream", device)
    try:
        wait = holdfast.dcp._waits_for_devices([holdfast.dcp.Item("w", (), (), OnDevice()),
                                                holdfast.dcp.Item("v", (), (), torch.ones(1))])
    finally:
        torch.cuda.Event, torch.cuda.current_stream = was
    keep = session(world.server, "streams")
    keep.save = lambda *args: told.append("copy") or holdfast.dcp.Outcome.SAVED
    keep.copy_later(1, [], {}, None, None, None, wait).result()
    keep.close()
    assert told == [("record", ("stream", OnDevice.device), True), ("synchronize", False),
                    "copy"], told


def what_is_on_a_device_goes_through_two_buffers_that_are_kept(world):
    """Simulated: copies that are late, or early; several pieces, an element, none."""
    for is_late in (False, True):
        streams, run = Queued(is_late), f"locked-{is_late}".lower()
        with streams.in_place_of_cuda(pinned), mock.patch.object(pinned, "PIECE_BYTES", 300_000), \
                holdfast.Client(world.server, run) as client:
            for step in (1, 2):
                arrays = {"wide": torch.arange(3_000_000, dtype=torch.int32) * step,
                          "one": torch.full((1,), step, dtype=torch.int32),
                          "none": torch.zeros(0, dtype=torch.int32)}
                client.save_parts(step, [
                    Part(name, "I32", one.shape, (0,), one.shape, 0, OnDevice(one), True)
                    for name, one in arrays.items()]).wait()
                with holdfast.open(f"{run}@{step}", server=world.server) as found:
                    assert all(torch.equal(found[name].torch(), one)
                               for name, one in arrays.items()), (is_late, step)
        assert streams.waited == ("makes", OnDevice.device)
        assert streams.locked == [300_000] * 2 and client._pinned is None
        assert streams.most == 300_000


CARRIED = ("complex64", "complex128", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz",
           "float4_e2m1fn_x2")


def carried_state():
    """A tensor of each type of torch that is carried, and scalars; conj() copies nothing."""
    raw = torch.arange(48, dtype=torch.uint8)
    state = {name: raw.view(getattr(torch, name)) for name in CARRIED if hasattr(torch, name)}
    return {**state, "conj": state["complex64"].conj(), "scalar": torch.tensor(1 - 2j),
            "shard": distribute_tensor(torch.arange(8) * (2 + 1j),
                                       init_device_mesh("cpu", (dist.get_world_size(),)),
                                       [Shard(0)])}


def equal_to_the_bit(one, other):
    one, other = ((part.to_local() if isinstance(part, DTensor) else part).resolve_conj()
                  for part in (one, other))
    return one.dtype == other.dtype and torch.equal(*(part.reshape(-1).view(torch.uint8)
                                                      for part in (one, other)))


def carried_on(rank, mesh, server, name):
    keep = session(server, name)
    dcp.save(carried_state(), storage_writer=keep.writer(1))
    holdfast.dcp.async_save(carried_state(), keep, 2)[1].result()
    for step in (1, 2):
        state = {key: torch.zeros_like(value) for key, value in carried_state().items()
                 if key not in CARRIED}
        state.update({key: torch.zeros(48, dtype=torch.uint8).view(getattr(torch, key))
                      for key in CARRIED if hasattr(torch, key)})
        dcp.load(state, storage_reader=keep.reader(step))
        assert all(equal_to_the_bit(state[key], value)
                   for key, value in carried_state().items()), state
    keep.close()


def types_that_ckptd_does_not_know_come_back(world):
    """Those that DCP saves; complex ones in slices, too, and out to DCP's files and in again."""
    from holdfast import convert

    job(carried_on, "fsdp2", world.server, "carried")
    with holdfast.open("carried@2", server=world.server) as found:
        want = {key: found[key].torch() for key in found}
        assert want["complex128"].dtype == torch.complex128 and len(want) == len(CARRIED) + 3
        assert torch.equal(want["shard"], torch.arange(8) * (2 + 1j))
        convert.to_dcp(found, os.path.join(world.folder, "carried"))
    convert.from_dcp(os.path.join(world.folder, "carried"), "carried2", 1, world.server)
    again = holdfast.dcp.load_whole("carried2", server=world.server)
    assert all(equal_to_the_bit(value, again[key]) for key, value in want.items()), again


def replicas_split_the_work(world):
    """Of HSDP either replica writes whole tensors: DCP alone lets one of them write all."""
    folder = os.path.join(world.store, "net-hsdp")
    folder = os.path.join(folder, max(name for name in os.listdir(folder) if "step-" in name))
    rows = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            with open(os.path.join(folder, name), "rb") as file:
                head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            rows.append(head.get("model.up.weight", {"shape": [0]})["shape"][0])
            assert any(key.startswith("model.") or key.startswith("optimizer.") for key in head)
    assert sorted(rows) == [0, 0, 13, 13], rows


class Planted:
    def __reduce__(self):
        return (os.mkdir, (Planted.folder,))


def pickles_of_others_are_not_loaded_unless_asked(world):
    Planted.folder = os.path.join(world.folder, "planted")
    blob = io.BytesIO()
    torch.save(Planted(), blob)
    keep = session(world.server, "pickles")
    keep.saver.save(1, [], {"state": blob.getvalue()}, None, {"paths": {"state": ["state"]}})
    keep.finish(1)
    try:
        dcp.load({"state": 0}, storage_reader=keep.reader())
        refused = ""
    except BaseException as error:  # DCP's own kind, around ours
        refused = str(error)
    assert "allow_pickle" in refused, refused
    assert not os.path.exists(Planted.folder)
    dcp.load({"state": 0}, storage_reader=keep.reader(allow_pickle=True))
    assert os.path.exists(Planted.folder)  # it was requested
    keep.close()


def worn_on(rank, mesh, server):
    """Half of the tensor: the damage is in the other rank's."""
    grid = init_device_mesh("cpu", (2,))
    state = {"w": distribute_tensor(torch.zeros(1000, 600), grid, [Shard(0)])}
    plain, ours = session(server, "worn-plain"), session(server, "worn-ours")
    try:
        dcp.load(state, storage_reader=plain.reader())
        raise AssertionError("it was loaded")
    except CheckpointException as error:
        assert "call load again on every rank" in str(error), error
    dcp.load(state, storage_reader=plain.reader())
    assert (state["w"].to_local() == 1).all()
    state["w"].to_local().zero_()
    assert holdfast.dcp.load(state, ours) == 1
    assert (state["w"].to_local() == 1).all()
    plain.close()
    ours.close()


def a_damaged_newest_gives_way_to_the_step_before(world):
    names = ["worn-alone", "worn-whole", "worn-plain", "worn-ours"]
    for name in names:
        keep = session(world.server, name, alone=True)
        for step in (1, 2):
            dcp.save({"w": torch.full((1000, 600), float(step))},
                     storage_writer=keep.writer(step), no_dist=True)
        keep.close()
    world.stop()  # a whole image in memory
    for name in names:
        folder = os.path.join(world.store, name, "step-00000002-a0001")
        shard = os.path.join(folder, min(one for one in os.listdir(folder) if "shard" in one))
        change(shard, 100000)
    world.start(*OPTIONS)
    state = {"w": torch.zeros(1000, 600)}
    reader = holdfast.dcp.Reader("worn-alone", world.server)
    with logged() as said:
        dcp.load(state, storage_reader=reader, no_dist=True)
        whole_state = holdfast.dcp.load_whole("worn-whole", server=world.server)
    assert (state["w"] == 1).all() and reader.found.info.step == 1
    assert (whole_state["w"] == 1).all()
    for name in ("worn-alone", "worn-whole"):
        assert any(f"{name}@2-a1 is damaged" in line for line in said), said
    job(worn_on, "fsdp2", world.server)


def what_does_not_fit_is_told_at_once(world):
    keep = session(world.server, "alone")
    wish = {"half": torch.zeros(5), **{f"x{i:02}": torch.zeros(1) for i in range(12)}}
    try:
        holdfast.dcp.load(wish, keep)
        raise AssertionError("it was loaded")
    except holdfast.errors.MismatchError as error:
        assert "half: [6] in the checkpoint, [5] here" in str(error) and "3 more" in str(error)
    keep.close()


def dcp_files_on(rank, mesh, folder, reference, save):
    state = state_of(*make(mesh))
    if save:
        all_of_it = whole(state)
        if rank == 0:
            torch.save(all_of_it, reference)
        dcp.save(state, checkpoint_id=folder)
        return
    want = torch.load(reference, weights_only=True)  # another mesh rounds gradients in another way
    spoil(state)
    dcp.load(state, checkpoint_id=folder)
    found = whole(state)
    assert all(torch.equal(value, found[key]) if isinstance(value, torch.Tensor)
               else value == found[key] for key, value in want.items())


def plain_values():
    """The expectations of tests/integration/python_convert.py for the recorded folder."""
    return {"whole": STRIDED, "half": torch.arange(12, dtype=torch.bfloat16).view(3, 4).t(),
            "f8": torch.arange(6.0).to(torch.float8_e5m2), "count": torch.tensor(7),
            "none": torch.zeros(0, 3), "u16": torch.arange(3, dtype=torch.int32).to(torch.uint16)}


def record_folder_on(rank, mesh, folder):
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    state = {"model": plain_values(), "train": {"note": "words"}}
    state["model"]["whole"] = distribute_tensor(STRIDED, grid, [Shard(0), Shard(1)])
    dcp.save(state, checkpoint_id=folder)


def directories_of_dcp_are_converted_both_ways(world):
    """DCP's own files of four ranks become a checkpoint, and files again that three ranks load."""
    theirs, ours = os.path.join(world.folder, "theirs"), os.path.join(world.folder, "ours")
    job(dcp_files_on, "fsdp", theirs, theirs + ".pt", True)
    env = dict(os.environ, HOLDFAST_PYTHON=sys.executable,
               PYTHONPATH=os.path.join(ROOT, "clients/python/src"))
    for words in (["import", theirs, "--run", "converted@3"],
                  ["export", "converted@3", "--output", ours]):
        subprocess.run([CLI, *words, "--format", "dcp", *world.where], check=True, env=env)
    job(dcp_files_on, "fsdp3", ours, theirs + ".pt", False)


def types_of_torch_come_through_a_conversion(world):
    """Each is written and read without torch, and torch finds its saved state."""
    from holdfast import convert

    theirs, ours = os.path.join(world.folder, "types"), os.path.join(world.folder, "types-ours")
    dcp.save(plain_values(), checkpoint_id=theirs, no_dist=True)
    convert.from_dcp(theirs, "types", 1, world.server)
    with holdfast.open("types@1", server=world.server) as found:
        convert.to_dcp(found, ours)
    want, got = plain_values(), {name: torch.zeros_like(one) for name, one in
                                 plain_values().items()}
    dcp.load(got, checkpoint_id=ours, no_dist=True)
    assert all(str(want[name]) == str(got[name]) for name in want), got


def the_recorded_folder_is_one_of_this_torch(world):
    """tests/golden/dcp/folder, which python_convert.py converts; --record writes it anew."""
    if "--record" in sys.argv:
        shutil.rmtree(FOLDER, ignore_errors=True)
        job(record_folder_on, "fsdp+tp", FOLDER)
    got = {"model": {name: torch.zeros_like(one) for name, one in plain_values().items()},
           "train": {"note": ""}}
    dcp.load(got, checkpoint_id=FOLDER, no_dist=True)
    assert all(str(one) == str(got["model"][name]) for name, one in plain_values().items()), got
    assert got["train"] == {"note": "words"}


def plain_loads_tell_the_first_ten_differences(world):
    job(misfit_on, "fsdp2", world.server, "misfit")


def the_examples_in_the_docstrings_are_true(world):
    result = doctest.testmod(holdfast.dcp)
    assert result.attempted > 0 and result.failed == 0, result


TRAIN = """
import sys, warnings
warnings.simplefilter("ignore")
import torch, holdfast.dcp
state = {f"w{i}": torch.zeros(1 << 20) for i in range(16)}
keep = holdfast.dcp.Session("train", sys.argv[1], take_over=True)
for step in range(1, 10000):
    for value in state.values():
        value.fill_(step)
    staged, durable = holdfast.dcp.async_save(state, keep, step)
    print(step, flush=True)   # copied: from here on it is ckptd's
    durable.result()
"""


def killed_at_random(world):
    """Starts a job, kills it at a random time; the last step that it had copied."""
    process = subprocess.Popen(
        [sys.executable, "-B", "-c", TRAIN, world.server], stdout=subprocess.PIPE, text=True,
        env=dict(os.environ, PYTHONPATH=os.path.join(ROOT, "clients/python/src")))
    process.stdout.readline()
    time.sleep(random.uniform(0.0, 0.6))
    process.send_signal(signal.SIGKILL)
    told = [int(line) for line in process.stdout.read().split()]
    process.wait()
    return max(told, default=1)


def a_copied_save_survives_kill_9(world):
    random.seed(5)
    state = {f"w{i}": torch.zeros(1 << 20) for i in range(16)}
    for _ in range(KILLS):
        copied, deadline, newest = killed_at_random(world), time.monotonic() + 20, 0
        while newest < copied and time.monotonic() < deadline:
            keep = holdfast.dcp.Reader("train", world.server)
            dcp.load(state, storage_reader=keep)
            newest = keep.found.info.step
            time.sleep(0.05)
        assert newest >= copied, (newest, copied)
        assert all((value == newest).all() for value in state.values()), newest


def the_recorded_calls_are_those_of_this_torch(world):
    """tests/golden/dcp/calls.json, which python_dcp.py replays."""
    calls = {}
    for mesh, name in (("fsdp", None), ("hsdp", None), ("fsdp+tp", None), ("tp", None),
                       ("fsdp3", "net-fsdp")):
        out = os.path.join(world.folder, "calls")
        job(record_on, mesh, world.server, name, out, name is not None)
        with open(out) as file:
            calls[mesh] = json.load(file)
    lib_calls.check("plans", calls, "--record" in sys.argv)


def the_recorded_methods_are_those_of_this_torch(world):
    out = os.path.join(world.folder, "methods")
    job(lib_calls.calls_on, "fsdp2", world.server, "methods", out)
    with open(out) as file:
        lib_calls.check("methods", json.load(file), "--record" in sys.argv)


if __name__ == "__main__":
    print(f"# torch {torch.__version__}", flush=True)
    bed = World()
    bed.start(*OPTIONS)
    tests = [every_mesh_loads_what_every_mesh_saved, several_boxes_on_a_rank_are_saved_and_loaded,
             stages_and_sharded_tensors_come_back, a_single_process_needs_no_group,
             the_planner_of_an_async_save_is_asked,
             a_copy_waits_for_what_the_streams_of_the_caller_have_queued,
             what_is_on_a_device_goes_through_two_buffers_that_are_kept,
             types_that_ckptd_does_not_know_come_back, replicas_split_the_work,
             pickles_of_others_are_not_loaded_unless_asked, what_does_not_fit_is_told_at_once,
             a_damaged_newest_gives_way_to_the_step_before,
             directories_of_dcp_are_converted_both_ways, types_of_torch_come_through_a_conversion,
             the_recorded_folder_is_one_of_this_torch, plain_loads_tell_the_first_ten_differences,
             the_examples_in_the_docstrings_are_true, a_copied_save_survives_kill_9,
             the_recorded_calls_are_those_of_this_torch,
             the_recorded_methods_are_those_of_this_torch]
    words = [word for word in sys.argv[1:] if word != "--record"]
    passed = run([test for test in tests
                  if not words or any(word in test.__name__ for word in words)], bed)
    bed.close()
    end()
    sys.exit(not passed)
