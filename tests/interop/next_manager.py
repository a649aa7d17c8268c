#!/usr/bin/env python3
"""next_manager - torch_checkpointing's CheckpointManager through ckptd, as its users call it.

Goal: code for torch_checkpointing works with holdfast.torch_checkpointing in the import. Values of
every kind are restored in place. Saves overlap, and only lock() keeps the optimizer off a copy.
Ranks of any mesh load the saves of others, each also its own values. A failed save does not end
training; no pickle is loaded without request. Method: the package as PyPI has it, gloo on the CPU
with 1 to 4 processes, a real ckptd.
"""
import copy
import os
import sys

from lib_dcp import end, job, make, spoil, state_of, torch, whole
from lib_store import World, logged
from lib_tap import need, run
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

need("torch_checkpointing")
import torch_checkpointing as theirs  # noqa: E402
from torch_checkpointing.default_resharder import DefaultResharder  # noqa: E402
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig  # noqa: E402

import holdfast  # noqa: E402
import holdfast.dcp  # noqa: E402
from holdfast.torch_checkpointing import CheckpointManager, Loader  # noqa: E402

SHARED = {key: theirs.ItemSpec(resharder=DefaultResharder()) for key in ("model", "optimizer")}
RECIPES = {"waits": theirs.SyncCheckpointSaverConfig, "async": theirs.AsyncCheckpointSaverConfig}


def manager(server, name, save="async", **more):
    return CheckpointManager.Config(run=name, server=server, save=RECIPES[save](), take_over=True,
                                    **more).build()


def said_by(function):
    with logged() as said:
        function()
    return said


# ---- one process ----


def values_of_every_kind_come_back_in_place(world):
    keep = manager(world.server, "kinds", "waits")
    model, optimizer = make("single")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7,
             "more": {"list": [torch.arange(3), {"k": 1.5}], "pair": (torch.ones(2), "t"),
                      "none": None, 3: "number", "raw": b"\x00\xff", "empty": {}},
             "half": torch.arange(6, dtype=torch.bfloat16)}
    want = copy.deepcopy({**state, "model": dict(state["model"])})
    assert keep.save("out/step_7", state) is None  # durable
    weight, inner = state["model"]["up.weight"], state["more"]["list"]
    spoil({key: value for key, value in state.items() if isinstance(value, (dict, torch.Tensor))})
    state["more"]["list"][0].fill_(0)
    state["more"]["list"][1]["k"], state["step"], state["more"][3] = 0, 0, ""
    loaded = keep.load(keep.newest(), into=state, strict=True)
    assert loaded["model"]["up.weight"] is weight and loaded["more"]["list"] is inner
    same({**loaded, "model": dict(loaded["model"])}, want)
    want["more"]["pair"] = list(want["more"]["pair"])  # made anew, tuples with tensors are lists
    same(keep.load("kinds/step_7", into=dict.fromkeys(want)), want)
    try:
        keep.load("kinds/step_7", into={"model": {"none": torch.zeros(1)}}, strict=True)
        raise AssertionError("it is not there")
    except RuntimeError as error:
        assert "model.none" in str(error)
    try:
        keep.load("kinds/step_7", into={"model": {"up.weight": torch.zeros(2, 2)}})
        raise AssertionError("it does not fit")
    except holdfast.errors.MismatchError as error:
        assert "model.up.weight: [26, 12] in the checkpoint, [2, 2] here" in str(error)
    keep.close()


def same(found, want):
    pairs = zip(*(torch.utils._pytree.tree_flatten(one)[0] for one in (found, want)))
    assert torch.utils._pytree.tree_structure(found) == torch.utils._pytree.tree_structure(want)
    for one, other in pairs:
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def saves_overlap_and_the_lock_keeps_updates_off(world):
    keep = manager(world.server, "flow")
    weights = {f"w{i}": torch.zeros(1 << 20) for i in range(8)}
    futures = []
    for step in range(1, 6):
        with keep.lock():  # the optimizer's update
            for value in weights.values():
                value.fill_(step)
        futures.append(keep.save(f"step_{step}", {"model": weights, "step": step}))
    assert [future.result() for future in futures] == [True] * 5
    for step in range(2, 6):
        found = Loader("flow", world.server)
        got = theirs.checkpoint_manager._DictCheckpoint(
            {key: theirs.CheckpointItem() for key in ("model", "step")})
        found.load(f"step_{step}", got)
        assert got.result["step"] == step
        assert all((value == step).all() for value in got.result["model"].values()), step
    keep.close()


def a_failed_save_does_not_end_training(world):
    keep = manager(world.server, "fails")
    assert keep.save("step_1", {"w": torch.ones(4)}).result()
    told = said_by(lambda: (keep.save("step_1", {"w": torch.ones(4)}).result(),
                            keep.save("step_2", {"w": torch.ones(5)}).result()))
    assert any("step 1 was not saved" in line for line in told), told
    assert keep.load("step_2", into={"w": torch.zeros(5)})["w"].sum() == 5  # other shapes, too
    keep.close()
    strict = manager(world.server, "fails", on_failure="raise")
    strict.save("step_3", {"w": torch.ones(4)}).result()
    again = strict.save("step_3", {"w": torch.ones(4)})
    assert isinstance(again.exception(), holdfast.HoldfastError), again
    strict._write_future = None  # a user who has seen it
    strict.close()


def without_ckptd_it_is_one_line_or_their_files(world):
    where = "unix:/no/ckptd"
    try:
        manager(where, "none", "waits")
        raise AssertionError("there is none")
    except holdfast.errors.UnavailableError as error:
        assert str(error).count("\n") == 0
    made = []
    files = LocalFileSystemStorageConfig(use_direct_io=False)  # ext4 requires aligned lengths
    told = said_by(lambda: made.append(manager(where, "none", "waits", fallback=True,
                                               storage_config=files)))
    assert any("no ckptd" in line for line in told), told
    folder = os.path.join(world.folder, "files", "step_4")
    made[0].save(folder, {"w": torch.arange(5)})
    assert os.path.exists(os.path.join(folder, "w_0.pt"))
    assert made[0].load(folder, into={"w": torch.zeros(5, dtype=torch.int64)})["w"][4] == 4
    made[0].close()


class Planted:
    def __reduce__(self):
        return (os.mkdir, (Planted.folder,))


def pickles_of_others_are_not_loaded_unless_asked(world):
    Planted.folder = os.path.join(world.folder, "planted")
    keep = manager(world.server, "pickles", "waits")
    keep.save("step_1", {"state": Planted()})
    try:
        keep.load("step_1", into={"state": None})
        raise AssertionError("it was loaded")
    except holdfast.errors.InvalidError as error:
        assert "allow_pickle" in str(error)
    assert not os.path.exists(Planted.folder)
    keep.close()
    trusting = manager(world.server, "pickles", allow_pickle=True)
    trusting.load("step_1", into={"state": None})
    assert os.path.exists(Planted.folder)
    trusting.close()


# ---- ranks ----


def save_on(rank, mesh, server, name, reference):
    state = state_of(*make(mesh))
    keep = manager(server, name, items=SHARED)
    own = {"rng": torch.full((3,), rank), "place": {"rank": rank}}
    saved = keep.save("out/step_5", {**state, **own})
    with keep.lock():
        all_of_it = copy.deepcopy(whole(state))
        spoil(state)
    assert saved.result()
    if rank == 0:
        torch.save(all_of_it, reference)
    keep.close()


def load_on(rank, mesh, server, name, reference, same_ranks):
    state = state_of(*make(mesh))
    want = torch.load(reference, weights_only=True)
    keep = manager(server, name, items=SHARED)
    spoil(state)
    into = dict(state)
    if same_ranks:
        into.update(rng=torch.zeros(3, dtype=torch.int64), place={"rank": -1})
    got = keep.load(keep.newest(), into=into, strict=True)
    found = whole({key: got[key] for key in state})
    assert found.keys() == want.keys()
    for key, value in want.items():
        assert torch.equal(value, found[key]) if isinstance(value, torch.Tensor) \
            else value == found[key], (key, value, found[key])
    assert not same_ranks or (got["rng"] == rank).all() and got["place"] == {"rank": rank}, got
    weights = {"model": state["model"]}
    spoil(weights)
    dcp.load(weights, storage_reader=holdfast.dcp.Reader(name, server))  # the names are DCP's
    assert all(torch.equal(value, want[key]) for key, value in whole(weights).items())
    keep.close()
    dist.barrier()


def ranks_of_another_mesh_load_what_was_saved(world):
    for saved, others in (("fsdp", ["fsdp", "fsdp3"]), ("fsdp+tp", ["hsdp"])):
        name = f"next-{saved.replace('+', '-')}"
        reference = os.path.join(world.folder, name)
        job(save_on, saved, world.server, name, reference)
        for mesh in others:
            job(load_on, mesh, world.server, name, reference, saved == mesh)


if __name__ == "__main__":
    print(f"# torch {torch.__version__}, torch_checkpointing {theirs.__version__}", flush=True)
    bed = World()
    bed.start("--memory.pool_bytes", "512MiB", "--limits.takeover_ms", "500",
              "--retention.keep_last", "8")
    tests = [values_of_every_kind_come_back_in_place, saves_overlap_and_the_lock_keeps_updates_off,
             a_failed_save_does_not_end_training, without_ckptd_it_is_one_line_or_their_files,
             pickles_of_others_are_not_loaded_unless_asked,
             ranks_of_another_mesh_load_what_was_saved]
    passed = run([test for test in tests if len(sys.argv) < 2
                  or any(word in test.__name__ for word in sys.argv[1:])], bed)
    bed.close()
    end()
    sys.exit(not passed)
