#!/usr/bin/env python3
"""tier - the far tier: what is committed drains there, and a machine with nothing resumes from it.

Goal: a save that was acknowledged as `bucket` survives the loss of every process and of the whole
local store: a fresh ckptd with an empty store and a fresh trainer have the losses of the run that
was never touched, bit for bit. Two ckptd that share a far tier never hold one attempt both. A drain
that is killed or whose tier fails for a while goes on and ends whole. Method: the real programs on
a `dir:` tier; SIGKILL, removed directories, a tier that is a file for a while.
"""

import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import lib_train
from lib_store import PATIENCE, World, change
from lib_tap import end, test

SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))
STEPS = 10
PARTS = "--tier.part_bytes", "1MiB", "--tier.quiet", "false"


def tier_of(world, *where):
    code, out, err = world.cli("status", "--json", *(where or world.where))
    assert code == 0, err
    return json.loads(out)["tier"]


def wait_until(is_so, what):
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def drained(world):
    return lambda: tier_of(world)["now"] is None and tier_of(world)["waiting"] == 0


def train(world, run, *options, **popen):
    return subprocess.Popen(
        lib_train.command(world.folder, world.server, run, "--training.steps", STEPS,
                          "--checkpoint.interval", "1", "--checkpoint.when_busy", "wait",
                          "--comm.ranks", "2",
                          "--metrics.loss_file", os.path.join(world.folder, run + ".loss"),
                          *options), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        **popen)


def losses(world, run):
    with open(os.path.join(world.folder, run + ".loss")) as file:
        return {int(line.split()[0]): line for line in file}


def lose_everything(world):
    world.process.kill()
    world.process.wait()
    shutil.rmtree(world.store)


def resumes(world, options, rounds):
    lib_train.make_tokens(world.folder, lib_train.prose())
    world.start(*options)
    process = train(world, "whole")
    said = process.communicate()[1]
    test("a run trains beside the drain", process.returncode == 0, said)
    expected = losses(world, "whole")
    chance = random.Random(SEED)
    for round_ in range(rounds):
        run, last = f"r{round_}", chance.randrange(1, STEPS)
        process = train(world, run, "--debug.pause_at_step", last + 1)
        wait_until(lambda: any(f"/step-{last:08}-" in path for path in
                               glob.glob(f"{world.far}/{run}/step-*/manifest.json")) or
                   process.poll() is not None, f"step {last} in the far tier")
        process.kill()
        process.communicate()
        lose_everything(world)
        world.start(*options)
        listed = {(entry["run"], entry["step"]): entry for entry in world.listed(*world.where)}
        test(f"round {round_}: a fresh ckptd lists what the far tier has",
             listed.get((run, last), {}).get("durability") == "bucket", (run, last, listed.keys()))
        process = train(world, run, "--checkpoint.durability", "bucket")
        said = process.communicate()[1]
        log = world.log()
        test(f"round {round_}: a fresh trainer resumes from step {last}, bit for bit",
             process.returncode == 0 and losses(world, run) == expected and
             f"newest checkpoint: step {last}" in log, (said[-2000:], log[-2000:]))
        test(f"round {round_}: with checkpoint.durability the end waits for the far tier",
             f"step {STEPS} is durable (bucket)" in said and
             os.path.exists(f"{world.far}/{run}/step-{STEPS:08}-a0002/manifest.json"), said[-2000:])
    world.stop()


def main():
    print(f"# SEED={SEED}")
    world = World()
    world.far = os.path.join(world.folder, "far")
    options = "--tier.store", "dir:" + world.far, *PARTS
    resumes(world, options, int(os.environ.get("ROUNDS", "5")))
    end()


main()
