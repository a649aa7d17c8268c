#!/usr/bin/env python3
"""leak - memory of ckptd, or of a trainer, grows: it reports it, and ends before it is too much.

Goal: memory that grows hour after hour is an alarm with its numbers, in status and in the
metrics, and ends when it stops; above limits.exit_private_bytes ckptd ends with the code for a
restart, no committed checkpoint is lost, and a trainer continues to save at the next one. A limit
below the memory at start is a wrong setting. A trainer that leaks, or passes its limit, saves and
ends with the code for a restart; the next start continues from that step. Method: a real ckptd
keeps the plan of the last description of each run, so runs of many tensors make it grow;
build/shims/clock.so moves its clock by hours, and that of a trainer whose memory a thread of
build/shims/leaks.so takes. The rule itself: proto_leak.
"""

import os
import re
import signal
import subprocess
import sys
import types

import lib_train
from lib_store import PATIENCE, Clock, ClockOf, World, comes, is_sanitized, wait_until
from lib_tap import end, need, test

need("grpc", "google.protobuf")
import grpc  # noqa: E402
from lib_ranks import Ranks  # noqa: E402

MIB, HALF_HOUR = 1 << 20, 1800
TENSORS = 10000
SLICES = [{"name": f"tensor-{at:06}", "dtype": "F32", "shape": [1], "offset": [0], "extent": [1]}
          for at in range(TENSORS)]
OFTEN = ("--limits.look_ms", "20", "--limits.runs", "4096", "--limits.connect_ms", "86400000")
LEAKS = re.compile(r"ckptd leaks: its memory beside the pool rose in each of the last \d+ half "
                   r"hours, from (\d+) to (\d+) bytes, \d+ bytes an hour")

TRAINER_LEAKS = (r"this process leaks: its private memory rose in each of the last 9 half hours, "
                 r"from \d\.\d+ to \d\.\d+ GiB, \d+\.\d+ GiB an hour")
TRAINER_IS_FULL = (r"this process has (\d+\.\d\d) GiB of private memory: "
                   r"training.exit_memory_gib = 0.25\n")


class Grower:
    """Makes a ckptd hold more memory, run by run, by calls of ranks that never connect."""

    def __init__(self, world):
        self.world, self.count = world, 0

    def grow(self):
        self.count += 1
        name = f"grow-{self.count}"
        with grpc.insecure_channel(self.world.server) as channel:
            ranks = Ranks(types.SimpleNamespace(channel=lambda *_: channel), "")
            attempt = ranks.call("OpenAttempt", run=name, world_size=1).attempt
            ranks.call("Describe", run=name, attempt=attempt, rank=0, world_size=1, slices=SLICES)


def own(world):
    return world.status()["process"]["bytes_private"]


def leaks(world):
    return [found for text in world.status()["alarms"] if (found := LEAKS.search(text))]


def is_told(world, clock):
    world.launch(*OFTEN, env={**os.environ, "CLOCK_PASSES": "1"})
    grower, told = Grower(world), []
    for hours in range(1, 41):
        before = own(world)
        while own(world) < before + 3 * MIB:
            grower.grow()
        clock.set(0, hours * HALF_HOUR)
        if told := leaks(world):
            break
    process = world.status()["process"]
    test("memory that grows each half hour is an alarm after four hours, with the numbers",
         told and hours >= 9 and int(told[0][2]) - int(told[0][1]) >= 16 * MIB and
         process["leak_bytes_per_hour"] > 0, (hours, world.status()["alarms"], process))
    for more in range(1, 41):  # nothing comes any more
        clock.set(0, (hours + more) * HALF_HOUR)
        if not (told := leaks(world)):
            break
    test("which ends when it grows no more",
         not told and more < 10 and world.status()["process"]["leak_bytes_per_hour"] == 0,
         (more, told))
    clock.set(0)
    world.stop()


def ends(world):
    world.launch(*OFTEN)
    limit = own(world) + 48 * MIB
    world.stop()
    words = ("--limits.exit_private_bytes", str(limit))
    code, _, err = world.refused("--limits.exit_private_bytes", "1MiB")
    test("a limit that a start is over is refused with the numbers, and 78", code == 78 and
         re.search(r"limits.exit_private_bytes = 1048576, and ckptd takes \d+ bytes", err), err)
    world.launch(*OFTEN, *words)
    lib_train.make_tokens(world.folder, lib_train.prose())
    log = os.path.join(world.folder, "trainer.log")
    with open(log, "wb") as out:
        trainer = subprocess.Popen(
            lib_train.command(world.folder, world.server, "on", "--training.steps", 1000000,
                              "--checkpoint.interval", 5), stdout=out, stderr=out)

    def newest():
        return max((entry["step"] for entry in world.listed() if entry["run"] == "on"), default=0)

    def said():
        with open(log, errors="replace") as file:
            return file.read()[-3000:]
    wait_until(newest, said)
    grower = Grower(world)
    while world.process.poll() is None and grower.count < 100:
        try:
            grower.grow()
        except grpc.RpcError:  # it ends
            comes(lambda: world.process.poll() is not None)
    code = world.process.wait(PATIENCE)
    before = newest()
    why = rf"\d+ bytes of memory beside its pool, more than limits.exit_private_bytes = {limit},"
    test("above the limit ckptd ends with 75, and says why",
         code == 75 and re.search(why, world.log()), (code, world.log()[-3000:]))
    world.launch(*OFTEN, *words)
    on = comes(lambda: newest() > before)
    trainer.send_signal(signal.SIGTERM)
    code = trainer.wait(PATIENCE)
    test("what was committed is whole, and the trainer saves on to the next ckptd",
         on and code == 75 and not world.all_verify(), (code, before, newest(), said()))
    world.stop()


def private(process):
    """Bytes of its memory that are neither of a file nor shared."""
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        return int(re.search(r"RssAnon:\s+(\d+) kB", file.read())[1]) << 10


def lines_of(path):
    if not os.path.exists(path):
        return 0
    with open(path, encoding="ascii") as file:
        return len(file.readlines())


def pass_half_hours(trainer, clock, loss, said):
    """Moves the trainer's clock each time it has made steps and has grown, until it ends."""
    for hours in range(1, 21):
        steps, grown = lines_of(loss) + 2, private(trainer) + 4 * MIB
        wait_until(lambda at=steps, most=grown: trainer.poll() is not None or
                   (lines_of(loss) >= at and private(trainer) >= most), said)
        if trainer.poll() is not None or "this process leaks" in said():
            return hours
        clock.set(0, hours * HALF_HOUR)
    return 0


def fills_memory(world):
    """A trainer passes training.exit_memory_gib; its next start does not."""
    world.launch(*OFTEN)
    loss = os.path.join(world.folder, "full.loss")
    words = lib_train.command(world.folder, world.server, "full", "--training.steps", 1000000,
                              "--checkpoint.interval", 1000000, "--metrics.loss_file", loss,
                              "--training.exit_memory_gib", 0.25)
    shim = os.path.join(lib_train.BUILD, "shims", "leaks.so")
    trainer = lib_train.Trainer(words, env={**os.environ, "LD_PRELOAD": shim, "LEAK_MIB": "4096"})
    comes(lambda: trainer.poll() is not None)
    trainer.kill()
    said = trainer.communicate()[1]
    found, last = re.search(TRAINER_IS_FULL, said), lines_of(loss)
    saved = [entry["step"] for entry in world.listed() if entry["run"] == "full"]
    test("a trainer whose memory passes its limit says so in GiB, saves, and ends with 75",
         trainer.returncode == 75 and found and 0.25 <= float(found[1]) < 4 and saved == [last],
         (trainer.returncode, saved, last, said[-3000:]))
    again = lib_train.Trainer(words)
    comes(lambda: again.poll() is not None or lines_of(loss) > last)
    again.send_signal(signal.SIGTERM)
    said = again.communicate(timeout=PATIENCE)[1]
    with open(loss, encoding="ascii") as file:
        made = [int(line.split()[0]) for line in file]
    test("the next start is below it, and continues from that very step",
         f"loaded step {last} of" in said and not re.search(TRAINER_IS_FULL, said) and
         last < len(made) and made == list(range(1, len(made) + 1)), (last, made, said[-3000:]))
    world.stop()


def trainer_ends(world):
    world.launch(*OFTEN)
    log, loss = (os.path.join(world.folder, name) for name in ("leaky.log", "leaky.loss"))
    clock = ClockOf(os.path.join(world.folder, "leaky.clock"), "leaks.so")

    def said():
        with open(log, errors="replace") as file:
            return file.read()[-3000:]
    with open(log, "wb") as out:
        trainer = subprocess.Popen(
            lib_train.command(world.folder, world.server, "leaky", "--training.steps", 1000000,
                              "--checkpoint.interval", 1000000, "--metrics.loss_file", loss,
                              "--training.exit_leak_gib_per_hour", 0.001),
            stdout=out, stderr=out, env={**os.environ, **clock.environment,
                                         "CLOCK_PASSES": "1", "LEAK_MIB": "4096"})
    hours = pass_half_hours(trainer, clock, loss, said)
    code = trainer.wait(PATIENCE)
    test("a trainer whose memory rose in nine half hours says so, and ends with 75",
         code == 75 and hours >= 9 and re.search(TRAINER_LEAKS, said()), (code, hours, said()))
    test("after a save", [entry["step"] for entry in world.listed()
                          if entry["run"] == "leaky"] == [lines_of(loss)], said())
    world.stop()


def main():
    if is_sanitized():
        print("a sanitizer's memory is not that of ckptd")
        sys.exit(77)
    world = World()
    try:
        ends(world)
        fills_memory(world)
        trainer_ends(world)
        is_told(world, Clock(world.folder))
    finally:
        world.close()
    end()


main()
