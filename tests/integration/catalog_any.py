#!/usr/bin/env python3
"""catalog_any - the list is correct after any order of operations, lost tiers and crashes.

Goal: checkpoints are saved, pruned, removed, undeleted, pinned, damaged, released, tagged and moved
by hand, with or without the far tier, and ckptd is killed. `list` always names each checkpoint
once, with the tiers that have it, its damage, pin and tag, and ckptd continues. Method: a real
ckptd with a `dir:` tier; a small model predicts the list after each of OPERATIONS random
operations. They follow from SEED, and a failure prints both. OPERATIONS in the environment sets
their number.
"""

import glob
import os
import random

from lib_store import World, change, comes_to, make_tier, wait_until
from lib_tap import end, test

SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))
OPERATIONS = int(os.environ.get("OPERATIONS", 120))
FLIPPED = 1 << 20  # the byte of a shard that is damaged
OPTIONS = ("--scrub.rate", "1GiB", "--tier.quiet", "false", "--tier.look_ms", "0",
           "--tier.retry_ms", "20", "--tier.attempts", "local", "--tier.trash_s", "86400",
           "--retention.trash_s", "86400")
NAMES = ("save prune prune rm undelete undelete undelete_all pin unpin tag rescan damage release "
         "move_away move_back far_goes far_comes far_comes kill").split()


def byte_of(shard):
    with open(shard, "rb") as file:
        file.seek(FLIPPED)
        return file.read(1)


class Checkpoint:
    def __init__(self):
        self.tiers = {"local"}
        self.pinned = self.damaged = False

    def listed(self, known):
        """The expected list of a ckptd that knows those tiers."""
        if self.damaged:
            return "damaged"
        return ",".join(t for t in known if t in self.tiers), self.pinned


class Model:
    """The model: `live` by step, and per tier how many copies of a step are in its trash."""

    def __init__(self):
        self.live = {}
        self.trash = {"local": set(), "far": set()}
        self.far = True
        self.known = ("local", "far")  # a start without the far tier does not know its contents
        self.moved = set()  # out of the store, by hand
        self.step = 0
        self.tagged = None  # the step; a removal leaves the tag

    def settle(self):
        """Checkpoints that are due in the far tier drain; those that are nowhere vanish."""
        if self.far:
            self.known = ("local", "far")
        for c in self.live.values():
            if self.far and "local" in c.tiers and not c.damaged:
                c.tiers.add("far")
        self.live = {step: c for step, c in self.live.items() if c.tiers}

    def listed(self):
        return {step: c.listed(self.known) for step, c in self.live.items()
                if c.tiers & set(self.known)}

    def pick(self, rng, so=lambda c: True):
        steps = sorted(step for step in self.listed() if so(self.live[step]))
        return rng.choice(steps) if steps else None


class Machine:
    def __init__(self, world):
        self.world, self.model, self.rng = world, Model(), random.Random(SEED)
        self.away = world.far + ".away"

    def name(self, step):
        return f"{self.world.run}@{step}-a{step}"  # each save is a separate attempt

    def folder(self, step):
        return os.path.join(self.world.store, self.world.run, f"step-{step:08d}-a{step:04d}")

    def cli(self, *arguments, want=0):
        code, out, err = self.world.cli(*arguments, *self.world.where)
        assert code == want, (arguments, code, out, err)
        return out

    def is_draining(self, c):
        known = c.tiers & set(self.model.known)
        return not self.model.far and "far" not in known and not c.damaged

    # ---- operations: each changes the world and the model; False: it cannot be now

    def save(self):
        self.model.step += 1
        self.world.save_one(self.model.step, ranks=1)
        self.world.run = self.world.run or self.world.listed()[0]["run"]
        self.model.live[self.model.step] = Checkpoint()

    def prune(self):
        """The newest two stay, and the newest two that the scrub has read back."""
        if any(self.is_draining(c) for c in self.model.live.values()):
            return False  # checkpoints that a drain leases stay, too
        here = {s: c for s, c in self.model.live.items() if "local" in c.tiers and not c.damaged}
        read_back = [entry["step"] for entry in self.world.listed(*self.world.where)
                     if entry.get("read_back") and entry["step"] in here]
        self.cli("prune", self.world.run, "--keep-last", "2", "--most")
        kept = {*sorted(here)[-2:], *sorted(read_back)[-2:]}
        for step, c in here.items():
            if step not in kept and not c.pinned:
                c.tiers.discard("local")
                self.model.trash["local"].add(step)

    def rm(self):
        step = self.model.pick(self.rng, lambda c: not c.pinned and not c.damaged)
        if step is None:
            return False
        tiers = self.model.live[step].tiers & set(self.model.known)
        code, out, err = self.world.cli("rm", self.name(step), "--yes", *self.world.where)
        if code == 74 and not self.model.far:
            return True  # its drain holds it, or the far tier refused: that is still open
        assert code == 0, (code, out, err)
        self.model.live[step].tiers -= tiers
        for tier in tiers:
            self.model.trash[tier].add(step)
        return True

    def take_back(self, step):
        for tier in ("local", "far"):
            if step not in self.model.trash[tier] or (tier == "far" and not self.model.far):
                continue
            c = self.model.live.get(step)
            if c and tier in c.tiers:
                continue  # its place is taken
            if not c:
                c = self.model.live[step] = Checkpoint()
                c.tiers.clear()
            c.tiers.add(tier)
            self.model.trash[tier].discard(step)

    def undelete(self):
        steps = sorted(self.model.trash["local"] | self.model.trash["far"])
        if not steps:
            return False
        step = self.rng.choice(steps)
        self.world.cli("undelete", self.name(step), *self.world.where)
        self.take_back(step)

    def undelete_all(self):
        self.world.cli("undelete", self.world.run, *self.world.where)
        for step in sorted(self.model.trash["local"] | self.model.trash["far"]):
            self.take_back(step)

    def pin(self):
        step = self.model.pick(self.rng, lambda c: not c.pinned and not c.damaged)
        if step is None or not self.model.far:
            return False
        self.cli("pin", self.name(step))
        self.model.live[step].pinned = True

    def unpin(self):
        step = self.model.pick(self.rng, lambda c: c.pinned)
        if step is None or not self.model.far:
            return False
        self.cli("unpin", self.name(step))
        self.model.live[step].pinned = False

    def tag(self):
        step = self.model.pick(self.rng, lambda c: "local" in c.tiers and not c.damaged)
        if step is None:
            return False
        self.cli("tag", self.name(step), "best")
        self.model.tagged = step

    def rescan(self):
        self.cli("server", "rescan")

    def move_away(self):
        """An operator moves a directory out of the store."""
        step = self.model.pick(self.rng, lambda c: "local" in c.tiers and not c.damaged)
        if step is None:
            return False
        os.rename(self.folder(step), os.path.join(self.world.folder, f"moved-{step}"))
        self.cli("server", "rescan")
        self.model.live[step].tiers.discard("local")
        self.model.moved.add(step)

    def move_back(self):
        if not self.model.moved:
            return False
        step = self.rng.choice(sorted(self.model.moved))
        os.rename(os.path.join(self.world.folder, f"moved-{step}"), self.folder(step))
        self.cli("server", "rescan")
        self.model.moved.discard(step)
        self.model.live.setdefault(step, Checkpoint()).tiers.add("local")

    def flip(self, step):
        shard, = glob.glob(self.folder(step) + "/shard-*")
        before = byte_of(shard)
        change(shard, FLIPPED)
        return shard, before

    def damage(self):
        """The far tier mends it; without one that has it, it is quarantined."""
        step = self.model.pick(self.rng, lambda c: "local" in c.tiers and not c.damaged and
                               (self.model.far or "far" not in c.tiers))
        if step is None:
            return False
        shard, before = self.flip(step)
        self.cli("verify", self.name(step), want=1)
        self.cli("server", "scrub", "start", self.world.run)
        self.model.live[step].damaged = not self.model.far
        if self.model.far:
            wait_until(lambda: byte_of(shard) == before, self.world.log)

    def release(self):
        step = self.model.pick(self.rng, lambda c: c.damaged)
        if step is None:
            return False
        self.flip(step)
        self.cli("verify", self.name(step), "--release")
        self.model.live[step].damaged = False

    def far_goes(self):
        if not self.model.far:
            return False
        os.rename(self.world.far, self.away)
        self.model.far = False

    def far_comes(self):
        if self.model.far:
            return False
        os.rename(self.away, self.world.far)
        self.model.far = True

    def kill(self):
        self.world.process.kill()
        self.world.process.wait()
        self.model.known = ("local",)
        self.start()

    # ---- the bed

    def start(self):
        self.world.launch("--tier.store", "dir:" + self.world.far, *OPTIONS)

    def seen(self):
        out, tagged = {}, None
        for entry in self.world.listed(*self.world.where):
            assert entry["step"] not in out, ("listed twice", entry)
            out[entry["step"]] = "damaged" if "flaw" in entry else (
                entry.get("tiers", entry.get("durability")), entry["pinned"])
            tagged = entry["step"] if "tags" in entry else tagged
        return out, tagged

    def expected(self):
        listed = self.model.listed()
        is_shown = listed.get(self.model.tagged, "damaged") != "damaged"
        return listed, self.model.tagged if is_shown else None

    def operate(self, name):
        """False: the operation is impossible now. Fails when the list differs from the model."""
        if getattr(self, name)() is False:
            return False
        self.model.settle()
        assert comes_to(self.seen, self.expected()), (self.seen(), "is not", self.expected())
        return True

    def run(self):
        """The error, or None."""
        done = ["save", "save"]
        try:
            self.operate("save")
            self.operate("save")
            while len(done) < OPERATIONS:
                done.append(self.rng.choice(NAMES))
                if not self.operate(done[-1]):
                    done.pop()
        except AssertionError as error:
            return f"SEED={SEED}, after {' '.join(done)}: {error}: {self.world.log()[-3000:]}"
        return None


def main():
    world = World()
    world.far = os.path.join(world.folder, "far")
    make_tier(world.folder, world.far)
    try:
        machine = Machine(world)
        machine.start()
        said = machine.run()
        test(f"SEED={SEED}: {OPERATIONS} operations in random order keep the list true",
             said is None, said)
        machine.far_comes()
        world.stop()
    finally:
        world.close()
    end()


main()
