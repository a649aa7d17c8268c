#!/usr/bin/env python3
"""crowd - a prune beside saves, loads, pins, tools and a second prune, killed at each of its steps.

Goal: SIGKILL may come before any step of a removal. Every listed checkpoint is whole and loads,
acknowledged and pinned ones are there, concurrent readers get no wrong bytes, and the next prune
completes the removal. Method: a real ckptd; a trainer that saves as fast as it can; two `ckpt-cli
prune`, a reader of a checkpoint about to be removed, `ckpt-cli verify` of it on the directory, and
a tool that pins and unpins, all at the same time. When all of them were served,
build/shims/kill_at.so kills ckptd before the n-th step of the next removal, for n = 1, 2, ... until
past its end. Then it kills a prune of the resulting directory likewise. (clients_cli_power cuts a
prune of an unserved directory at each of its system calls.) make test takes one step in
STEPS_APART, and more until each kind of step was met. SEED= repeats the choice, SAMPLE=1 takes each
step; ROUNDS= sets the number of kills.
"""

import itertools
import json
import os
import random
import re
import struct
import subprocess
import threading
import time

from lib_sample import sample
from lib_store import BUILD, CLI, SAVER, World
from lib_tap import end, skip, test

TRAINER = os.path.join(BUILD, "tests/clients_kill")
SHIM = os.path.join(BUILD, "shims/kill_at.so")
SAVED_FIRST = 6  # checkpoints that a prune finds
PATIENCE = 60
# In which each concurrent process should have been served.
SERVED_SECONDS = 3 * float(os.environ.get("TEST_TIME_SCALE", "1"))
ROUNDS_ALL = 20     # steps of the removal of two shards, and of the next one's beginning
STEPS_APART = 3
FIRST_OF_KINDS = 2, 6, 9, 13  # steps that are usually of another kind each
ROUNDS = int(os.environ.get("ROUNDS") or ROUNDS_ALL)
EVERYBODY = {"prune", "read", "verify", "pin", "unpin"}
PRUNE = ("--keep-last", "2", "--most")
# The objects that steps work on; each of them has to be met.
STEPS = ("renameat2 .*/tombstones ", "unlinkat .* manifest", "unlinkat .* shard-",
         r"unlinkat .* step-\d+-a\d+$", "fsync ")
LOST_MS = 200  # that a reader looks for a ckptd which is not there any more
seed = int(os.environ.get("SEED", time.time_ns() % 10**9))
chance = random.Random(seed)
crowds_chance = random.Random(seed)  # of several threads: how often they draw is by chance, too


class Killer:
    """The order for kill_at.so."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "order")
        self.number = 0
        self.set(0)
        self.met = set()

    def set(self, step):
        self.number += 1
        with open(self.path, "r+b" if os.path.exists(self.path) else "wb") as file:
            file.write(struct.pack("qq240s", step, self.number, b""))

    def environment(self):
        return dict(os.environ, LD_PRELOAD=SHIM, KILL_FILE=self.path)

    def last(self):
        """The step that was not taken."""
        with open(self.path, "rb") as file:
            text = file.read()[16:].rstrip(b"\0").decode()
        self.met.update(step for step in STEPS if re.search(step, text))
        return text


class Crowd:
    """All concurrent processes until they end; returns the violations that they saw."""

    def __init__(self, world, pins):
        self.world, self.pins, self.bad, self.counts = world, pins, [], {}
        self.threads = [threading.Thread(target=self.work, args=(one,)) for one in
                        (self.prune, self.prune, self.read, self.verify, self.pin)]
        for thread in self.threads:
            thread.start()

    def is_over(self):
        return self.world.process.poll() is not None

    def wait(self):
        """Until all of them were served, or a time limit."""
        until = time.monotonic() + SERVED_SECONDS
        while self.served() != EVERYBODY and time.monotonic() < until and not self.bad:
            time.sleep(0.02)

    def work(self, one):
        while not self.is_over() and not self.bad:
            try:
                one()
            except Exception as error:  # else the thread would end unheard
                self.bad.append(f"{one.__name__}: {error!r}")

    def end(self, counts):
        """The violations that they saw; adds to `counts` how often each got which answer."""
        for thread in self.threads:
            thread.join()
        for key, count in self.counts.items():
            counts[key] = counts.get(key, 0) + count
        return self.bad

    def served(self):
        return {what for what, code in list(self.counts) if code == 0}

    def expect(self, what, done, *codes):
        code, out, err = done
        self.counts[what, code] = self.counts.get((what, code), 0) + 1
        if code not in codes:
            self.bad.append(f"{what}: exit {code}: {out}{err}")
        return code == 0

    def oldest(self):
        """One of the next to be removed; None when ckptd does not answer."""
        code, out, _ = self.world.cli("list", self.world.run, "--json", *self.world.where)
        entries = json.loads(out) if code == 0 else []
        return crowds_chance.choice(entries[-3:]) if entries else None

    def prune(self):  # 74: another prune is running, or one checkpoint is leased
        self.expect("prune", self.world.cli("prune", self.world.run, *self.world.where, *PRUNE),
                    0, 69, 74)

    def read(self):
        entry = self.oldest()
        if entry:
            self.expect("read", load(self.world, entry, LOST_MS), 0, 2)

    def verify(self):
        entry = self.oldest()
        if entry:  # 66: it was removed
            self.expect("verify", self.world.cli("verify", name_of(entry), "--store",
                                                 self.world.store), 0, 66)

    def pin(self):
        """Pins one, and takes away another pin."""
        entry = self.oldest()
        if entry:
            name = name_of(entry)
            code, out, err = self.world.cli("pin", name, *self.world.where)
            if self.expect("pin", (code, out, err), 0, 66, 69):
                self.pins[name] = True
        if len(self.pins) > 1:
            name = crowds_chance.choice(list(self.pins))
            self.pins.pop(name)  # whatever the call answered, it may be removed
            self.expect("unpin", self.world.cli("unpin", name, *self.world.where), 0, 66, 69)


def name_of(entry):
    return f"{entry['run']}@{entry['step']}-a{entry['attempt']}"


def load(world, entry, connect_ms):
    """(0: correct, 2: not available; the output)"""
    done = subprocess.run([SAVER, "read", world.server, str(entry["step"]), str(connect_ms)],
                          capture_output=True, text=True, timeout=PATIENCE)
    return done.returncode, done.stdout, done.stderr


def start(world, killer):
    """For its first second a prune is told to wait: the trainer begins then."""
    killer.set(0)
    os.environ.update(LD_PRELOAD=SHIM, KILL_FILE=killer.path)
    world.launch()
    del os.environ["LD_PRELOAD"]


class Trainer:
    def __init__(self, world):
        self.lines = []
        self.process = subprocess.Popen([TRAINER, "resume", world.server, "2", "7"], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.thread = threading.Thread(target=self.collect)
        self.thread.start()

    def collect(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def kill(self):
        """The last acknowledged step."""
        self.process.kill()
        self.process.wait()
        self.thread.join()
        steps = [int(line) for line in self.lines if re.fullmatch(r"\d+\n", line)]
        return steps[-1] if steps else 0


def look(world, pins, acknowledged):
    """The violations in the store on disk."""
    entries = world.listed()
    names = {name_of(entry) for entry in entries}
    bad = [f"{name} is pinned and gone" for name in pins if name not in names]
    if max(entry["step"] for entry in entries) < acknowledged:
        bad.append(f"step {acknowledged} was acknowledged; there are {sorted(names)}")
    if len(entries) < 2:
        bad.append(f"only {sorted(names)} are left")
    return bad + world.all_verify()


def all_load(world):
    bad = []
    for entry in world.listed():
        code, _, err = load(world, entry, PATIENCE * 1000)
        if code != 0:
            bad.append(f"{name_of(entry)} does not load: {err}")
    return bad


def killed_beside_a_crowd(world, killer, step, pins, counts):
    """(the step before which ckptd was killed, the violations)"""
    start(world, killer)
    bad = all_load(world)
    trainer = Trainer(world)
    try:
        bad += removal_beside_a_crowd(world, killer, step, pins, counts)
    finally:
        acknowledged = trainer.kill()
    return killer.last(), bad + look(world, pins, acknowledged)


def removal_beside_a_crowd(world, killer, step, pins, counts):
    """Waits until ckptd was killed; returns the violations by then."""
    until = time.monotonic() + PATIENCE
    while len(world.listed()) < SAVED_FIRST + len(pins) and time.monotonic() < until:
        time.sleep(0.02)
    crowd = Crowd(world, pins)
    crowd.wait()
    killer.set(step)
    while world.process.poll() is None and time.monotonic() < until and not crowd.bad:
        time.sleep(0.02)
    bad = []
    if world.process.poll() is None:
        world.process.kill()
        bad.append("the removal did not come so far")
    world.process.wait()
    return bad + crowd.end(counts)


def killed_on_the_directory(world, killer, step, pins):
    """Runs a tool on the directory of the stopped ckptd, killed or not; returns the violations."""
    killer.set(step)
    done = subprocess.run([CLI, "prune", world.run, "--store", world.store, *PRUNE],
                          env=killer.environment(), capture_output=True, timeout=PATIENCE)
    bad = look(world, pins, 0)
    killer.last()
    return bad if done.returncode in (0, -9) else bad + [f"prune: {done}"]


def prune_again(world):
    """Remains that the next prune did not complete."""
    code, out, err = world.cli("prune", world.run, "--store", world.store, *PRUNE)
    left = [name_of(entry) for entry in world.listed()[2:] if not entry["pinned"]]
    return [(code, out, err, left, world.tombstones())] if (
        code != 0 or left or world.tombstones()) else []


def steps_to_kill(killer):
    """In random order; steps outside the sample are taken while a kind is missing."""
    steps = [1 + i % ROUNDS_ALL for i in range(ROUNDS)]
    first = steps if "ROUNDS" in os.environ else sample(steps, STEPS_APART, seed)
    others = [step for step in steps if step not in first]
    chance.shuffle(first)
    chance.shuffle(others)
    others.sort(key=lambda step: step not in FIRST_OF_KINDS)
    yield from first
    again = () if "ROUNDS" in os.environ else chance.choices(steps, k=ROUNDS_ALL)
    for step in itertools.chain(others, again):  # the object of a step is not the same each time
        if not killer.met.issuperset(STEPS):
            yield step


def main():
    print(f"# SEED={seed}")
    world, bad, unfinished, pins, counts = World(), [], [], {}, {}
    try:
        killer = Killer(world.folder)
        start(world, killer)
        world.save([1])
        world.stop()
        rounds = 0
        for step in steps_to_kill(killer):
            rounds += 1
            at, wrong = killed_beside_a_crowd(world, killer, step, pins, counts)
            print(f"# step {step}: {at}", flush=True)
            wrong += killed_on_the_directory(world, killer, 1 + chance.randrange(30), pins)
            bad += [f"step {step}, {at}: {what}" for what in wrong]
            if wrong:
                break
            unfinished += [(step, *what) for what in prune_again(world)]
        start(world, killer)
        bad += all_load(world)
        print(f"# {counts}")
        test(f"{rounds} kills at the steps of a prune beside saves, loads, pins and another "
             "prune: what is listed is whole and loads", not bad, "\n".join(bad))
        test("the next prune ends what was begun", not unfinished, unfinished)
        name, missed = "every kind of step was met", set(STEPS) - killer.met
        if ROUNDS < ROUNDS_ALL:
            skip([name], "ROUNDS is less than all")
        else:
            test(name, not missed, missed)
        test("and all who were there were also served",
             {what for what, code in counts if code == 0} == EVERYBODY, counts)
    finally:
        world.close()
    end()


if __name__ == "__main__":
    main()
