#!/usr/bin/env python3
"""server - every command of ckpt-cli through a ckptd that serves meanwhile.

Goal: with --server a command answers the same as on the directory. A store that cannot be reached
from here is named. An import into a served store is whole or gone after any kill at any moment; gc
removes the rest, never files that are being written. The log names the user of each request;
another user gets his rights. Method: a real ckptd; `saver save` makes checkpoints; models for the
import are random bits in a Llama's shapes. Tool and ckptd are killed while shards are written,
between the last shard and the answer, and before the request is received (a stopped ckptd).
"""

import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading

from lib_store import CLI, SAVER, World, comes, mark, wait_until, write_llama
from lib_tap import end, skip, test

SHARDS = 4
KILLS = 6
STRANGER = 12345  # another user


class Served(World):
    """With the folder of a model for imports."""

    def __init__(self):
        super().__init__()
        self.model = os.path.join(self.folder, "model")
        os.mkdir(self.model)

    def has_shards(self, name, count, tool):
        """Waits until there are so many, or the tool has ended."""
        assert comes(lambda: len(self.shards(name)) >= count or tool.poll() is not None,
                     pause=0.002), self.log()

    def make_model(self):
        write_llama(self.model, 512, 1024, 4000, os.urandom)

    def path(self, name):
        return os.path.join(self.folder, name)

    def importing(self, name, **options):
        """An import through the server, under way."""
        return subprocess.Popen(
            [CLI, "import", self.model, "--run", name, "--shards", str(SHARDS), *self.where,
             "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

    def shards(self, name):
        return glob.glob(os.path.join(self.store, name, "step-*", "shard-*"))

    def is_listed(self, name):
        return any(entry["run"] == name for entry in self.listed(*self.where))

    def verifies(self, name):
        code, out, err = self.cli("verify", name, *self.where)
        return code == 0 or (code, out, err)

    def gc(self):
        code, out, err = self.cli("gc", *self.where, "--json")
        assert code == 0, err
        return json.loads(out)


# ---- the same answers


def without_nonce(text):
    report = json.loads(text)
    report.pop("nonce", None)
    return report


def same_answers(world):
    one, two = (f"{world.run}@{step}-a{attempt}" for step, attempt in
                sorted((entry["step"], entry["attempt"]) for entry in world.listed())[:2])
    output = world.path("output")
    names = {world.run: "RUN", one: "CHECKPOINT", two: "ANOTHER", output: "PATH"}
    for command in (["list", world.run], ["show", one], ["verify", one], ["verify", one, "--quick"],
                    ["diff", one, two], ["du"], ["du", world.run], ["du", one],
                    ["gc", "--dry-run"],
                    ["export", one, "--output", output],
                    ["export", one, "--output", output, "--dtype", "bf16", "--weights-only",
                     "--format", "safetensors"],
                    ["convert", one, "--output", output, "--dtype", "bf16"],
                    ["convert", one, "--output", output, "--shards", "3"]):
        answers, files = [], []
        for where in (("--store", world.store), world.where):
            code, out, err = world.cli(*command, *where, "--json")
            assert err == "" and code in (0, 1), (command, code, out, err)
            answers.append((code, without_nonce(out) if "{" == out[0] else json.loads(out)))
            if os.path.isfile(output):
                files.append(open(output, "rb").read())
                os.remove(output)
            shutil.rmtree(output, ignore_errors=True)
        for entry in answers[1][1] if command[0] == "list" else ():
            entry["in_memory"] = False  # which only a server knows
        test(f"{' '.join(names.get(word, word) for word in command)} is the same from both sides",
             answers[0] == answers[1] and len(set(files)) < 2, answers)


def who_asked(world):
    """Changes of the store are in ckptd's log with their user; reads are not."""
    one = "first@0-a1"
    damaged = os.path.join(world.store, "first", "quarantine", "step-00000000-a0001")
    bad, pids = [], []
    for words, said in ((["pin", one, "--note", "mine"], "Pin|run first|attempt 1|note mine"),
                        (["unpin", one], "Pin|run first|attempt 1|unpin"),
                        (["prune", "first", "--keep-last", "9", "--dry-run"],
                         "Prune|run first|keep_last 9|dry_run"),
                        (["gc"], "Gc"), (["gc", "--dry-run"], "Gc|dry_run"),
                        (["import", world.model, "--run", "asked", "--shards", "1"], "Adopt"),
                        (["verify", one, "--release"], "Release|run first|attempt 1"),
                        (["list"], None), (["show", one], None), (["status"], None)):
        if said and said.startswith("Release"):
            world.stop()
            os.makedirs(os.path.dirname(damaged), exist_ok=True)
            with open(damaged, "w") as note:
                note.write("a test")
            world.launch()
        tool = subprocess.Popen([CLI, *words, *world.where], stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True)
        _, err = tool.communicate(timeout=60)
        pids.append(tool.pid)
        who = f"asked for by user {os.getuid()}, process {tool.pid}"
        lines = [line for line in world.log().splitlines()
                 if f"process {tool.pid}" in line and " audit: " not in line]
        if tool.returncode != 0 or len(lines) != (said is not None) or said and not all(
                text in lines[0] for text in (who, *said.split("|"))):
            bad.append((words, err, lines))
    test("the log tells who asked for what changes the store, and for what", not bad, bad)
    test("what was released from quarantine is served at once",
         "damage" not in next(entry for entry in world.listed(*world.where)
                              if entry["run"] == "first"), world.listed(*world.where))
    test("and who began an attempt, which shuts the one before out",
         f"OpenAttempt asked for by user {os.getuid()}, process" in world.log() and
         "_json" not in world.log(), world.log())
    world.stop()
    test("and who told ckptd to end",
         f"stop signal from user {os.getuid()}, process {os.getpid()}" in world.log(), world.log())
    world.launch()


def notified(world):
    """The messages to a service manager, in the order of sd_notify(3)."""
    world.stop()
    world.launch()
    told = [world.readiness.recv(64).decode()]
    code = world.end()
    told.append(world.readiness.recv(64).decode())
    test("a service manager is told when ckptd is ready, and when it is about to end",
         told == ["READY=1", "STOPPING=1"] and code == 0, (told, code))
    world.launch(before=("env", "--ignore-signal=HUP"))
    world.process.send_signal(signal.SIGHUP)
    masks = {}

    def are_its_own():  # while it starts a thread, libc blocks all
        with open(f"/proc/{world.process.pid}/status") as file:
            masks.update((name, int(mask, 16)) for name, mask in
                         re.findall(r"^(Sig\w+):\s*(\w+)$", file.read(), re.M))
        return not masks["SigBlk"] >> (signal.SIGWINCH - 1) & 1

    wait_until(are_its_own, lambda: masks)
    ignored = masks["SigIgn"] & ~masks["SigBlk"]  # a blocked signal is waited for
    serves = world.cli("health", *world.where)[0] == 0
    test("a ckptd that is to outlive its terminal ignores that this is closed",
         serves and ignored >> (signal.SIGHUP - 1) & 1, masks)


class Doorway:
    """A socket in front of ckptd's that refuses the first connections."""

    def __init__(self, world, turns_away):
        self.left, self.to = turns_away, world.server[5:]
        self.path = os.path.join(world.folder, "doorway")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            if self.left > 0:
                self.left -= 1
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.to)
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self.move, args=(a, b), daemon=True).start()

    @staticmethod
    def move(a, b):
        while data := a.recv(65536):
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)


def turned_away(world):
    door = Doorway(world, turns_away=1)
    said = world.cli("status", "--server", f"unix:{door.path}")
    test("who finds no place for a connection comes again", said[0] == 0 and door.left == 0, said)


def without_rules(world):
    """The log lines of a start about retention."""
    def said_by_a_start(*options):
        world.stop()
        before = world.log().count("no rule is set")
        world.launch(*options)
        return world.log().count("no rule is set") - before

    found = [said_by_a_start("--retention.keep_last", "9"), said_by_a_start()]
    test("a start without rules says once that nothing is ever removed", found == [0, 1], found)


def unreadable(world):
    """A run whose attempts cannot be listed, beside others."""
    world.stop()
    attempts = os.path.join(world.store, world.run, "attempts")
    os.rename(attempts, attempts + ".away")
    os.symlink("attempts.away", attempts)  # links are not followed
    others = {entry["run"] for entry in world.listed()} - {world.run}
    world.launch()
    entries = world.listed(*world.where)
    test("a list names a run that cannot be read, and the others",
         [e["damage"] != "" for e in entries if e["run"] == world.run] == [True] and
         {e["run"] for e in entries} == others | {world.run}, entries)
    code, _, err = world.cli("gc", *world.where)
    test("and gc, which leaves it alone", code == 74 and world.run in err, (code, err))
    catalog = world.status()["catalog"]
    test("and so does the status",
         [run["run"] for run in catalog["unreadable"]] == [world.run] and
         "could not be read" in catalog["unreadable"][0]["reason"], catalog)
    world.stop()
    os.unlink(attempts)
    os.rename(attempts + ".away", attempts)
    world.launch()


def out_of_reach(world):
    code, _, err = world.cli("verify", world.run, "--server", f"unix:{world.folder}/nobody")
    test("a server that is not there is named", code == 69 and "start ckptd" in err, err)
    away = world.store + ".away"
    os.rename(world.store, away)
    code, _, err = world.cli("verify", world.run, *world.where)
    test("a store that is not there for us is named",
         code == 66 and world.store in err and "cannot be reached" in err, (code, err))
    shutil.copytree(away, world.store)
    code, _, err = world.cli("verify", world.run, *world.where)
    test("nor is another directory of that name taken for it",
         code == 66 and "another directory" in err, (code, err))
    shutil.rmtree(world.store)
    os.rename(away, world.store)


# ---- convert, reshard


def digests(world, name, *where):
    code, out, err = world.cli("show", name, "--json", *where)
    assert code == 0, err
    return [dict(tensor, layout=None) for tensor in json.loads(out)["tensors"]]


def made_of_another_store(world):
    """Checkpoints of `world`, whose ckptd serves on, into the store of another ckptd."""
    target = Served()
    one, two = (f"{world.run}@{entry['step']}-a{entry['attempt']}" for entry in
                reversed(world.listed()) if entry["run"] == world.run)
    into = ("--output", target.server, "--json")
    try:
        target.launch()
        code, out, err = target.cli("convert", one, *world.where, *into, "--dtype", "bf16")
        test("a checkpoint is converted into a served store", code == 0 and err == "" and
             json.loads(out)["output"] == target.server, (code, out, err))
        code, out, err = target.cli("convert", two, "--store", world.store, *into, "--shards", "3")
        test("and another cut comes into the run that is there by then", code == 0 and err == "" and
             target.verifies(one) is True and target.verifies(two) is True and
             digests(target, two, *target.where) == digests(world, two, *world.where),
             (code, out, err))
        for what, want, words in (((one, *world.where), 74, "already"),
                                  ((two, *target.where), 2, "store of the source")):
            code, out, err = target.cli("convert", *what, *into, "--shards", "2")
            test(f"it is refused: {words}", code == want and words in err, (code, out, err))
        code, _, err = target.cli("convert", one, *world.where, "--output", target.store,
                                  "--shards", "2")
        test("a directory that a ckptd serves is not written without it",
             code == 74 and "in use by" in err and "--output unix:" in err, (code, err))
        again = target.cli("convert", one, *target.where, "--output", world.server, "--dtype",
                           "bf16")
        test("what is there already is not made again", again[0] == 74 and "already" in again[2],
             again)
        found = target.gc()
        test("nothing is left of what was refused here", found["rubbish"] == [], found)
        test("but two checkpoints", len(target.listed(*target.where)) == 2)
    finally:
        target.close()


# A leak checker cannot inspect a process that has become another user.
OF_ANOTHER = dict(os.environ,
                  ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")


def let_through(world):
    """Another user's access to files whose names he knows."""
    for folder in (os.path.dirname(world.folder), world.folder):
        os.chmod(folder, os.stat(folder).st_mode | 0o055)


def asked_by_another_user():
    """Memory that ckptd, as root, lends to an allowed other user; and the refusals of ckptd and the
    tool to him (ckptd_rights tests the calls)."""
    names = ("a user of access.uids saves through the arena", "and loads it from there",
             "and, from another ckptd, from the disk",
             "what that user saved is ckptd's own, and whole",
             "what only operators may is refused, with the setting that allows it",
             "an import is refused by the tool itself", "a store that one may not read is named")
    if os.geteuid() != 0:
        skip(names, "not root")
        return
    world = Served()
    try:
        world.make_model()
        world.launch("--access.uids", str(STRANGER))
        tools = {tool: shutil.copy(tool, world.folder) for tool in (SAVER, CLI)}
        let_through(world)

        def as_stranger(tool, *words):
            return subprocess.run([tools[tool], *map(str, words)], cwd="/", user=STRANGER,
                                  group=STRANGER, extra_groups=[], text=True, timeout=60,
                                  capture_output=True, env=OF_ANOTHER)

        for name, what, ranks in zip(names, ("save", "load", "load"), (2, 3, 1)):
            if name == names[2]:
                world.stop()
                world.launch("--access.uids", str(STRANGER))
            done = as_stranger(SAVER, what, world.server, ranks, 1, 1)
            test(name, done.returncode == 0, done)
        world.run = world.listed()[0]["run"]
        files = world.shards(world.run)
        test(names[3], len(files) == 2 and not world.all_verify() and
             all(os.stat(path).st_uid == 0 and os.stat(path).st_mode & 0o022 == 0
                 for path in files), (files, world.all_verify()))
        for name, mode, said, words in (
                (names[4], 0o755, "access.operators", ["gc"]),
                (names[5], 0o777, "as that user", ["import", world.model, "--run", "theirs"]),
                (names[6], 0o700, world.store, ["verify", world.run])):
            os.chmod(world.store, mode)
            done = as_stranger(CLI, *words, *world.where)
            test(name, done.returncode == 74 and said in done.stderr, done)
    finally:
        world.close()


def served_by_another_user():
    """A ckptd that is not root's, and a tool that is."""
    name = "root imports as the user of ckptd, who can remove it all"
    private = "root converts so from a store that this user may not read"
    small = "and a ckptd that may lock little memory saves"
    if os.geteuid() != 0:
        skip([name, small, private], "not root")
        return
    world = Served()
    try:
        world.make_model()
        world.ckptd = shutil.copy(world.ckptd, world.path("daemon"))
        os.mkdir(world.path("theirs"))
        os.chown(world.path("theirs"), STRANGER, STRANGER)
        let_through(world)
        world.store = world.path("theirs/store")
        world.server = f"unix:{world.path('theirs/s')}"
        world.where = ("--server", world.server)
        world.launch(user=STRANGER, group=STRANGER, extra_groups=[], cwd="/")
        tool = world.importing("made", env=OF_ANOTHER)
        _, err = tool.communicate(timeout=60)
        owners = {os.stat(path).st_uid for path in world.shards("made")}
        test(name, tool.returncode == 0 and owners == {STRANGER} and
             world.verifies("made") is True, (err, owners))
        world.save_one(1)
        test(small, not world.all_verify())
        mine = world.path("mine")
        code, _, err = world.cli("import", world.model, "--run", "cut", "--store", mine)
        assert code == 0, err
        os.chmod(mine, 0o700)
        done = subprocess.run([CLI, "convert", "cut", "--store", mine, "--output", world.server,
                               "--shards", "5"], text=True, capture_output=True, env=OF_ANOTHER)
        owners = {os.stat(path).st_uid for path in world.shards("cut")}
        test(private, done.returncode == 0 and owners == {STRANGER} and
             world.verifies("cut") is True and os.listdir(os.path.join(mine, "cut/leases")) == [],
             (done, owners))
    finally:
        world.close()


# ---- import


def imported(world):
    done = world.importing("first")
    out, err = done.communicate(timeout=60)
    test("a model is imported into a served store", done.returncode == 0 and err == "", (out, err))
    test("and is there at once, whole", world.is_listed("first") and
         world.verifies("first") is True, world.verifies("first"))
    other = world.path("offline")
    code, _, err = world.cli("import", world.model, "--run", "first", "--shards", SHARDS,
                             "--store", other)
    assert code == 0, err
    tensors = []  # with their digests
    for where in (("--store", other), world.where):
        tensors.append(json.loads(world.cli("show", "first", *where, "--json")[1])["tensors"])
    test("with the bits of an import on a directory", tensors[0] == tensors[1] and tensors[0])
    done = world.importing("first")
    _, err = done.communicate(timeout=60)
    test("a run that is there is not imported again",
         done.returncode == 74 and "already" in err, err)
    done = world.importing(world.run)
    _, err = done.communicate(timeout=60)
    test("nor one that was trained", done.returncode == 74 and "another name" in err, err)
    found = world.gc()
    test("nothing is left of what was refused", found["rubbish"] == [], found)
    test("the lease has gone with the tool",
         os.listdir(os.path.join(world.store, "first", "leases")) == [])


def filters_of(task):
    try:
        with open(f"{task}/status") as file:
            found = re.search(r"^Seccomp_filters:\s*(\d+)", file.read(), re.M)
    except (FileNotFoundError, ProcessLookupError):  # a thread that has ended since
        return None
    return found and int(found[1])


def makes_no_more_rings(world):
    name = "every thread of ckptd has given up making rings"
    tasks = glob.glob(f"/proc/{world.process.pid}/task/*")
    if filters_of("/proc/self") is None:
        skip([name], "the kernel does not tell")
        return
    expected = filters_of("/proc/self") + 1
    found = [filters for filters in map(filters_of, tasks) if filters is not None]
    test(name, len(found) > 3 and set(found) == {expected}, (found, world.log()))


def stopped_import(world):
    """An import of which some shards are there, and no checkpoint yet: its name, the tool."""
    for number in range(10):
        name = f"slow{number}"
        tool = world.importing(name)
        world.has_shards(name, 1, tool)
        tool.send_signal(signal.SIGSTOP)
        if not world.is_listed(name):
            return name, tool
        tool.send_signal(signal.SIGCONT)  # it was over too soon
        tool.communicate(timeout=60)
    raise AssertionError("ten imports were over before they could be stopped")


def beside_gc(world):
    """The tool is stopped in the middle, and rubbish is collected."""
    name, tool = stopped_import(world)
    rubbish = os.path.join(world.store, world.run, "step-00000900-a0001")
    os.mkdir(rubbish)
    open(os.path.join(rubbish, "shard-00001-of-00001.safetensors"), "w").close()
    mark(rubbish)
    before = world.shards(name)
    found = world.gc()
    same = sorted(before) == sorted(world.shards(name))
    second = world.importing(name)
    _, err = second.communicate(timeout=60)
    tool.send_signal(signal.SIGCONT)
    _, said = tool.communicate(timeout=60)
    test("gc removes what is dead beside an import",
         [entry["name"] for entry in found["rubbish"]] == [f"{world.run}/step-00000900-a0001"],
         found)
    test("and nothing of the import", same and before)
    test("a second import of the name is refused", second.returncode == 74 and
         ("another process" in err or "another name" in err), (second.returncode, err))
    test("the first comes to its end", tool.returncode == 0 and world.verifies(name) is True,
         said)


def judge(world, name, bad):
    """Whole or gone, the rest is rubbish that gc removes, and the name is free again. ckptd may
    still be executing the killed tool's request."""
    def is_settled():
        return world.is_listed(name) or (world.gc() and not world.shards(name))

    wait_until(is_settled, world.log)
    listed = world.is_listed(name)
    if listed and world.verifies(name) is not True:
        bad.append((name, world.verifies(name)))
    world.gc()
    left = world.gc()
    if left["rubbish"] or (not listed and world.shards(name)):
        bad.append((name, left, world.shards(name)))
    if not listed:
        again = world.importing(name)
        _, err = again.communicate(timeout=60)
        if again.returncode != 0 or world.verifies(name) is not True:
            bad.append((name, err))
    return listed


def killed_tools(world):
    """With no shard there, with some, and with all; then while the request waits for a stopped
    ckptd."""
    bad, listed = [], 0
    for number in range(KILLS):
        name = f"tool{number}"
        tool = world.importing(name)
        world.has_shards(name, number % (SHARDS + 1), tool)
        tool.kill()
        tool.communicate()
        listed += judge(world, name, bad)
    test(f"{KILLS} kills of the tool: whole or gone ({listed} were whole)", not bad, bad)
    tool = world.importing("asked")
    world.has_shards("asked", SHARDS, tool)
    world.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: tool.poll() is not None or is_asleep(tool), world.log)
    tool.kill()
    tool.communicate()
    world.process.send_signal(signal.SIGCONT)
    judge(world, "asked", bad)
    test("a kill of a tool that has asked: whole or gone", not bad, bad)


def is_asleep(process):
    with open(f"/proc/{process.pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] == "S"


def killed_servers(world):
    bad, unsure = [], []
    for number in range(KILLS):
        name = f"server{number}"
        tool = world.importing(name)
        world.has_shards(name, 1 + number % SHARDS, tool)
        world.process.kill()
        world.process.wait()
        world.launch()
        _, err = tool.communicate(timeout=90)
        if tool.returncode != 0:
            unsure.append((name, tool.returncode, err))
        if not world.is_listed(name) or world.verifies(name) is not True:
            bad.append((name, err))
    test(f"{KILLS} kills of ckptd: the import waits for the next and comes to its end",
         not unsure, unsure)
    test("what it said is there, whole", not bad, bad)
    found = world.gc()
    test("and nothing beside it", all(entry["bytes"] == 0 for entry in found["rubbish"]), found)


def main():
    world = Served()
    try:
        world.make_model()
        world.launch()
        world.save((1, 2))
        makes_no_more_rings(world)
        same_answers(world)
        imported(world)
        beside_gc(world)
        who_asked(world)
        notified(world)
        turned_away(world)
        without_rules(world)
        made_of_another_store(world)
        killed_tools(world)
        killed_servers(world)
        unreadable(world)
        out_of_reach(world)
    finally:
        world.close()
    asked_by_another_user()
    served_by_another_user()
    end()


if __name__ == "__main__":
    main()
