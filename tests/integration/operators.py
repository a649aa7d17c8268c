#!/usr/bin/env python3
"""operators - what those may who are not ckptd's own user.

Goal: a user of access.uids saves, loads, looks and pins, and is refused what removes, frees or adds
checkpoints, with exit code 74, the setting's name and a line in the log; nothing is changed then. A
user of access.operators may do these things, and ckptd's own user always.
Method: a real ckptd of root's, and one of another user's; copies of ckpt-cli and of the saver
that run as other users. One checkpoint is in quarantine by a note alone, so releasing it has
nothing to repair; a file without a checkpoint is there for gc.
"""

import os
import shutil
import subprocess
import sys

from lib_store import CLI, SAVER, World, mark, write_llama
from lib_tap import end, test

USER, OPERATOR = 12345, 12346
STEPS = [1, 2, 3, 4, 5]
DAMAGED, PINNED = 1, 2


class Asked:
    """A program that has ended, and what ckptd's log says of its process."""

    def __init__(self, world, uid, *command):
        before = len(world.log())
        process = subprocess.Popen([*map(str, command)], user=uid, group=uid, extra_groups=[],
                                   cwd="/", text=True, env=dict(os.environ, ASAN_OPTIONS=ASAN),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.out, self.err = process.communicate(timeout=60)
        self.code = process.returncode
        self.who = f"user {uid}, process {process.pid}"
        self.lines = [line for line in world.log()[before:].splitlines() if self.who in line]

    def __repr__(self):
        return f"exit {self.code}: {self.out}{self.err}{self.lines}"


# No leak checker can look into a process that has become another user.
ASAN = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"


class Shared(World):
    """Where other users find the socket, the programs and the files."""

    def __init__(self):
        super().__init__()
        for folder in (os.path.dirname(self.folder), self.folder):
            os.chmod(folder, os.stat(folder).st_mode | 0o055)
        self.tools = {program: shutil.copy(program, self.folder)
                      for program in (CLI, SAVER, self.ckptd)}
        self.model = os.path.join(self.folder, "model")
        os.mkdir(self.model)
        write_llama(self.model, 512, 1024, 4000, os.urandom)

    def ask(self, uid, *words):
        return Asked(self, uid, self.tools[CLI], *words, *self.where)

    def saver(self, uid, what, ranks, step):
        return Asked(self, uid, self.tools[SAVER], what, self.server, ranks, 1, step)

    def name(self, step):
        entry = next(entry for entry in self.listed() if entry["step"] == step)
        return f"{entry['run']}@{step}-a{entry['attempt']}"

    def put_in_quarantine(self, step):
        run, _, rest = self.name(step).partition("@")
        note = f"{self.store}/{run}/quarantine/step-{step:08d}-a{int(rest.split('-a')[1]):04d}"
        os.makedirs(os.path.dirname(note), exist_ok=True)
        with open(note, "w") as file:
            file.write("a test")
        self.give_to_owner(os.path.dirname(note), note)

    def give_to_owner(self, *paths):
        """As if ckptd had made them."""
        owner = os.stat(self.store)
        for path in paths:
            os.chown(path, owner.st_uid, owner.st_gid)

    def leave_rubbish(self):
        self.rubbish = f"{self.store}/{self.run}/step-00000077-a0001"
        os.mkdir(self.rubbish)
        shard = self.rubbish + "/shard-00001-of-00001.safetensors"
        with open(shard, "w") as file:
            file.write("rubbish")
        mark(self.rubbish)
        self.give_to_owner(self.rubbish, shard, self.rubbish + "/unfinished")

    def state(self):
        """What is as it was when all of them were refused."""
        served = self.listed(*self.where)
        return ([(entry["step"], entry.get("pinned"), entry.get("damage")) for entry in served],
                os.path.exists(self.rubbish))


def saved(world):
    """By the same user in both worlds, who is ckptd's own in one of them."""
    bad = [asked for asked in (world.saver(USER, "save", 2, step) for step in STEPS)
           if asked.code != 0]
    test("a user who may come in saves", not bad, bad)
    loaded = world.saver(USER, "load", 3, STEPS[-1])
    test("and loads", loaded.code == 0, loaded)
    world.run = world.listed()[0]["run"]


def for_all(world):
    bad = []
    asked = world.ask(USER, "list")
    test("lists, and is told of the damage", asked.code == 1 and "DAMAGED" in asked.out, asked)
    for words in (["show", world.name(3)], ["status"], ["status", "--watch", "--count", "1"],
                  ["health"], ["pin", world.name(PINNED), "--note", "mine"],
                  ["prune", world.run, "--keep-last", "1", "--dry-run"], ["gc", "--dry-run"]):
        asked = world.ask(USER, *words)
        if asked.code != 0:
            bad.append((words, asked))
    test("looks, pins, and asks what a prune or a gc would do", not bad, bad)


def for_operators(world):
    """Commands, the method that each needs, what it prints; in an order in which all succeed."""
    return ((["verify", world.name(DAMAGED), "--release"], "Release"),
            (["unpin", world.name(PINNED)], "Pin"),
            (["prune", world.run, "--keep-last", "3"], "Prune"),
            (["gc"], "Gc"))


def refused(world):
    before = world.state()
    for words, method in for_operators(world):
        asked = world.ask(USER, *words)
        test(f"is refused {words[0]} ({method}), and told what to change", asked.code == 74 and
             "access.operators" in asked.err, asked)
        test("and is in the log with it", len(asked.lines) == 1 and
             f" warn audit: {method} refused to {asked.who}" in asked.lines[0], asked)
    asked = world.ask(USER, "import", world.model, "--run", "theirs")
    test("is refused an import by the command itself, and told as which user to come",
         asked.code == 74 and "as that user" in asked.err and not asked.lines, asked)
    test("nothing of that changed anything", world.state() == before and before[1],
         (before, world.state()))


def granted(world, uid, who, kept):
    """`kept`: what is known whole besides, because verify could leave that in the store."""
    bad = []
    for words, method in for_operators(world):
        asked = world.ask(uid, *words)
        if asked.code != 0 or f"{method} asked for by {asked.who}" not in str(asked.lines):
            bad.append((words, asked))
    test(f"{who} is given all that, and is in the log with it", not bad, bad)
    steps, has_rubbish = world.state()
    test("and it was done", not has_rubbish and
         sorted(steps) == [(step, False, None) for step in (*kept, 3, 4, 5)],
         (steps, has_rubbish))


def prepared(world, *options, **popen):
    """Steps, one of them in quarantine and one pinned."""
    world.launch(*options, **popen)
    saved(world)
    world.put_in_quarantine(DAMAGED)
    world.stop()
    world.launch(*options, **popen)
    world.leave_rubbish()


def of_root():
    world = Shared()
    try:
        prepared(world, "--access.uids", str(USER), "--access.operators", str(OPERATOR))
        for_all(world)
        refused(world)
        granted(world, OPERATOR, "a user of access.operators", [])
    finally:
        world.close()


def of_another_user():
    """Nothing is set, as where one user has all to himself."""
    world = Shared()
    try:
        theirs = os.path.join(world.folder, "theirs")
        os.mkdir(theirs)
        os.chown(theirs, USER, USER)
        world.store, world.server = f"{theirs}/store", f"unix:{theirs}/s"
        world.where = ("--server", world.server)
        world.ckptd = world.tools[world.ckptd]
        prepared(world, user=USER, group=USER, extra_groups=[], cwd="/",
                 env=dict(os.environ, ASAN_OPTIONS=ASAN))
        for_all(world)
        granted(world, USER, "ckptd's own user", [DAMAGED])
    finally:
        world.close()


def main():
    if os.geteuid() != 0:
        print("only root can become another user")
        sys.exit(77)
    os.umask(0o022)
    of_root()
    of_another_user()
    end()


if __name__ == "__main__":
    main()
