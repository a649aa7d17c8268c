#!/usr/bin/env python3
"""kills - the real processes, killed with SIGKILL at any moment, again and again.

Goal: whichever process was killed, no acknowledged checkpoint is lost, no listed one is torn, and a
restarted trainer loads the last committed one, to the bit. Method: a ckptd with retention, a
trainer of 1 to 4 ranks (`clients_kill resume`) that loads, checks every element, and saves as fast
as it can; each round kills the trainer, ckptd, both, ckptd while it starts, or a `ckpt-cli prune`
of the directory. Afterwards the newest acknowledged step must be in the list, the newest
checkpoints must verify block by block, and the next trainer must load that step or a later one.

    KILLS=60 SECONDS= SEED=      so many kills, or as many as fit into so many seconds (0: no limit)
"""

import os
import random
import subprocess
import sys
import time

from lib_store import BUILD, CLI, World

TRAINER = os.path.join(BUILD, "tests/clients_kill")
KILLS = int(os.environ.get("KILLS") or 60)
SECONDS = float(os.environ.get("SECONDS") or 0)
NEWEST = 2  # checkpoints that are verified after each round
OPTIONS = ("--memory.pool_bytes", "96MiB", "--retention.keep_last", "4")
seed = int(os.environ.get("SEED") or time.time_ns() % 10**9)
chance = random.Random(seed)


class Killed(World):
    """With a trainer, and the acknowledgements that it got."""

    def __init__(self):
        super().__init__()
        self.errors = open(os.path.join(self.folder, "log"), "ab")
        self.trainer = None
        self.kills = {"trainer": 0, "ckptd": 0, "ckptd's start": 0, "prune": 0}
        self.acknowledged = 1

    def start_trainer(self):
        self.trainer = subprocess.Popen(
            [TRAINER, "resume", self.server, str(chance.randint(1, 4)), str(chance.randint(1, 99))],
            stdout=subprocess.PIPE, stderr=self.errors)
        line = self.trainer.stdout.readline().decode()
        assert line.startswith("loaded "), f"the trainer did not load, or what is wrong: {line!r}"
        assert int(line.split()[1]) >= self.acknowledged, \
            f"the trainer got step {line.split()[1]}, step {self.acknowledged} was acknowledged"

    def kill(self, process, what):
        if process.poll() is None:
            process.kill()
            self.kills[what] += 1
        process.wait()

    def kill_trainer(self):
        self.kill(self.trainer, "trainer")
        for line in self.trainer.stdout.read().decode().split("\n")[:-1]:
            self.acknowledged = int(line)

    def check(self, count):
        entries = self.listed()  # newest first
        steps = [entry["step"] for entry in entries]
        assert max(steps, default=0) >= self.acknowledged, \
            f"step {self.acknowledged} was acknowledged, the list has {steps}"
        for entry in entries[:count]:
            code, said = self.verify_one(entry)
            # 66: retention took it away
            assert code == 0 or (code == 66 and self.process.poll() is None), said

    def close(self):
        if self.trainer and self.trainer.poll() is None:
            self.trainer.kill()
            self.trainer.wait()
        self.errors.close()
        super().close()


def kill_start(world):
    """ckptd while it reads the store and removes rubbish; sometimes twice."""
    for _ in range(chance.randint(1, 2)):
        world.spawn(*OPTIONS)
        time.sleep(chance.expovariate(1 / 0.03))
        world.kill(world.process, "ckptd's start")


def kill_prune(world):
    run = world.listed()[0]["run"]
    tool = subprocess.Popen([CLI, "prune", run, "--keep-last", "2", "--most", "--store",
                             world.store], stdout=subprocess.DEVNULL, stderr=world.errors)
    time.sleep(chance.uniform(0.002, 0.02))
    world.kill(tool, "prune")


def one_round(world):
    world.start_trainer()
    time.sleep(chance.uniform(0, 0.12))
    what = chance.choices(["trainer", "ckptd", "both", "start", "prune"], [3, 2, 2, 2, 2])[0]
    if what != "trainer":
        world.kill(world.process, "ckptd")
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
    world.launch(*OPTIONS)


def main():
    print(f"1..1\n# SEED={seed}", flush=True)
    world, reason, begin = Killed(), None, time.monotonic()
    try:
        world.launch(*OPTIONS)
        world.save_one(1)
        while sum(world.kills.values()) < KILLS:
            if SECONDS and time.monotonic() - begin > SECONDS:
                break
            one_round(world)
        world.check(1 << 30)
        world.stop()
    except (AssertionError, subprocess.SubprocessError, OSError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
    print(f"# {world.kills}, up to step {world.acknowledged}, "
          f"{time.monotonic() - begin:.0f} s")
    if reason:
        print(f"# SEED={seed}: {reason}")
        print("".join(f"# {line}\n" for line in world.log().splitlines()[-40:]))
    print(f"{'not ok' if reason else 'ok'} 1 - killed processes lose nothing that was acknowledged")
    world.close()
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
