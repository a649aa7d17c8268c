#!/usr/bin/env python3
"""megatron_core - Megatron-Core's dist_checkpointing saves and loads through ckptd.

Goal: the sharded tensors and objects that Megatron-Core's own functions save on one cut load on
another, several boxes of a tensor on one rank and a prepended axis too. An asynchronous save is
durable when it is finalized. A failed save leaves no metadata.json; mismatches are reported.
Method: megatron.core.dist_checkpointing as PyPI has it, gloo on the CPU, a real ckptd. Megatron's
trainer needs a GPU and is not run.
"""
import importlib.util
import multiprocessing
import os
import shutil
import sys

from lib_dcp import PRELOAD, ROOT, end, job, torch
from lib_store import World
from lib_tap import Skip, run
import torch.distributed as dist


def dist_checkpointing():
    try:
        from megatron.core import dist_checkpointing as module
    except ImportError as missing:
        raise Skip(f"megatron-core: {missing}") from None
    return module


def state_of(rank, ranks, fill):
    """A matrix cut by rows, experts along a new axis, two boxes of one tensor on each rank, an
    object of each rank, and unsharded items."""
    from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor

    rows = torch.arange(24.0).view(12, 2).chunk(ranks)[rank] * fill
    experts = 4 // ranks
    boxes = torch.arange(16.0).view(8, 2) * fill
    state = {
        "rows": ShardedTensor.from_rank_offsets("rows", rows.clone(), (0, rank, ranks)),
        "experts": {str(i): ShardedTensor.from_rank_offsets(
            "experts", torch.full((3,), float(rank * experts + i)) * fill,
            (0, rank * experts + i, 4), prepend_axis_num=1) for i in range(experts)},
        "halves": [ShardedTensor.from_rank_offsets(
            "halves", boxes.chunk(2 * ranks)[rank + half * ranks].clone(),
            (0, rank + half * ranks, 2 * ranks)) for half in (0, 1)],
        "object": ShardedObject("rng", [rank, "words"] if fill else None, (ranks,), (rank,)),
        "iteration": 100}
    return state


FOLDER = os.path.join(ROOT, "tests/golden/dcp/torch_dist")


def torch_dist_on(rank, mesh, folder, save):
    """Megatron's own format, without holdfast."""
    module, ranks = dist_checkpointing(), dist.get_world_size()
    os.makedirs(folder, exist_ok=True)
    dist.barrier()
    if save:
        if not torch.cuda.is_available():
            torch.cuda.synchronize = lambda: None  # of Megatron, which waits for its GPU
            torch.cuda.current_device = lambda: "cpu"  # and gathers on it
        module.save(state_of(rank, ranks, 1.0), folder, ("torch_dist", 1))
        return
    wish, want = state_of(rank, ranks, 0.0), state_of(rank, ranks, 1.0)
    got = module.load(wish, folder)
    assert torch.equal(got["rows"], want["rows"].data), got["rows"]
    assert all(torch.equal(got["experts"][name], one.data)
               for name, one in want["experts"].items()), got["experts"]
    assert all(torch.equal(a, b.data) for a, b in zip(got["halves"], want["halves"]))
    assert got["iteration"] == 100 and got["object"] == [rank, "words"], got


def save_on(rank, mesh, server, folder):
    import holdfast.megatron

    module, ranks = dist_checkpointing(), dist.get_world_size()
    session = holdfast.megatron.register("megatron", server, take_over=True, timeout=30)
    for step, is_async in ((100, False), (200, True)):
        where = os.path.join(folder, f"iter_{step:07}")
        os.makedirs(where, exist_ok=True)
        dist.barrier()
        request = module.save(state_of(rank, ranks, 1.0), where, ("holdfast", 1),
                              async_sharded_save=is_async)
        if is_async:
            assert not os.path.exists(os.path.join(where, "metadata.json"))
            request.execute_sync()
        assert session.saver.client.list()[-1].durability != ""
        assert os.path.exists(os.path.join(where, "metadata.json"))
    bad = os.path.join(folder, "again", "iter_0000200")
    os.makedirs(bad, exist_ok=True)
    dist.barrier()
    try:
        module.save(state_of(rank, ranks, 1.0), bad, ("holdfast", 1))
        raise AssertionError("step 200 was saved twice")
    except holdfast.errors.HoldfastError:
        assert not os.path.exists(os.path.join(bad, "metadata.json"))
    session.close()


def load_on(rank, mesh, server, folder, same_ranks):
    import holdfast.megatron

    module, ranks = dist_checkpointing(), dist.get_world_size()
    session = holdfast.megatron.register("megatron", server, take_over=True)
    for step in (100, 200):
        wish = state_of(rank, ranks, 0.0)
        if not same_ranks:
            del wish["object"]  # objects are not cut anew
        got = module.load(wish, os.path.join(folder, f"iter_{step:07}"))
        want = state_of(rank, ranks, 1.0)
        assert torch.equal(got["rows"], want["rows"].data), got["rows"]
        assert all(torch.equal(got["experts"][name], one.data)
                   for name, one in want["experts"].items()), got["experts"]
        assert all(torch.equal(a, b.data) for a, b in zip(got["halves"], want["halves"]))
        assert got["iteration"] == 100
        assert not same_ranks or got["object"] == [rank, "words"], got
    known = module.load_tensors_metadata(os.path.join(folder, "iter_0000100"))
    assert tuple(known["rows"].global_shape) == (12, 2), known
    from megatron.core.dist_checkpointing import ShardedTensor

    try:
        module.load({"rows": ShardedTensor.from_rank_offsets("rows", torch.zeros(5, 2))},
                    os.path.join(folder, "iter_0000100"), validate_access_integrity=False)
        raise AssertionError("it was loaded")
    except holdfast.errors.MismatchError as error:
        assert "[12, 2] in the checkpoint, [5, 2] here" in str(error), error
    session.close()


def another_cut_loads_what_was_saved(world):
    dist_checkpointing()
    folder = os.path.join(world.folder, "megatron")
    job(save_on, "fsdp2", world.server, folder)
    job(load_on, "fsdp2", world.server, folder, True)
    job(load_on, "fsdp", world.server, folder, False)


def torch_dist_is_converted_both_ways(world):
    """Megatron's files are imported, and the export loads in Megatron. The folder is that of
    tests/integration/python_convert.py, which --record rewrites."""
    from holdfast import convert
    import holdfast

    dist_checkpointing()
    if "--record" in sys.argv:
        shutil.rmtree(FOLDER, ignore_errors=True)
        job(torch_dist_on, "fsdp2", FOLDER, True)
    theirs, ours = (os.path.join(world.folder, name) for name in ("theirs", "ours"))
    job(torch_dist_on, "fsdp2", theirs, True)
    for number, folder in enumerate((FOLDER, theirs)):
        convert.from_dcp(folder, f"torch_dist{number}", 1, world.server)
        with holdfast.open(f"torch_dist{number}@1", server=world.server) as found:
            convert.to_dcp(found, ours + str(number))
        job(torch_dist_on, "fsdp2", ours + str(number), False)


if __name__ == "__main__":
    if importlib.util.find_spec("megatron"):
        multiprocessing.set_forkserver_preload([*PRELOAD, "megatron.core.dist_checkpointing"])
    bed = World()
    bed.start("--memory.pool_bytes", "128MiB", "--limits.takeover_ms", "500")
    passed = run([another_cut_loads_what_was_saved, torch_dist_is_converted_both_ways], bed)
    bed.close()
    end()
    sys.exit(not passed)
