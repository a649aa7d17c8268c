#!/usr/bin/env python3
"""crossing - torchtitan's Trainer saves through ckptd, and its run continues in ours, and back.

Goal: with holdfast.torchtitan in its configuration a stopped run of torchtitan continues as if
undisturbed. After `python -m holdfast cross` our trainer continues from its state, and torchtitan
from our trainer's: weights, moments of AdamW, updates, step and schedule. Method: torchtitan's
Trainer and Llama on the CPU (lib_titan.py) and a real ckptd. Both trainers see the same samples, so
the losses of the run that crosses are compared with those of the one that stays: 1e-6, relative, as
step.py has it (a ten-millionth was seen). The moments or the schedule's step left out differ by at
least ten times as much, which is tested too (300 times was seen). From one saved step, FSDP 2 and
tensor parallel 2 of torchtitan differ by 7.3e-8. From their starts they differ by 2.9e-4, by 2.9e-5
in the first loss: the meshes draw other initial weights. So each comparison here begins at a saved
step.
"""
import functools
import math
import os
import subprocess
import sys

import lib_titan
from lib_dcp import ROOT, end
from lib_hf import Bed, run
from lib_tap import run as run_tests
import lib_train

PLACE = "--head-dim", lib_titan.DIM // lib_titan.HEADS, "--seq-len", lib_titan.SEQ
LOSS, NOTICED = 1e-6, 1e-5
STEPS = 10  # of both schedules
TWO, ONE = {"data_parallel_shard_degree": 2}, {"data_parallel_shard_degree": 1}
TENSOR = {"data_parallel_shard_degree": 1, "tensor_parallel_degree": 2}
ENV = dict(os.environ, PYTHONPATH=os.path.join(ROOT, "clients/python/src"))


def manager(server, name, more):
    from holdfast.torchtitan import HoldfastManager

    return HoldfastManager.Config(run=name, server=server, interval=4, last_save_model_only=False,
                                  take_over=True, **more)


def titan(bed, name, steps, mesh=TWO, skip_steps=0, **more):
    """Losses by step, of torchtitan up to `steps`."""
    checkpoint = functools.partial(manager, bed.server, name, more)
    make = functools.partial(lib_titan.make_config, bed.path("tokens"), checkpoint, steps,
                             bed.path("dump"), mesh, skip_steps=skip_steps)
    return dict(lib_titan.train(make, math.prod(mesh.values())))


def ours(bed, name, steps, ranks, *options):
    """Losses by step, of our trainer."""
    losses = bed.path("loss")
    if os.path.exists(losses):
        os.remove(losses)
    run(*lib_train.command(bed.root, bed.server, name, "--training.steps", steps, "--comm.ranks",
                           ranks, "--lr_scheduler.total_steps", STEPS, "--checkpoint.interval", 100,
                           *options))
    with open(losses) as file:
        rows = [line.split() for line in file]
    return {int(row[0]): float.fromhex(row[1]) for row in rows}


def cross(bed, source, name, *options):
    subprocess.run([sys.executable, "-m", "holdfast", "--server", bed.server, "cross", source, name,
                    *map(str, options)], check=True, env=ENV, stdout=subprocess.DEVNULL)


def place(bed, steps):
    return *PLACE, "--tokens", bed.path("tokens"), "--samples", steps * lib_titan.BATCH


def compare(what, got, want):
    figure = max(abs(got[step] / want[step] - 1) for step in got)
    print(f"# {what}, {len(got)} losses: {figure:.3g} (at most {LOSS:g})", flush=True)
    assert figure <= LOSS, f"{what}: {got} and {want}"


def torchtitan_saves_and_resumes(bed):
    bed.whole = titan(bed, "whole", STEPS)
    cut = titan(bed, "cut", 4)
    again = titan(bed, "cut", STEPS)
    assert sorted(cut) == [1, 2, 3, 4] and sorted(again) == [5, 6, 7, 8, 9, 10], (cut, again)
    assert {**cut, **again} == bed.whole, (cut, again, bed.whole)


def torchtitan_resumes_on_another_mesh(bed):
    for what, mesh in ("1", ONE), ("tensor parallel", TENSOR):
        again = titan(bed, "cut", STEPS, mesh, 4, load_step=4, exclude_from_loading=["dataloader"])
        compare(f"torchtitan, FSDP 2 and then {what}", again, bed.whole)


def a_run_of_torchtitan_goes_on_in_our_trainer(bed):
    cross(bed, "cut@4", "over", *place(bed, 4))
    compare("torchtitan, then ours", ours(bed, "over", STEPS, 2), bed.whole)


def what_did_not_cross_is_noticed(bed):
    for part in ("optimizer", "lr_scheduler"):
        name = f"without-{part}".replace("_", "-")
        cross(bed, "cut@4", name, *place(bed, 4))
        got = ours(bed, name, STEPS, 2, "--checkpoint.exclude_from_loading", part)
        worst = max(abs(got[step] / bed.whole[step] - 1) for step in got)
        print(f"# without {part}: {worst:.3g} (more than {NOTICED:g})", flush=True)
        assert worst > NOTICED, (part, worst)


def a_run_of_ours_goes_on_in_torchtitan(bed):
    cross(bed, "over@10", "back-early", "--to", "torchtitan")  # a run that has ended crosses too
    ours(bed, "mine", 4, 2)
    whole = ours(bed, "mine-whole", STEPS, 1)
    cross(bed, "mine@4", "back", "--to", "torchtitan")
    got = titan(bed, "back", STEPS, TWO, 4, exclude_from_loading=["dataloader"])
    compare("ours, then torchtitan", got, {step: whole[step] for step in got})
    cross(bed, "back@10", "home", *place(bed, STEPS))


def what_cannot_cross_is_refused(bed):
    for arguments, word in ((("cut@4", "x"), "--head-dim"), (("over@10", "x"), "holdfast"),
                            (("cut@4", "x", "--to", "torchtitan"), "torchtitan")):
        done = subprocess.run([sys.executable, "-m", "holdfast", "--server", bed.server, "cross",
                               *arguments], env=ENV, capture_output=True, text=True)
        assert done.returncode in (1, 2) and word in done.stderr, done


if __name__ == "__main__":
    world = Bed()
    world.server = world.start(world.store)
    try:
        passed = run_tests([torchtitan_saves_and_resumes, torchtitan_resumes_on_another_mesh,
                            a_run_of_torchtitan_goes_on_in_our_trainer,
                            what_did_not_cross_is_noticed, a_run_of_ours_goes_on_in_torchtitan,
                            what_cannot_cross_is_refused], world)
    finally:
        world.stop()
        end()
    sys.exit(not passed)
