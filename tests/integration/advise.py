#!/usr/bin/env python3
"""advise - the save interval, retention and copies that ckpt-cli recommends.

Goal: the recommended interval has the least loss, by the trainer's measurements in its checkpoint,
or by options. It is never shorter than a save takes. Failures are counted in the journal; missing
figures are asked for by name. What is to be kept fits on the disk, and a copy goes into the tier
that ckptd has. ckptd and trainer accept the settings. A trainer that chooses its interval itself
uses it, and its bits are those of any other run. Method: a tiny run of the real trainer, read
through its ckptd and from the directory. The test computes the loss of each interval independently,
as the sum of restarts and lost work.
"""

import json
import math
import os
import re
import shutil
import subprocess
import time

from lib_store import World, comes, make_tier, wait_until
from lib_tap import end, test
from lib_train import Trainer, command, make_tokens, prose


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
    other = dict.fromkeys(("durable_seconds", "now", "advised", "retention", "replication"))
    test("a ckptd tells how long the last save took, and all else is the directory's",
         found["durable_seconds"] > 0 and there["durable_seconds"] is None and
         {**found, **other} == {**there, **other}, (found, there))
    now = there["now"]
    test("now: the interval that it was saved with", now["steps"] == 20 and
         math.isclose(now["seconds"], 20 * found["step_seconds"]), found)
    code, _, said = world.cli("advise", "r@20", *world.where, "--mtbf", "2h")
    test("the first save of a start says nothing, and another one may be named", code == 2 and
         said.startswith("ckpt-cli: r@20-a1 does not record") and
         "name another one, RUN@STEP" in said, said)
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
         saves[0] == 10 and due >= 200 and not bad, (saves, bad, told))
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


def kept(world):
    wait_until(lambda: '"attempt"' in world.cli("server", "history", "r", "--store", world.store,
                                                "--json")[1], "the journal")
    for where in (world.where, ("--store", world.store)):
        found = advice(world, where=where)
        disk, keep = found["retention"], found["retention"]["set"]["retention.keep_last"]
        wall = found["advised"]["seconds"] + found["save_wait_seconds"]
        test("as many fit as the room and those that are there have space for",
             disk["held_bytes"] >= 2 * found["bytes"] and disk["fit"] ==
             (disk["room_bytes"] + disk["held_bytes"] + disk["trash_bytes"]) // found["bytes"] and
             disk["has_space"] == (disk["fit"] > 2), found)
        week = math.ceil(7 * 86400 / wall) + 1
        test("and are kept, but for the one being saved and five beside the rule, or a week's",
             keep == max(2, min(week, disk["fit"] - 6)) and
             math.isclose(disk["reach_seconds"], (keep - 1) * wall), found)
        test("the disk is full sooner with the interval of now, as saves come sooner",
             math.isclose(disk["hours_to_full_advised"] * found["bytes"] / wall * 3600,
                          disk["room_bytes"] + disk["trash_bytes"], rel_tol=1e-6) and
             (disk["hours_to_full_is_measured"] or
              disk["hours_to_full"] <= disk["hours_to_full_advised"]), found)


def copied(world):
    """By a ckptd with a far tier, after one without any."""
    alone = advice(world, "--step-time", 60)["replication"]
    text = world.cli("advise", "r", *world.where, "--step-time", 60)[1]
    test("without a second tier a lost disk costs all of the training, and one is to be set up",
         alone["lost_seconds_local"] == 40 * 60 and not alone["is_configured"] and
         "tier.store" in alone["set"] and "costs all 40.0 min" in text, (alone, text))
    world.stop()
    far = os.path.join(world.folder, "far")
    make_tier(world.folder, far)
    world.launch("--tier.store", "dir:" + far, "--tier.quiet", "false")

    def tier():
        return advice(world)["replication"]["far"] or {}
    comes(lambda: tier().get("copy_seconds") and tier()["behind_seconds"] is not None)
    found = advice(world, "--step-time", 60)
    both = found["replication"]
    test("with one a lost disk costs an interval and a copy, whose time was measured",
         both["advised"] == "bucket" and both["is_configured"] and
         math.isclose(both["far"]["lost_seconds"], found["advised"]["seconds"] +
                      found["save_wait_seconds"] + both["far"]["copy_seconds"]) and
         both["set"] == {"tier.every": 1, "checkpoint.durability": "bucket"}, found)


def taken(world):
    """Each section of the text ends with settings that the programs accept."""
    out = world.cli("advise", "r", *world.where)[1]
    sections = [part.strip().split("\n") for part in out.split("\n\n")]
    settings = [re.findall(r"^(?:set|or|) +([a-z_]+\.[a-z_]+) = (.*)$", "\n".join(part), re.M)
                for part in sections]
    test("interval, retention and copies each end with settings", len(sections) == 3 and
         all(settings) and all(f"{key} = {value}" in part[-1] for part, found in
                               zip(sections, settings) for key, value in found[-1:]), out)
    words = [word for found in settings[:1] + settings[2:] for key, value in found
             if key.startswith("checkpoint.") for word in ("--" + key, json.loads(value))]
    trainer = subprocess.run(command(world.folder, world.server, "r", *words,
                                     "--estimate"),
                             capture_output=True, text=True, timeout=100)
    words = [word for found in settings for key, value in found
             if not key.startswith("checkpoint.") for word in ("--" + key, value)]
    code, _, said = world.check("--tier.store", "dir:" + os.path.join(world.folder, "far"), *words)
    test("which trainer and ckptd accept", code == 0 and trainer.returncode == 0,
         (said, trainer.stderr))
    test("beside the formula with its numbers", re.search(
        r"^formula +t = sqrt\(2 D M\) .* = sqrt\(2 \* [0-9.e-]+ \* 86400\).* = [0-9.]+ s ", out,
        re.M), out)


def failed(world):
    """A start whose ranks are killed, after a while, and two that end in order."""
    def start(*options, steps=40):
        return Trainer(command(world.folder, world.server, "dead", "--training.steps", steps,
                               "--checkpoint.interval", 10, "--lr_scheduler.total_steps", 60,
                               "--metrics.log_freq", 40, "--comm.ranks", 2, *options))
    first = start("--debug.pause_at_step", 11)
    wait_until(lambda: any(entry["run"] == "dead" for entry in world.listed(*world.where)),
               lambda: world.log())
    time.sleep(2)
    first.kill()
    first.communicate()
    for steps in (40, 60):
        other = start(steps=steps)
        said = other.communicate()[1]
        assert other.returncode == 0, said
    figures = ("--step-time", 1, "--save-time", 1, "--json")
    code, out, said = world.cli("advise", "dead", *world.where, *figures)
    found = json.loads(out)
    measured_by = found["interval"]
    test("lost ranks are a failure, an end with a save is none; the time is of all", code == 0 and
         measured_by["failures_from"] == "measured" and measured_by["starts"] == 3 and
         measured_by["starts_lost"] == 1 and measured_by["starts_unexplained"] == 0 and
         2 <= measured_by["trained_seconds"] == found["failure_seconds"], (out, said))


def unknown(world):
    found = advice(world)
    test("a short run without a failure is taken to fail as often as checkpoint.mtbf says",
         found["failure_seconds"] == 86400 and found["interval"]["failures_from"] == "assumed",
         found)
    copy = os.path.join(world.folder, "copy")
    world.copy_store(copy)
    shutil.rmtree(os.path.join(copy, "r", "history"))
    said = advice(world, where=("--store", copy), code=2)
    test("without --mtbf and without a journal it asks for that", "--mtbf" in said["hint"], said)
    world.save((1,))
    (run,) = {one["run"] for one in world.listed()} - {"r", "auto", "fixed", "dead"}
    code, _, said = world.cli("advise", run, *world.where, "--mtbf", "1d")
    test("of another program's checkpoint it asks for the time of a step", code == 2 and
         "--step-time" in said, said)
    code, _, said = world.cli("advise", run, *world.where, "--mtbf", "1d", "--step-time", 1)
    test("and then for that of a save", code == 2 and "--save-time" in said, said)
    code, out, said = world.cli("advise", run, *world.where, "--mtbf", "1d", "--step-time",
                                1, "--save-time", 2)
    test("told both it advises, and knows no interval that is set", code == 0 and
         "advised" in out and not re.search("^now", out, re.M), out + said)


def main():
    world = World()
    try:
        world.launch()
        measured(world, trained(world))
        least(world)
        kept(world)
        chosen(world)
        same_bits(world)
        copied(world)
        taken(world)
        failed(world)
        unknown(world)
    finally:
        world.close()
    end()


main()
