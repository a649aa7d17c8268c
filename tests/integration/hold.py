#!/usr/bin/env python3
"""hold - quarantine and leases, through ckptd and ckpt-cli.

Goal: a damaged checkpoint is quarantined durably, listed with the reason, skipped by requests that
name no step, never removed, and released only after verification. Neither ckptd nor another tool
removes a checkpoint that a tool reads; it goes when its reader is gone, also by a kill. Where pins
cannot be read a prune has no plan. Method: a real ckptd and store; a byte changed in a shard;
readers stopped by SIGSTOP while they read.
"""

import contextlib
import json
import os
import signal
import subprocess
import time

from lib_store import CLI, PATIENCE, SAVER, World, change, comes
from lib_tap import end, test


def shard_of(world, step):
    entry = {entry["step"]: entry for entry in world.listed()}[step]
    folder = os.path.join(world.store, world.run, f"step-{step:08}-a{entry['attempt']:04}")
    return os.path.join(folder, sorted(name for name in os.listdir(folder)
                                       if name.startswith("shard"))[0])


def damage_of(entries, step):
    return {entry["step"]: entry.get("damage", "") for entry in entries}[step]


def noted(world):
    """Damages steps 4 and 5; returns ckptd's report about the latter."""
    world.launch()
    world.save(range(1, 6))
    world.stop()
    server, run = ("--server", world.server), world.run
    change(shard_of(world, 5), 300000)
    os.truncate(shard_of(world, 4), 4096)
    world.launch()
    entries = world.listed(*server)
    test("a start finds a shard of the wrong size and says so",
         "bytes instead of" in damage_of(entries, 4) and not damage_of(entries, 5), entries)
    code = subprocess.run([SAVER, "load", world.server, "1", "1", "5"], capture_output=True,
                          timeout=60).returncode
    comes(lambda: damage_of(world.listed(), 5))  # a worker makes the note
    notes = sorted(os.listdir(os.path.join(world.store, run, "quarantine")))
    test("a load finds a changed byte, and both have a durable note",
         code != 0 and [name[:13] for name in notes] == ["step-00000004", "step-00000005"], notes)
    world.stop()
    entries = world.listed()
    test("tools without a server list it with the reason",
         "block 0" in damage_of(entries, 5) and "bytes instead of" in damage_of(entries, 4) and
         not damage_of(entries, 3), entries)
    world.launch()
    entries = world.listed(*server)
    test("so does the next ckptd, which has read none of it", "block 0" in damage_of(entries, 5),
         entries)
    shown = world.cli("show", f"{run}@5", *server)[1]
    told = json.loads(world.cli("show", f"{run}@5", *server, "--json")[1])
    test("and shows it with the reason", "IN QUARANTINE: block 0" in shown and
         told["durability"] == "damaged" and "block 0" in told["damage"], shown[-300:])
    world.stop()
    return told


def released(world, told):
    store, server, run = ("--store", world.store), ("--server", world.server), world.run
    code, out, err = world.cli("verify", run, *store)
    test("without a step the newest whole one is taken", code == 0 and f"{run}@3" in out and
         "skipped" in err, (code, out, err))
    code, out, err = world.cli("verify", f"{run}@5", *store)
    test("with a step it is looked at all the same",
         code == 1 and "DAMAGED" in out and "in quarantine: block 0" in out, (out, err))
    shown = world.cli("show", f"{run}@5", *store)[1]
    told_here = json.loads(world.cli("show", f"{run}@5", *store, "--json")[1])
    for words in (told, told_here):
        words.pop("verified", None)  # a verify came between
    test("show in the same words as a server", told_here == told, told_here.get("damage"))
    document = json.loads(world.cli("verify", f"{run}@5", *store, "--json")[1])
    test("which show and verify --json tell too", "IN QUARANTINE: block 0" in shown and
         "block 0" in document["quarantine"], shown[-300:])
    code, out, err = world.cli("prune", run, *store, "--keep-last", 1, "--most", "--json")
    plan = {entry["step"]: entry["plan"] for entry in json.loads(out)["checkpoints"]}
    test("a prune keeps the evidence and counts it for nothing",
         plan == {5: "unverifiable", 4: "unverifiable", 3: "last, good, proven", 2: "good",
                  1: "remove"}, plan)
    code, out, err = world.cli("verify", f"{run}@5", *store, "--release")
    test("it is not released while it is damaged", code == 1 and damage_of(world.listed(), 5))
    change(shard_of(world, 5), 300000)
    test("nor by being put right alone", damage_of(world.listed(), 5))
    for quick in ([], ["--quick"]):
        code, out, err = world.cli("verify", f"{run}@5", *store, *quick)
        test(f"verify {' '.join(quick)} finds nothing then, and says why it is not served",
             code == 0 and "in quarantine until `verify --release`" in out and ", local" not in out,
             (code, out, err))
    code, out, err = world.cli("verify", f"{run}@5", *store, "--release")
    test("but when all of it was read again", code == 0 and "released from quarantine" in out and
         not damage_of(world.listed(), 5), (code, out, err))
    world.launch()
    test("the next ckptd serves it", not damage_of(world.listed(*server), 5))
    world.stop()


@contextlib.contextmanager
def reader_of(world, name):
    """A tool that has leased the checkpoint and stands still, and is killed in the end."""
    leases, deadline = os.path.join(world.store, world.run, "leases"), time.monotonic() + PATIENCE
    before = set(os.listdir(leases)) if os.path.isdir(leases) else set()
    while True:
        assert time.monotonic() < deadline, "no reader could be stopped"
        reader = subprocess.Popen([CLI, "verify", name, "--store", world.store],
                                  stdout=subprocess.DEVNULL)
        try:
            while reader.poll() is None:
                if os.path.isdir(leases) and any(entry.startswith("step-") for entry in
                                                 set(os.listdir(leases)) - before):
                    reader.send_signal(signal.SIGSTOP)
                    time.sleep(0.05)
                    if set(os.listdir(leases)) - before:
                        yield reader
                        return
                    reader.send_signal(signal.SIGCONT)  # it was about to end
        finally:
            reader.kill()
            reader.wait()


def leases(world):
    store, server, run = ("--store", world.store), ("--server", world.server), world.run
    world.launch()
    world.save(range(11, 17))
    prune = ("prune", run, "--keep-last", 1, "--most", "--json")

    def plan_of(out, step):
        return {entry["step"]: entry for entry in json.loads(out)["checkpoints"]}[step]

    with reader_of(world, f"{run}@11") as reader:
        code, out, err = world.cli(*prune, *server)
        test("ckptd does not remove what a tool reads",
             code == 0 and plan_of(out, 11)["plan"] == "leased" and 11 in world.steps() and
             12 not in world.steps(), (code, out, err))
        no_plan(world)
        world.stop()
        code, out, err = world.cli(*prune, *store)
        test("nor does another tool", code == 0 and plan_of(out, 11)["plan"] == "leased" and
             11 in world.steps(), (code, out, err))
        reader.send_signal(signal.SIGCONT)
        test("the reader finds all of it whole", reader.wait(30) == 0)
    folder = os.path.join(world.store, run, "leases")
    test("its lease ends with it", os.listdir(folder) == [], os.listdir(folder))
    with reader_of(world, f"{run}@11"):
        pass
    world.all_verify()  # newer ones are known whole: no rule needs it
    code, out, err = world.cli(*prune, *store)
    test("a killed reader holds nothing",
         code == 0 and plan_of(out, 11)["removed"] and 11 not in world.steps(), (code, out, err))
    test("and leaves nothing", os.listdir(folder) == [], os.listdir(folder))
    bad = [line for line in world.all_verify() if not line.startswith(f"{run}@4-")]
    test("what is listed is whole", not bad, bad)


def no_plan(world):
    """Where pins cannot be read it is unknown what a prune removes: a dry run has no plan to show
    (space.py tests one on the directory)."""
    pins = os.path.join(world.store, world.run, "pins")
    os.makedirs(pins, exist_ok=True)
    os.rename(pins, pins + ".away")
    os.symlink("pins.away", pins)  # which is not followed
    code, out, err = world.cli("prune", world.run, *world.where, "--keep-last", 1, "--dry-run")
    test("without its pins a dry run shows no plan",
         code == 74 and out == "" and "pins" in err, (code, out, err))
    os.unlink(pins)
    os.rename(pins + ".away", pins)


def main():
    world = World()
    try:
        released(world, noted(world))
        leases(world)
    finally:
        world.close()
    end()


if __name__ == "__main__":
    main()
