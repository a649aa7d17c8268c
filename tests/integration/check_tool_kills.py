#!/usr/bin/env python3
"""tool_kills - ckpt-cli, killed with SIGKILL at any moment of what it makes or changes.

Goal: whenever export (a file, a folder), import, convert, reshard, pin, unpin, verify --release or
gc dies, every listed checkpoint verifies, what was asked for is there whole or not at all, and the
same command then does it, at most with --force, over what was left unfinished. What all of them
leave in the store gc takes, and nothing else. Method: each is run once undisturbed, which gives the
result and how long it takes; then again and again, with and without --force, killed after a random
part of that time, at times twice in a row. (A prune is killed by kills.py and check_crowd.py, a
tool that works through a ckptd by server.py.)

    KILLS=40 SECONDS=12 SEED=    so many kills, or as many as fit into so many seconds (0: no limit)
"""

import collections
import json
import os
import random
import shutil
import subprocess
import time

from lib_store import CLI, World, mark, write_llama
from lib_tap import end, test

KILLS = int(os.environ.get("KILLS") or 40)
SECONDS = float(os.environ.get("SECONDS") or 12)
NOTHING, UNFINISHED, WHOLE = "nothing", "unfinished", "whole"
STEP = "step-00000001-a0001"
TEMPORARY = ".holdfast.tmp."
seed = int(os.environ.get("SEED") or time.time_ns() % 10**9)
chance = random.Random(seed)


def tree(folder):
    """{name: bytes} of every file; the lock's is who had it."""
    out = {}
    for root, _, names in os.walk(folder):
        for path in (os.path.join(root, name) for name in names
                     if name != ".holdfast.lock"):
            with open(path, "rb") as file:
                out[os.path.relpath(path, folder)] = file.read()
    return out


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)


class Tool:
    """One command. state() tells what there is of what it makes or changes, and fails when that is
    wrong; reset() takes it away. `refuses`: the exit code where it is there."""
    takes_force, refuses = False, 0

    def __init__(self, world, *words):
        self.world, self.words, self.seen = world, words, collections.Counter()
        self.name = " ".join(word for word in words if "/" not in word and "@" not in word)

    def command(self, is_forced=False):
        return [*self.words, "--store", self.world.store, *(["--force"] if is_forced else [])]

    def run(self, *codes, is_forced=False):
        code, out, err = self.world.cli(*self.command(is_forced))
        assert code in codes, f"{self.name}: exit {code}, not one of {codes}: {out}{err}"
        return code, err

    def learn(self):
        """Undisturbed."""
        self.reset()
        assert self.state() == NOTHING
        begin = time.monotonic()
        subprocess.run([CLI, *self.command()], check=True, capture_output=True)
        self.seconds = time.monotonic() - begin
        assert self.state() == WHOLE

    def kill(self):
        """Was it alive?"""
        is_forced = self.takes_force and chance.random() < 0.5
        process = subprocess.Popen([CLI, *self.command(is_forced)], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0, 1.1 * self.seconds))
        was_alive = process.poll() is None
        process.kill()
        process.wait()
        return was_alive

    def repeat(self, state):
        """The same command, after which all is there."""
        if state == WHOLE:
            self.run(self.refuses)
            self.reset()
            self.run(0)
        else:
            code, err = self.run(0, 74) if self.takes_force else self.run(0)
            if code != 0:
                assert state == UNFINISHED and "--force" in err, (state, err)
                self.run(0, is_forced=True)
        assert self.state() == WHOLE, "done again, it is not whole"


class Export(Tool):
    takes_force, refuses = True, 74

    def __init__(self, world, *words):
        self.output, self.want = os.path.join(world.folder, "out"), None
        super().__init__(world, "export", *words, "--output", self.output)

    def content(self):
        """Of what has the name of the output."""
        if not os.path.isfile(self.output):
            return tree(self.output)
        with open(self.output, "rb") as file:
            return {"": file.read()}

    def learn(self):
        super().learn()
        self.want = self.content()

    def state(self):
        if not os.path.exists(self.output):
            return UNFINISHED if os.path.exists(self.output + ".part") else NOTHING
        content = self.content()
        assert content and self.want in (None, content), f"the output is torn: {sorted(content)}"
        return WHOLE

    def repeat(self, state):
        super().repeat(state)
        assert not os.path.exists(self.output + ".part"), "there is something beside the output"

    def reset(self):
        for path in (self.output, self.output + ".part"):
            remove(path)


class Maker(Tool):
    """Of a checkpoint: in another store, or of another run. The digests of its tensors are those of
    the first."""
    takes_force, refuses = True, 74

    def __init__(self, world, store, run, *words):
        self.store, self.made, self.want = store, run, None
        super().__init__(world, *words)

    def state(self):
        if not os.path.isdir(os.path.join(self.store, self.made)):
            return NOTHING
        where = ("--store", self.store)
        entries = [entry for entry in self.world.listed(*where) if entry["run"] == self.made]
        if not entries:
            return UNFINISHED
        code, out, err = self.world.cli("verify", self.made, *where)
        assert code == 0, out + err
        tensors = json.loads(self.world.cli("show", self.made, *where, "--json")[1])["tensors"]
        self.want = self.want or tensors
        assert tensors == self.want, "other tensors"
        return WHOLE

    def reset(self):
        remove(self.store if self.store != self.world.store else
               os.path.join(self.store, self.made))


class Pin(Tool):
    """Or the removal of one."""
    NOTE = "the one that was published"

    def __init__(self, world, verb, checkpoint, *words):
        self.verb, self.checkpoint = verb, checkpoint
        self.refuses = 66 if verb == "unpin" else 0
        super().__init__(world, verb, checkpoint, *words)

    def state(self):
        shown = json.loads(self.world.cli("show", self.checkpoint, "--store", self.world.store,
                                          "--json")[1])
        assert not shown["pinned"] or shown["pin_note"] == self.NOTE, shown
        return WHOLE if shown["pinned"] == (self.verb == "pin") else NOTHING

    def reset(self):
        if self.verb == "pin":
            self.world.cli("unpin", self.checkpoint, "--store", self.world.store)
        else:
            self.world.cli("pin", self.checkpoint, "--note", self.NOTE, "--store",
                           self.world.store)


class Release(Tool):
    def __init__(self, world, checkpoint):
        self.note = os.path.join(world.store, world.run, "quarantine", STEP)
        super().__init__(world, "verify", checkpoint, "--release")

    def state(self):
        return NOTHING if os.path.exists(self.note) else WHOLE

    def reset(self):
        os.makedirs(os.path.dirname(self.note), exist_ok=True)
        with open(self.note, "w") as file:
            file.write("a test")


class Gc(Tool):
    """Of two saves that were never committed, a removal that was cut short, notes on a checkpoint
    that is gone, a lease of nobody and a temporary file."""

    def __init__(self, world):
        self.run_folder = os.path.join(world.store, world.run)
        self.rubbish = []
        super().__init__(world, "gc")

    def put(self, *names):
        path = os.path.join(self.run_folder, *names)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write("x")
        os.utime(path, (0, 0))
        self.rubbish.append(path)

    def state(self):
        there = [path for path in self.rubbish if os.path.exists(path)]
        return WHOLE if not there else NOTHING if there == self.rubbish else UNFINISHED

    def reset(self):
        self.rubbish = []
        for step in ("step-00000008-a0003", "step-00000009-a0003"):
            for shard in (1, 2, 3):
                self.put(step, f"shard-0000{shard}-of-00003.safetensors")
            mark(os.path.join(self.world.store, self.world.run, step))
        self.put("tombstones", "step-00000009-a0003")
        self.put("pins", "step-00000077-a0001")
        self.put("leases", STEP + ".0123456789abcdef")
        self.put(STEP, TEMPORARY + "0123456789abcdef")


def tools_of(world, model):
    one, store = f"{world.run}@1-a1", world.store

    def other(name):
        return os.path.join(world.folder, name)

    return [Export(world, one), Export(world, "llama", "--format", "hf", "--shard-size", "1MiB"),
            Maker(world, other("cast"), world.run, "convert", one, "--output", other("cast"),
                  "--dtype", "bf16"),
            Maker(world, other("cut"), world.run, "convert", one, "--output", other("cut"),
                  "--shards", "5"),
            Maker(world, store, "new", "import", model, "--run", "new", "--shards", "4"),
            Pin(world, "pin", one, "--note", Pin.NOTE), Pin(world, "unpin", one),
            Release(world, one), Gc(world)]


def kill_and_judge(world, tool):
    """How often it was killed."""
    tool.reset()
    kills = sum(tool.kill() for _ in range(chance.choice((1, 1, 2))))
    state = tool.state()
    tool.seen[state] += 1
    bad = world.all_verify()
    assert not bad, bad
    tool.repeat(state)
    tool.reset()
    return kills


def look_at_what_is_left(world, before):
    """When gc has come by, the store has the files that it had."""
    for root, _, names in os.walk(world.store):
        for name in names:
            if name.startswith(TEMPORARY):
                os.utime(os.path.join(root, name), (0, 0))
    world.cli("unpin", f"{world.run}@1-a1", "--store", world.store)
    remove(os.path.join(world.store, world.run, "quarantine", STEP))
    code, out, err = world.cli("gc", "--store", world.store)
    after = tree(world.store)
    other = sorted(name for name in before.keys() | after.keys()
                   if before.get(name) != after.get(name) and
                   not name.endswith("verified.json") and "/history/" not in name)
    test("what all of them left in the store gc takes, and nothing else",
         code == 0 and not other, (out, err, other))


def main():
    print(f"# SEED={seed}", flush=True)
    world, reason, kills, rounds, begin = World(), None, 0, 0, time.monotonic()
    try:
        world.launch()
        world.save([1, 2])
        world.stop()
        model = os.path.join(world.folder, "model")
        os.mkdir(model)
        write_llama(model, 256, 512, 600, chance.randbytes)
        code, _, err = world.cli("import", model, "--run", "llama", "--store", world.store)
        assert code == 0, err
        before = tree(world.store)
        tools = tools_of(world, model)
        for tool in tools:
            tool.learn()
            tool.reset()
        try:
            while kills < KILLS and not 0 < SECONDS < time.monotonic() - begin:
                tool = tools[rounds % len(tools)]
                rounds += 1
                kills += kill_and_judge(world, tool)
        except (AssertionError, subprocess.SubprocessError, OSError, ValueError) as error:
            reason = f"SEED={seed}, {tool.name}: {type(error).__name__}: {error}"
        for tool in tools:
            print(f"# {tool.name}, {tool.seconds * 1000:.0f} ms: {dict(tool.seen)}")
        print(f"# {time.monotonic() - begin:.0f} s")
        test(f"{kills} kills of tools: what they make is whole or not there, and can be made again",
             reason is None, reason)
        look_at_what_is_left(world, before)
    finally:
        world.close()
    end()


if __name__ == "__main__":
    main()
