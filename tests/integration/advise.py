#!/usr/bin/env python3
"""advise - the save interval that ckpt-cli recommends.

Goal: the recommended interval has the least loss, by the trainer's measurements in its checkpoint,
or by options. It is never shorter than a save takes. Missing figures are asked for by name. A
trainer that chooses its interval itself uses it, and its bits are those of any other run. Method: a
tiny run of the real trainer, read through its ckptd and from the directory. The test computes the
loss of each interval independently, as the sum of restarts and lost work.
"""

import json
import math
import os
import re
import subprocess

from lib_store import World
from lib_tap import end, test
from lib_train import command, make_tokens, prose


def lost(wait, failures, restart, seconds):
    """The share of time that is not training, saving after `seconds` of it: each failure comes
    within a piece of work and save, a restart or a piece that failed is made again."""
    def expected(work):  # until so much goes by without a failure, which come at random
        return failures * (math.exp(work / failures) - 1)
    return 1 - seconds / (expected(seconds + wait) * (1 + expected(restart) / failures))


def advice(world, *options, where=None, code=0):
    got, out, said = world.cli("advise", "r", *(where or world.where), "--json", *options)
    assert got == code, (got, out, said)
    return json.loads(out if code == 0 else said)


def trained(world):
    make_tokens(world.folder, prose())
    done = subprocess.run(
        command(world.folder, world.server, "r", "--training.steps", 40,
                "--checkpoint.interval", 20, "--lr_scheduler.total_steps", 40,
                "--metrics.log_freq", 20, "--comm.ranks", 2),
        capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    expected = re.findall(r"a save copies ([0-9.]+) MiB per rank: ([0-9.]+) ms expected, at "
                          r"([0-9.]+) GB/s", done.stderr)
    accepted = re.findall(r"step 20 is accepted .*: ([0-9.]+) MiB per rank copied", done.stderr)
    test("at the start the trainer says how long the copy of a save should take",
         len(expected) == 1 and accepted == [expected[0][0]] and math.isclose(
             float(expected[0][1]), float(accepted[0]) * 2**20 / float(expected[0][2]) / 1e6,
             rel_tol=0.1, abs_tol=0.1), (expected, accepted))
    return float(re.findall(r" step: 40 .* time: ([0-9.]+)s", done.stderr)[0])


def measured(world, step):
    found = advice(world, "--mtbf", "2h", "--nodes", 4, "--restart-time", "90s")
    there = advice(world, "--mtbf", "2h", "--nodes", 4, "--restart-time", "90s",
                   where=("--store", world.store))
    test("the trainer's checkpoint says how long a step takes, as its log does",
         step / 3 < found["step_seconds"] < 1.5 * step + 0.01, (step, found))
    test("and how long training waits for a save", 0 < found["save_wait_seconds"] < 100, found)
    test("a ckptd tells how long the last save took, and all else is the directory's",
         found["durable_seconds"] > 0 and there["durable_seconds"] is None and
         {**found, **dict.fromkeys(("durable_seconds", "now", "advised"))} ==
         {**there, **dict.fromkeys(("durable_seconds", "now", "advised"))}, (found, there))
    now = there["now"]
    test("now: the interval that it was saved with", now["steps"] == 20 and
         math.isclose(now["seconds"], 20 * found["step_seconds"]), found)
    code, _, said = world.cli("advise", "r@20", *world.where, "--mtbf", "2h")
    test("the first save of a start says nothing, and an older one may be named", code == 2 and
         said.startswith("ckpt-cli: r@20-a1 does not record") and "RUN@STEP" in said, said)
    test("a failure of any node is one of the job", found["failure_seconds"] == 1800, found)


def chosen(world):
    """A trainer that chooses its interval. Each wait for a save includes the disk, so that the
    result does not depend on the poll of a pending save, once a second."""
    done = subprocess.run(
        command(world.folder, world.server, "auto", "--training.steps", 200,
                "--checkpoint.interval", "auto", "--checkpoint.mtbf", "1s",
                "--checkpoint.async_mode", "disabled", "--lr_scheduler.total_steps", 200,
                "--metrics.log_freq", 100, "--comm.ranks", 2, "--metrics.loss_file",
                os.path.join(world.folder, "auto.loss")),
        capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = re.findall(r"step (\d+) is accepted|interval = auto: a save every (\d+) steps, "
                      r"([0-9.]+) s: a step takes (\S+) s, training waits \S+ s for a save",
                      done.stderr)
    saves, steps, due, figures, bad = [], 10, 10, [], []
    for saved, every, seconds, step in told:
        if every:
            figures.append(int(every))
            steps, changed = int(every), abs(int(every) - steps) > 0.1 * steps
            due = saves[-1] + steps
            if not math.isclose(float(seconds), steps * float(step), abs_tol=0.06) or \
                    not changed and len(figures) > 1:
                bad.append(told)
        elif int(saved) < 200:
            saves.append(int(saved))
            if saves[-1] != due:
                bad.append((saved, due))
            due = saves[-1] + steps
    test("with auto the trainer saves behind 10 steps, then as often as it says", saves and
         saves[0] == 10 and len(saves) > 1 and not bad, (saves, bad, told))
    code, out, said = world.cli("advise", "auto", *world.where, "--mtbf", "1s", "--json")
    test("advise shows the interval that the trainer chose as that of now", code == 0 and
         json.loads(out)["now"]["steps"] == figures[-1], (out, said, figures))


def same_bits(world):
    """As chosen(), but with a fixed interval that no save of the other hits."""
    losses = [os.path.join(world.folder, run + ".loss") for run in ("auto", "fixed")]
    done = subprocess.run(
        command(world.folder, world.server, "fixed", "--training.steps", 200,
                "--checkpoint.interval", 97, "--lr_scheduler.total_steps", 200,
                "--metrics.log_freq", 100, "--comm.ranks", 1, "--metrics.loss_file", losses[1]),
        capture_output=True, text=True, timeout=300)
    auto, fixed = (open(path).read() for path in losses)
    code, out, said = world.cli("diff", "auto@200", "fixed@200", *world.where)
    test("a run that chose its intervals has the losses and weights of one with a fixed interval",
         done.returncode == 0 and auto == fixed and auto.count("\n") == 200 and code == 0,
         (done.stderr, out, said))


def least(world):
    """Of these options; the formula has its test in proto_daly.c."""
    step, wait = 2, 30
    found = advice(world, "--mtbf", "10d", "--nodes", 16, "--restart-time", "5m", "--step-time",
                   step, "--save-time", wait, where=("--store", world.store))
    best = found["advised"]
    of = [lost(wait, found["failure_seconds"], 300, n * step)
          for n in range(1, 4 * best["steps"] + 2)]
    test("no other interval loses less, and what is lost is told",
         best["overhead"] <= 1.002 * min(of) and best["seconds"] == best["steps"] * step and
         math.isclose(best["overhead"], of[best["steps"] - 1], rel_tol=1e-6) and
         math.isclose(best["saves"], wait / (wait + best["seconds"])), (found, min(of)))
    slow = advice(world, "--mtbf", "1s", "--step-time", "0.0001", "--save-time", "0.0000001")
    test("no interval is shorter than it takes until a save is durable", 0 <=
         slow["advised"]["seconds"] - (slow["durable_seconds"] - 1e-7) < 0.00011, slow)


def unknown(world):
    said = advice(world, code=2)
    test("without --mtbf it asks for that", "--mtbf" in said["hint"], said)
    world.save((1,))
    (run,) = {one["run"] for one in world.listed()} - {"r"}
    code, _, said = world.cli("advise", run, *world.where, "--mtbf", "1d")
    test("of another program's checkpoint it asks for the time of a step", code == 2 and
         "--step-time" in said, said)
    code, _, said = world.cli("advise", run, *world.where, "--mtbf", "1d", "--step-time", 1)
    test("and then for that of a save", code == 2 and "--save-time" in said, said)
    code, out, said = world.cli("advise", run, *world.where, "--mtbf", "1d", "--step-time",
                                1, "--save-time", 2)
    test("told both it advises, and knows no interval that is set", code == 0 and
         "advised" in out and "now" not in out, out + said)


def main():
    world = World()
    try:
        world.launch()
        measured(world, trained(world))
        least(world)
        unknown(world)
        chosen(world)
        same_bits(world)
    finally:
        world.close()
    end()


main()
