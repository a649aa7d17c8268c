#!/usr/bin/env python3
"""dcp_failures - failed saves by torch.distributed.checkpoint.

Goal: a failed save is logged and training continues, but the future of dcp.async_save fails. State
that can never be stored, and saves that fail in a row, end the run. On request saves that ckptd
misses are written to files, and after a rollback the newest is not an earlier file. Method: as
dcp.py; a ckptd that stops, hangs, has no room, or has the run for another client. Words on the
command line choose.
"""
import os
import signal
import sys
import tempfile
import threading
import time
import warnings

from lib_dcp import end, job, make, spoil, state_of, torch
import lib_calls
from lib_hosts import Disk, Refused, own_mounts
from lib_store import World, logged
from lib_tap import Skip, run
import numpy
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import holdfast
import holdfast.dcp


def session(server, name, **options):
    return holdfast.dcp.Session(name, server, take_over=True, **options)


def fail_on(rank, mesh, server, name):
    """A save that ranks cannot make: it is logged, and the next one is made."""
    keep = session(server, name, timeout=20)
    state = {"w": torch.full((4,), float(rank)), "n": rank}
    dcp.save(state, storage_writer=keep.writer(1))
    with logged() as said:
        dcp.save(state, storage_writer=keep.writer(1))  # it is there
    assert any("step 1" in one for one in said), said
    state["w"], state["other"] = torch.zeros(9), torch.ones(3) * rank  # other tensors
    dcp.save(state, storage_writer=keep.writer(2))
    assert {info.step for info in keep.saver.client.list()} == {1, 2}
    with holdfast.open(f"{name}@2", server=server) as found:
        assert found["w"].shape == (9,) and found["other"][0] in (0, 1)
        read = torch.as_tensor(found["w"])  # at once, not row by row
        assert torch.equal(read, found["w"].torch())
    keep.close()


def without_on(rank, mesh, server, name, folder, stop, go):
    """ckptd is gone after step 1 and is back for step 5: the steps between are files."""
    warnings.simplefilter("ignore")
    keep = session(server, name, fallback=folder, timeout=20)
    state = state_of(*make(mesh))

    def fill(step):
        spoil(state)
        state["model"]["up.bias"].to_local().fill_(step)
        state["train"]["step"] = step

    fill(1)
    holdfast.dcp.save(state, keep, 1)
    if rank == 0:
        open(stop, "w").close()
    while not os.path.exists(stop + ".done"):
        time.sleep(0.02)
    dist.barrier()
    fill(2)
    dcp.save(state, storage_writer=keep.writer(2))
    fill(3)
    stager = {"async_stager": keep.stager(3)} if lib_calls.stages() else {}
    saved = dcp.async_save(state, storage_writer=keep.writer(3), **stager)
    if not stager:
        saved.result()  # the DCP of torch 2.6 shares tensors that are on the CPU already
    fill(0)  # the copy is the save's
    saved.result()
    fill(4)
    staged, durable = holdfast.dcp.async_save(state, keep, 4, overlap=True)
    staged.result()
    fill(0)
    assert durable.result()
    for step in (2, 3, 4, None):
        fill(0)
        assert holdfast.dcp.load(state, keep, step) == (step or 4)
        assert (state["model"]["up.bias"].to_local() == (step or 4)).all(), (step, state)
        assert state["train"]["step"] == (step or 4)
    assert keep.find() == 4 and keep.find(9) is None
    dist.barrier()
    if rank == 0:
        open(go, "w").close()
    while not os.path.exists(go + ".done"):
        time.sleep(0.02)
    fill(5)
    deadline = time.monotonic() + 60
    while not any(info.step == 5 for info in keep.saver.client.list()):  # the ranks meet anew
        assert time.monotonic() < deadline
        dist.barrier()
        holdfast.dcp.save(state, keep, 5)
    fill(0)
    assert holdfast.dcp.load(state, keep) == 5
    assert (state["model"]["up.bias"].to_local() == 5).all()
    keep.close()


# ---- tests ----


def a_failed_save_does_not_end_training(world):
    job(fail_on, "fsdp2", world.server, "fails")


def saves_that_ckptd_misses_become_files_if_asked(world):
    other = World()
    other.start()
    stop, go = (os.path.join(other.folder, name) for name in ("stop", "go"))

    def attend():
        for path, act in ((stop, other.stop), (go, other.start)):
            while not os.path.exists(path) and not ended.is_set():
                time.sleep(0.02)
            act()
            open(path + ".done", "w").close()

    ended = threading.Event()
    thread = threading.Thread(target=attend)
    thread.start()
    try:
        folder = os.path.join(other.folder, "files")
        job(without_on, "fsdp2", other.server, "away", folder, stop, go)
        assert sorted(os.listdir(folder))[:3] == ["step-2", "step-3", "step-4"]
        loaded = holdfast.dcp.load_whole("away", 3, server=other.server, fallback=folder)
        assert (loaded["model"]["up.bias"] == 3).all() and loaded["train"]["step"] == 3
    finally:
        ended.set()
        thread.join()
        other.close()


def a_ckptd_that_stops_or_has_no_room_does_not_end_training(world):
    """Each failed save is logged; then saves are made again."""
    try:
        own_mounts()
        disk = Disk(tempfile.mkdtemp(dir=world.folder), 96, 400)
    except Refused as reason:
        raise Skip(reason) from None
    other, said = World(os.path.join(disk.path, "store")), []
    state = {"w": torch.ones(1 << 18)}

    def save(step):
        with logged() as now:
            holdfast.dcp.async_save(state, keep, step)[1].result()
        said.append(now)

    try:
        other.start("--storage.usable_fraction", "1")
        keep = session(other.server, "goes-on", timeout=20, busy_seconds=1.0, max_failures=0)
        save(1)
        disk.fill()
        save(2)
        disk.free()
        other.process.send_signal(signal.SIGSTOP)  # it hangs
        save(3)
        other.process.send_signal(signal.SIGCONT)
        other.end()  # it is gone
        save(4)
        other.start("--storage.usable_fraction", "1")
        deadline = time.monotonic() + 30
        while said[-1] and time.monotonic() < deadline:
            save(5)
        assert said[0] == said[-1] == [], said
        for step, told in enumerate(said[1:4], 2):
            assert len(told) == 1 and f"step {step}" in told[0], said
            assert "training continues" in told[0], said
        assert "space" in said[1][0] or "room" in said[1][0] or "fit" in said[1][0], said
        assert [info.step for info in keep.saver.client.list()] == [5, 1], said
        keep.close()
    finally:
        other.close()
        disk.close()


def a_lost_save_fails_the_future_of_async_save(world):
    """For DCP's thread a logged failure is a success; a later call raises the error that ends the
    run."""
    holder = holdfast.Client(world.server, "lost")
    holder.save(1, {"w": numpy.zeros(4)}).wait()
    keep = holdfast.dcp.Session("lost", world.server, max_failures=4)
    state = {"w": torch.ones(4)}
    with logged():
        dcp.save(state, storage_writer=keep.writer(2))
        for step, more in ((3, {}), (4, {"async_stager": keep.stager(4)})):
            if more and not lib_calls.stages():
                continue
            saved = dcp.async_save(state, storage_writer=keep.writer(step), **more)
            told = str(saved.exception())
            assert f"step {step} was not saved" in told and "is being trained" in told, told
        saved = dcp.async_save(state, storage_writer=keep.writer(5))
        while not saved.done():  # and it is not called
            time.sleep(0.05)
    try:
        holdfast.dcp.async_save(state, keep, 6)
        raise AssertionError("it went on")
    except holdfast.errors.AbortedError as error:
        assert "saves in a row" in str(error), error
    holder.close()
    assert holdfast.dcp.async_save(state, keep, 7)[1].result()
    keep.close()


def what_no_ckptd_can_store_ends_training_at_once(world):
    keep = session(world.server, "never")
    state = {"n" * 200: torch.ones(4)}
    ways = [lambda: dcp.save(state, storage_writer=keep.writer(1)),
            lambda: holdfast.dcp.async_save(state, keep, 1),
            lambda: holdfast.dcp.async_save(state, keep, 1, overlap=True)[0].result()]
    if lib_calls.stages():
        ways.append(lambda: dcp.async_save(state, storage_writer=keep.writer(1),
                                           async_stager=keep.stager(1)).result())
    for way in ways:
        try:
            way()
            raise AssertionError("it was saved")
        except BaseException as error:  # DCP's own kind, around ours
            assert "191 characters" in str(error), error
    keep.close()


def a_rollback_is_newer_than_the_files_before_it(world):
    """Step 50 is in files, as ckptd was away; then 10 is loaded, and ckptd has 20."""
    other, folder = World(), os.path.join(world.folder, "before")
    state = {"w": torch.zeros(4)}
    try:
        with logged():
            other.start()
            keep = session(other.server, "rolled", fallback=folder, timeout=20)
            holdfast.dcp.save(state, keep, 10)
            other.stop()
            state["w"].fill_(50)
            dcp.save(state, storage_writer=keep.writer(50))
            assert keep.find() == 50 and os.listdir(folder) == ["step-50"]
            other.start()
            assert holdfast.dcp.load(state, keep, 10) == 10
            state["w"].fill_(20)
            deadline = time.monotonic() + 60
            while not any(info.step == 20 for info in keep.saver.client.list()):
                assert time.monotonic() < deadline
                holdfast.dcp.save(state, keep, 20)
        state["w"].zero_()
        assert keep.find() == 20 and holdfast.dcp.load(state, keep) == 20, keep.find()
        assert (state["w"] == 20).all() and keep.saver.client.attempt == 2
        whole_one = holdfast.dcp.load_whole("rolled", server=other.server, fallback=folder)
        assert (whole_one["w"] == 20).all()
        keep.close()
    finally:
        other.close()


def what_ckptd_does_not_finish_is_in_files(world):
    """As long as DCP has the state: here the session does not wait."""
    folder = os.path.join(world.folder, "unfinished")
    keep = session(world.server, "unfinished", fallback=folder, timeout=0.0)
    state, back = {"w": torch.ones(1 << 22)}, {"w": torch.zeros(1 << 22)}
    with logged():
        dcp.save(state, storage_writer=keep.writer(1))
        dcp.async_save(state, storage_writer=keep.writer(2)).result()
    assert sorted(os.listdir(folder)) == ["step-1", "step-2"], os.listdir(folder)
    dcp.load(back, checkpoint_id=os.path.join(folder, "step-2"))
    assert torch.equal(back["w"], state["w"])
    keep.close()


def without_ckptd_files_are_written_if_asked(world):
    folder = os.path.join(world.folder, "files")
    options = {"connect_seconds": 0.2}
    try:
        holdfast.dcp.Session("none", "unix:/no/ckptd", **options)
        raise AssertionError("there is none")
    except holdfast.errors.UnavailableError as error:
        assert str(error).count("\n") == 0
    keep = holdfast.dcp.Session("none", "unix:/no/ckptd", fallback=folder, **options)
    dcp.save({"a": torch.arange(5)}, storage_writer=keep.writer(4))
    back = {"a": torch.zeros(5, dtype=torch.int64)}
    dcp.load(back, storage_reader=keep.reader())
    assert back["a"][4] == 4
    holdfast.dcp.async_save({"a": torch.arange(5) * 2}, keep, 5)[1].result()
    assert holdfast.dcp.load(back, keep) == 5 and back["a"][4] == 8
    keep.close()


if __name__ == "__main__":
    print(f"# torch {torch.__version__}", flush=True)
    bed = World()
    bed.start("--memory.pool_bytes", "128MiB", "--limits.takeover_ms", "500")
    tests = [a_failed_save_does_not_end_training, saves_that_ckptd_misses_become_files_if_asked,
             a_ckptd_that_stops_or_has_no_room_does_not_end_training,
             a_lost_save_fails_the_future_of_async_save,
             what_no_ckptd_can_store_ends_training_at_once,
             a_rollback_is_newer_than_the_files_before_it, what_ckptd_does_not_finish_is_in_files,
             without_ckptd_files_are_written_if_asked]
    words = sys.argv[1:]
    passed = run([test for test in tests
                  if not words or any(word in test.__name__ for word in words)], bed)
    bed.close()
    end()
    sys.exit(not passed)
