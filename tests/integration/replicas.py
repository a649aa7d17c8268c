#!/usr/bin/env python3
"""replicas - a replica that has come apart from the others never gets into a checkpoint, and a
wrong state that did get into one is found by a replay.

Goal: when one bit of one replica's state changes, the next save finds it: training ends with 75 and
names the tensor (the moment, or the weight that it has updated), nothing of that state is saved,
and the run, started again, has the losses of one to which nothing happened. Method: two replicas
train a tiny Llama; one is held within a step (debug.pause_at_step), a bit of a moment is changed in
its memory (/proc/PID/mem; found by the bytes that the checkpoint before has), and it is let go by
SIGTERM, so that it ends the step and saves. With checkpoint.compare_replicas off the same change is
saved: so it was in the state that counts. Two ranks of one replica (FSDP) have nothing to compare,
and save it: a replay of the step names the tensor.
"""

import json
import os
import re
import signal
import struct
import subprocess
import time

import lib_train
from lib_store import PATIENCE, World, comes
from lib_tap import end, test

TENSOR = "optimizer.exp_avg.layers.0.feed_forward.w1.weight"
STEPS, SAVED, PAUSED = 12, 5, 6
PATTERN = 256  # bytes: of the first replica's half of the tensor
MAPPING_MAX = 1 << 30  # bytes: a sanitizer reserves more, which is no state


def saved_bytes(world, run, step):
    """The first bytes of TENSOR in the first shard that has it."""
    folder = os.path.join(world.store, run, f"step-{step:08}-a0001")
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            if not name.endswith(".safetensors"):
                continue
            size, = struct.unpack("<Q", file.read(8))
            entry = json.loads(file.read(size)).get(TENSOR)
            if entry:
                file.seek(8 + size + entry["data_offsets"][0])
                return file.read(PATTERN)
    return None


def places_of(pid, pattern):
    """Address space of private memory; memory shared with ckptd is not the state."""
    found = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            match = re.match(r"(\w+)-(\w+) rw-p \w+ 00:00 0\s", line)
            if not match:
                continue
            start, stop = (int(word, 16) for word in match.groups())
            if stop - start > MAPPING_MAX:
                continue
            try:
                memory.seek(start)
                data = memory.read(stop - start)
            except (OSError, ValueError, OverflowError):
                continue  # [vvar] and the like
            at = data.find(pattern)
            while at >= 0:
                found.append(start + at)
                at = data.find(pattern, at + 1)
    return found


def change_bit(pid, address):
    """Of a float, the highest bit of its mantissa: the next step may round the lowest away."""
    with open(f"/proc/{pid}/mem", "r+b", 0) as memory:
        memory.seek(address + 2)
        byte = memory.read(1)[0]
        memory.seek(address + 2)
        memory.write(bytes([byte ^ 0x40]))


class Run:
    """Of two replicas, each the whole model; its log and losses continue from start to start."""

    def __init__(self, world, name):
        self.world, self.name, self.process = world, name, None
        self.log = os.path.join(world.folder, f"{name}.log")
        self.loss = os.path.join(world.folder, f"{name}.loss")

    def start(self, *options):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(lib_train.command(
                self.world.folder, self.world.server, self.name, "--training.steps", STEPS,
                "--checkpoint.interval", SAVED, "--comm.ranks", 2,
                "--parallelism.data_parallel_replicate_degree", 2,
                "--metrics.loss_file", self.loss, *options), stderr=log, stdout=log)

    def said(self):
        with open(self.log, errors="replace") as log:
            return log.read()

    def await_words(self, words):
        deadline = time.monotonic() + PATIENCE
        while words not in self.said():
            assert self.process.poll() is None and time.monotonic() < deadline, self.said()
            time.sleep(0.02)

    def end(self):
        return self.process.wait(PATIENCE)

    def losses(self):
        with open(self.loss) as file:
            return dict(line.split(" ", 1) for line in file)

    def replay(self, step, *options):
        """Its exit code and what it said."""
        done = subprocess.run(lib_train.command(
            self.world.folder, self.world.server, self.name, "--training.steps", STEPS,
            "--replay", step, *options), capture_output=True, text=True, timeout=PATIENCE)
        return done.returncode, done.stderr

    def end_after_a_flip(self, *options):
        """Its exit code, and how often the state was found in memory."""
        self.start("--debug.pause_at_step", PAUSED, *options)
        self.await_words(f"pauses within step {PAUSED}")
        self.await_words(f"step {SAVED} is accepted")
        comes(lambda: SAVED in self.steps())
        places = places_of(self.process.pid, saved_bytes(self.world, self.name, SAVED))
        if places:
            change_bit(self.process.pid, places[-1])
        self.process.send_signal(signal.SIGTERM)
        return self.end(), len(places)

    def steps(self):
        return sorted(entry["step"] for entry in self.world.listed()
                      if entry["run"] == self.name)


def found_and_gone_on_from_the_last_good_one(world, right):
    run = Run(world, "apart")
    code, places = run.end_after_a_flip()
    test("each replica's state is in memory once", places == 2, places)
    test("a run whose replicas differ in one bit ends with 75", code == 75, (code, run.said()))
    test("it names the tensor, the ranks and the element", re.search(
        r"replicas differ, nothing more is saved: (exp_avg of )?"
        r"layers\.0\.feed_forward\.w1\.weight is not the same on rank [01] and rank [01]; "
        r".*; the first element that differs is \[0, 0\]", run.said()), run.said())
    health = world.cli("health", *world.where)
    test("ckptd's health tells of it until the run commits", health[0] == 69 and
         "run apart: 1 save in a row failed at the client: replicas differ" in health[2],
         health)
    test("nothing of that state is saved", run.steps() == [SAVED], run.steps())
    run.start()
    test("started again it ends with 0", run.end() == 0, run.said())
    assert world.cli("health", *world.where)[0] == 0
    test("and has the losses of a run to which nothing happened", run.losses() == right,
         (run.losses(), right))


def saved_when_nobody_compares(world):
    run = Run(world, "unseen")
    code, places = run.end_after_a_flip("--checkpoint.compare_replicas", "false")
    test("with checkpoint.compare_replicas off the same is saved",
         code == 75 and places == 2 and run.steps() == [SAVED, PAUSED],
         (code, places, run.steps(), run.said()))


def found_by_a_replay(world, right):
    run = Run(world, "sharded")
    mesh = ("--parallelism.data_parallel_replicate_degree", 1,
            "--parallelism.data_parallel_shard_degree", 2)
    code, places = run.end_after_a_flip(*mesh)
    test("without replicas the changed bit is saved",
         code == 75 and places == 1 and run.steps() == [SAVED, PAUSED],
         (code, places, run.steps(), run.said()))
    code, said = run.replay(PAUSED)
    test("a replay of the step ends with 1 and names the tensor", code == 1 and re.search(
        rf"differs: step {PAUSED}: layers\.0\.feed_forward\.w1\.weight is not that of its "
        r"checkpoint \(attempt 1\), 2 of its \d+ tensors differ", said), (code, said))
    run.start(*mesh)
    test("the run goes on with it", run.end() == 0, run.said())
    code, said = run.replay(PAUSED + 2)
    test("a later step is the same from there on, and the replay says where it began",
         code == 0 and re.search(
             rf"step {PAUSED + 2}: the same bits \(compared: 2 losses; no checkpoint is known to "
             rf"(.|\n)* took the checkpoint of step {PAUSED} as right; "
             rf"--checkpoint.load_step {SAVED} ", said), (code, said))
    code, said = run.replay(PAUSED + 2, "--checkpoint.load_step", SAVED)
    test("with an older start it differs", code == 1 and
         re.search(r"differs: step [78]: loss ", said), (code, said))
    code, said = right.replay(STEPS)
    test("the last step of a right run has the same state", code == 0 and re.search(
        rf"step {STEPS}: the same bits \(compared: 2 losses, the gradient norm, \d\d tensors of "
        r"the checkpoint\)", said), (code, said))


def main():
    world = World()
    try:
        lib_train.make_tokens(world.folder, lib_train.prose())
        world.launch()
        undisturbed = Run(world, "right")
        undisturbed.start()
        test("an undisturbed run ends with 0", undisturbed.end() == 0, undisturbed.said())
        found_and_gone_on_from_the_last_good_one(world, undisturbed.losses())
        saved_when_nobody_compares(world)
        found_by_a_replay(world, undisturbed)
        world.stop()
    finally:
        world.close()
    end()


main()
