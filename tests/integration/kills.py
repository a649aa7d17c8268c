#!/usr/bin/env python3
"""kills - the real processes, killed with SIGKILL at any moment, again and again.

Goal: no acknowledged checkpoint is lost, nothing listed is torn, a restarted trainer loads what was
committed last, to the bit, whoever was killed. Method: a ckptd with retention, a trainer of 1 to 4
ranks (`clients_kill resume`) that loads, checks every element, and saves as fast as it can; each
round kills the trainer, ckptd, both, ckptd while it starts, or a `ckpt-cli prune` of the directory.
Afterwards the newest acknowledged step must be in the list, the newest checkpoints must verify
block by block, and the next trainer must load that step or a later one.

    KILLS=200 SECONDS= SEED=     so many kills, or as many as fit into so many seconds (0: no limit)

time limit: 900 s
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BUILD = os.path.abspath(os.environ.get("BUILD", "build"))
CLI = os.path.join(BUILD, "ckpt-cli")
SAVER = os.path.join(BUILD, "tests/clients_ckpt")
TRAINER = os.path.join(BUILD, "tests/clients_kill")
KILLS = int(os.environ.get("KILLS") or 200)
SECONDS = float(os.environ.get("SECONDS") or 0)
PATIENCE = 60  # of anything that should take a fraction of a second
NEWEST = 2     # checkpoints that are verified after each round
seed = int(os.environ.get("SEED") or time.time_ns() % 10**9)
chance = random.Random(seed)


class Broken(Exception):
    pass


class World:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="ki-")
        self.server = f"unix:{self.folder}/s"
        self.store = os.path.join(self.folder, "store")
        self.log = open(os.path.join(self.folder, "log"), "ab")
        self.ckptd = self.trainer = None
        self.lines = b""
        self.kills = {"trainer": 0, "ckptd": 0, "ckptd's start": 0, "prune": 0}
        self.acknowledged = 0

    def cli(self, *arguments):
        done = subprocess.run([CLI, *map(str, arguments)], capture_output=True, text=True,
                              timeout=PATIENCE)
        return done.returncode, done.stdout, done.stderr

    def spawn_ckptd(self):
        self.ckptd = subprocess.Popen(
            [os.path.join(BUILD, "ckptd"), "--listen", self.server, "--store", self.store,
             "--memory.pool_bytes", "96MiB", "--memory.segment_bytes", "1MiB",
             "--limits.lease_ms", "1000", "--retention.keep_last", "4"],
            stdout=self.log, stderr=self.log)

    def start(self):
        self.spawn_ckptd()
        deadline = time.monotonic() + PATIENCE
        while self.cli("health", "--server", self.server)[0] != 0:
            if self.ckptd.poll() is not None or time.monotonic() > deadline:
                raise Broken(f"ckptd does not start: exit {self.ckptd.poll()}")
            time.sleep(0.01)

    def start_trainer(self):
        self.trainer = subprocess.Popen(
            [TRAINER, "resume", self.server, str(chance.randint(1, 4)), str(chance.randint(1, 99))],
            stdout=subprocess.PIPE, stderr=self.log)
        line = self.trainer.stdout.readline().decode()
        if not line.startswith("loaded "):
            raise Broken(f"the trainer could not load, or loaded what is wrong: {line!r}")
        if int(line.split()[1]) < self.acknowledged:
            raise Broken(f"the trainer got step {line.split()[1]}, step {self.acknowledged} was "
                         "acknowledged")

    def kill(self, process, what):
        if process.poll() is None:
            process.kill()
            self.kills[what] += 1
        process.wait()

    def kill_trainer(self):
        self.kill(self.trainer, "trainer")
        for line in self.trainer.stdout.read().decode().split("\n")[:-1]:
            self.acknowledged = int(line)

    def listed(self):
        code, out, err = self.cli("list", "--json", "--store", self.store)
        if code != 0:
            raise Broken(f"list: {err}")
        return json.loads(out)  # newest first

    def verify(self, entry):
        name = f"{entry['run']}@{entry['step']}-a{entry['attempt']}"
        code, out, err = self.cli("verify", "--store", self.store, name)
        if code != 0 and not (code == 66 and self.ckptd.poll() is None):  # retention took it away
            raise Broken(f"{name}: exit {code}: {out}{err}")

    def check(self, count):
        entries = self.listed()
        if max([entry["step"] for entry in entries], default=0) < self.acknowledged:
            raise Broken(f"step {self.acknowledged} was acknowledged, the list has "
                         f"{[entry['step'] for entry in entries]}")
        for entry in entries[:count]:
            self.verify(entry)


def kill_start(world):
    """ckptd while it reads the store and removes rubbish; twice at times."""
    for _ in range(chance.randint(1, 2)):
        world.spawn_ckptd()
        time.sleep(chance.expovariate(1 / 0.03))
        world.kill(world.ckptd, "ckptd's start")


def kill_prune(world):
    run = world.listed()[0]["run"]
    tool = subprocess.Popen([CLI, "prune", run, "--keep-last", "2", "--most", "--store",
                             world.store], stdout=world.log, stderr=world.log)
    time.sleep(chance.uniform(0.002, 0.02))
    world.kill(tool, "prune")


def one_round(world):
    world.start_trainer()
    time.sleep(chance.uniform(0, 0.12))
    what = chance.choices(["trainer", "ckptd", "both", "start", "prune"], [3, 2, 2, 2, 2])[0]
    if what != "trainer":
        world.kill(world.ckptd, "ckptd")
    if what == "ckptd":
        time.sleep(chance.uniform(0, 0.05))  # the trainer finds out
    world.kill_trainer()
    world.check(NEWEST)
    if what == "trainer":
        return
    if what == "start":
        kill_start(world)
    if what == "prune":
        kill_prune(world)
    if what in ("start", "prune"):
        world.check(NEWEST)
    world.start()


def main():
    print(f"1..1\n# SEED={seed}", flush=True)
    world, reason, begin = World(), None, time.monotonic()
    try:
        world.start()
        subprocess.run([SAVER, "save", world.server, "2", "1", "1"], check=True,
                       stderr=world.log, timeout=PATIENCE)
        world.acknowledged = 1
        while sum(world.kills.values()) < KILLS:
            if SECONDS and time.monotonic() - begin > SECONDS:
                break
            one_round(world)
        world.check(1 << 30)
        world.ckptd.send_signal(signal.SIGTERM)
        if world.ckptd.wait(PATIENCE) != 0:
            reason = "ckptd did not end well"
    except (Broken, subprocess.SubprocessError, OSError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
    finally:
        for process in (world.ckptd, world.trainer):
            if process and process.poll() is None:
                process.kill()
                process.wait()
    print(f"# {world.kills}, up to step {world.acknowledged}, "
          f"{time.monotonic() - begin:.0f} s")
    if reason:
        print(f"# SEED={seed}: {reason}")
        with open(world.log.name, errors="replace") as log:
            print("".join("# " + line for line in log.readlines()[-40:]))
    print(f"{'not ok' if reason else 'ok'} 1 - killed processes lose nothing that was acknowledged")
    shutil.rmtree(world.folder)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
