#!/usr/bin/env python3
"""terminal - ckpt-cli's output on a terminal: bars, counts, durability, and no foreign control
characters.

Goal: every command that may take long has its bar on a terminal, of that terminal's width, and none
with --json or elsewhere; counted nouns have their plural. A command that makes a checkpoint or an
export reports how durable it is. No control character of a manifest, a name or a model reaches the
terminal. Method: a real store and a model of random bits; stderr is a pseudo-terminal, or standard
output too; manifests are changed text by text and sealed again.
"""

import copy
import glob
import json
import os
import random
import re
import shutil
import struct
import time

import lib_program
import lib_train
from lib_store import CLI, World, change, sealed, uncommit, write_llama
from lib_tap import end, test
from lib_terminal import AT_WORK, CLEARED, bar_is_wrong, on_a_terminal

seed = int(os.environ.get("SEED", time.time_ns() % 10**9))
chance = random.Random(seed)
SHORT = {"rm", "undelete", "adopt", "rename", "tag", "untag", "list", "show", "pin", "unpin",
         "follow", "status", "health", "watchdog", "server", "advise", "stop", "save",
         "doctor", "report"}  # which have no bar
SUMMARY_BYTES = 4096  # MANIFEST_SUMMARY_BYTES
TABLES = ("layouts", "tensors", "shard_table")  # read as they are written, after all others
FREE = ("mesh", "identity", "config", "state", "data")  # where a trainer may put any text
EVIL = "\x1b[2J\x07\x9b31m\n\r\x7f"  # C0, DEL, and a C1 control of two bytes in UTF-8
CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # but for the ends of lines


class Tools:
    """A store of three checkpoints and a model, offline and served."""

    def __init__(self):
        self.world = World()
        self.made = 0

    def path(self, name):
        return os.path.join(self.world.folder, name)

    def prepare(self):
        world = self.world
        os.mkdir(self.path("model"))
        write_llama(self.path("model"), 512, 1024, 4000, chance.randbytes)
        world.launch()
        world.save((1, 2, 3, 4))
        self.names = [f"{one['run']}@{one['step']}-a{one['attempt']}" for one in world.listed()]
        folders = sorted(glob.glob(os.path.join(world.store, world.run, "step-*")))
        rubbish = os.path.join(world.store, world.run, "step-00000900-a0001")
        shutil.copytree(folders[0], rubbish)
        uncommit(rubbish)

    def copy(self):
        shutil.rmtree(self.path("copy"), ignore_errors=True)
        self.world.copy_store(self.path("copy"))

    def fresh(self):
        """A name that nothing has yet."""
        self.made += 1
        return self.path(f"made{self.made}")

    def long_commands(self, where, served):
        """(command, exit code, the text of its bar), removals last."""
        one, two = self.names[:2]
        rate, steps, looks = "iB/s", r" 1 of \d directories", " 1 of 4 checkpoints"
        run = os.path.basename(self.fresh())
        last = ["prune", self.world.run, "--keep-last", "2", *where]
        removals = [(["gc", *where], 0, [steps, rate]), (last, 0, [looks, rate])]
        if served:  # from which nothing is removed: all tests share one store
            removals = []
        return [
            (["verify", one, *where], 0, [rate]),
            (["diff", one, two, *where], 1, [rate]),
            (["du", *where], 0, [steps]),
            (["export", one, "--output", self.fresh(), *where], 0, [rate]),
            (["convert", one, "--output", self.fresh(), "--dtype", "bf16", *where], 0, [rate]),
            (["convert", one, "--output", self.fresh(), "--shards", "3", *where], 0, [rate]),
            (["cp", one, self.fresh() + ":copy", *where], 0, [rate]),
            (["repair", one, "--from", self.world.store, *where], 0, [rate]),
            (["import", self.path("model"), "--run", run, "--shards", "2", *where], 0, [rate]),
            (["bench", "io", self.path("."), "--bytes", "4MiB"], 0, [rate]),
            (["gc", "--dry-run", *where], 0, AT_WORK if served else [steps]),
            ([*last, "--dry-run"], 0, AT_WORK if served else [looks]),
            *removals]


def bars(tools):
    world = tools.world
    commands = set(re.findall(r"^  ([a-z-]+) ", world.cli("--help")[1], re.M))
    for side, where in (("a directory", ("--store", tools.path("copy"))),
                        ("a server", world.where)):
        bad, told = [], set()
        for columns in (100, 40) if where != world.where else (40,):
            tools.copy()
            for command, code, want in tools.long_commands(where, where == world.where):
                told.add(command[0])
                shown, got, out = on_a_terminal(CLI, *command, columns=columns)
                wrong = bar_is_wrong(command, shown, want, columns)
                if got != code or wrong:
                    bad.append((command, columns, got, wrong, shown, out))
        test(f"every long command has its bar on a terminal, within its width, on {side}",
             not bad and told == commands - SHORT, (bad, told ^ (commands - SHORT)))


def no_bars(tools):
    world, bad, plural = tools.world, [], []
    for options in (["--json"], []):
        tools.copy()
        for command, code, _ in tools.long_commands(("--store", tools.path("copy")), False):
            if options:
                shown, got, out = on_a_terminal(CLI, *command, *options)
                json.loads(out)
            else:
                got, out, shown = world.cli(*command)
                plural += re.findall(r"(?<![\d.])1 [a-z]+s\b.*|(?<![\d.])(?:0|[2-9]) "
                                     r"(?:tensor|shard|file|block|rank|checkpoint)\b(?! d).*", out)
            if got != code or shown != "":
                bad.append((command, options, got, shown))
    test("none with --json, nor where stderr is no terminal", not bad, bad)
    single = tools.fresh()
    said = world.cli("import", tools.path("model"), "--run", "one", "--store", single)[1]
    for command in (["show", "one"], ["verify", "one"], ["verify", "one", "--quick"],
                    ["diff", "one", "one"], ["prune", "one", "--keep-last", "1"], ["gc"]):
        said += world.cli(*command, "--store", single)[1]
    plural += re.findall(r"(?<![\d.])1 [a-z]+s\b.*", said)
    test("what is one is told as one, and what is more as more",
         not plural and all(part in said for part in
                            ("12 tensors in 1 shard,", " in 1 shard\n", "(1 rank) and one@0-a1",
                             "12 tensor digests: all match", "0 of 1 checkpoint,", "0 files, ")),
         (plural, said))


def durability(tools):
    """For each command an answer for operators and one in JSON."""
    world, target = tools.world, World()
    one, store = tools.names[0], ("--store", world.store)
    sides = (("a directory", store, tools.fresh(), ("--store", tools.fresh())),
             ("a server", world.where, target.server, target.where))
    try:
        target.launch()
        for side, where, into, home in sides:
            for name, form in zip(tools.names, ([], ["--json"])):
                for words in (["export", name, "--output", tools.fresh(), *where],
                              ["import", tools.path("model"), "--run",
                               os.path.basename(tools.fresh()), *home],
                              ["convert", name, "--output", into, "--dtype", "bf16", *where],
                              ["show", one, *where], ["verify", one, *where],
                              ["verify", one, "--quick", *where], ["pin", one, *where],
                              ["pin", one, *where], ["unpin", one, *where]):
                    code, out, err = world.cli(*words, *form)
                    said = code == 0 and (json.loads(out)["durability"] == "local" if form else
                                          "local" in re.split(r"[ ,.;\n]+", out))
                    test(f"{' '.join([words[0], *form])} says how durable it is, with {side}", said,
                         (words, code, out, err))
        for keep, form in ((2, []), (1, ["--json"])):  # of the converted data
            target.save([5, 6])
            code, out, err = target.cli("prune", target.run, "--keep-last", keep, "--most",
                                        *target.where, *form)
            test(f"{' '.join(['prune', *form])} too", code == 0 and (
                json.loads(out)["durability"] == "local" if form else
                ", removed, local\n" in out), (code, out, err))
    finally:
        target.close()
    damaged = tools.fresh()
    world.copy_store(damaged)
    for path in glob.glob(os.path.join(damaged, "*", "step-*", "shard-*")):
        change(path, os.path.getsize(path) // 2)
    code, out, err = world.cli("verify", one, "--store", damaged, "--json")
    test("of one that it finds damaged verify says that",
         code == 1 and json.loads(out)["durability"] == "damaged", (code, out, err))


# ---- strangers


def leaves(value, path=()):
    """Places of the texts in a JSON document, one of each list."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, path + (key,))
    elif isinstance(value, list) and value:
        yield from leaves(value[0], path + (0,))
    elif isinstance(value, str):
        yield path


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def manifest_of(good, document):
    """A manifest of these members; those of the summary do not fit its hash any more."""
    summary = good[:SUMMARY_BYTES]
    known = json.loads(summary.rstrip().rstrip(b",") + b"}")
    for key, value in known.items():
        if document[key] != value:
            summary = summary.replace(json.dumps(value).encode(),
                                      json.dumps(document[key]).encode())[:SUMMARY_BYTES]
    head = {key: value for key, value in document.items() if key not in {*known, *TABLES, "sha256"}}
    text = summary + compact(head)[1:-1].encode() + b","
    for name in TABLES:
        entries = ",".join("\n" + compact(entry) for entry in document[name])
        text += f'"{name}":[{entries}],\n'.encode()
    return sealed(text + b'"sha256"')


def said_by(*arguments):
    """The exit code, and the text of both streams on a terminal."""
    done = lib_program.run_bytes(CLI, *arguments)
    return done.returncode, (done.stdout + done.stderr).decode(errors="surrogateescape")


def hostile_manifests(tools):
    world = tools.world
    store = tools.path("hostile")
    world.copy_store(store)
    name = tools.names[-1]
    step, attempt = name.split("@")[1].split("-a")
    path = os.path.join(store, world.run, f"step-{int(step):08d}-a{int(attempt):04d}",
                        "manifest.json")
    with open(path, "rb") as file:
        good = file.read()
    document = json.loads(good)
    for section in FREE:
        document[section]["note"] = "text"
    bad, read_through = [], 0
    free = [place for place in leaves(document) if place[0] in (*FREE, "code_version")]
    for places in [free, *([place] for place in leaves(document) if place not in free)]:
        changed = copy.deepcopy(document)
        for place in places:
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] += EVIL
            if place[0] in FREE:
                inner["key" + EVIL] = 1
        with open(path, "wb") as file:
            file.write(manifest_of(good, changed))
        for command in (["list"], ["show", name], ["verify", name, "--quick"], ["du", name],
                        ["status"], ["status", "--watch", "--count", "1"],
                        ["diff", name, tools.names[0]],
                        ["export", name, "--force", "--output", tools.path("hostile-export")]):
            for form in ([], ["--json"]):
                code, said = said_by(*command, "--store", store, *form)
                read_through += command[0] == "show" and code == 0
                if code < 0 or CONTROLS.search(said):
                    bad.append((places, command, form, code, CONTROLS.findall(said), said[:2000]))
    test("no control character of a manifest reaches the terminal", not bad, bad[:3])
    test("though those texts of it that may be any are read and shown", read_through >= 2,
         read_through)


def hostile_names(tools):
    world = tools.world
    store = tools.path("named")
    world.copy_store(store)
    run = os.path.join(store, world.run)
    shutil.copytree(run, os.path.join(store, "run" + EVIL))
    first = sorted(glob.glob(os.path.join(run, "step-*")))[0]
    quarantine = os.path.join(run, "quarantine")
    os.makedirs(quarantine, exist_ok=True)
    with open(os.path.join(quarantine, os.path.basename(first)), "w", encoding="utf-8") as file:
        file.write("a reason" + EVIL)
    for folder in (run, first, os.path.join(run, "pins"), os.path.join(run, "leases")):
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "file" + EVIL), "w"):
            pass
    bad = []
    step, attempt = re.match(r"step-0*(\d+)-a0*(\d+)", os.path.basename(first)).groups()
    name = f"{world.run}@{step}-a{attempt}"
    for command in (["list"], ["list", "run" + EVIL], ["show", name], ["show", "run" + EVIL],
                    ["verify", name], ["du"], ["du", name], ["gc", "--dry-run"], ["gc"],
                    ["prune", world.run, "--keep-last", "2", "--dry-run"], ["pin", name],
                    ["unpin", name], ["prune", "run" + EVIL, "--keep-last", "2"], ["status"],
                    ["status", "--watch", "--count", "1"],
                    ["show", name + EVIL], ["-" + EVIL], ["list", "--" + EVIL], ["cmd" + EVIL],
                    ["verify", name, "--dtype" + EVIL], ["list", "--server", "unix:/" + EVIL]):
        for form in ([], ["--json"]):
            where = [] if "--server" in command else ["--store", store]
            code, said = said_by(*command, *where, *form)
            if code < 0 or CONTROLS.search(said):
                bad.append((command, form, code, said[:2000]))
    test("nor one of the name of a run, a file, or what was typed", not bad, bad[:3])
    code, said = said_by("show", name, "--store", store)
    test("the reason of a quarantine is told without it",
         code == 0 and "IN QUARANTINE: a reason?[2J" in said, (code, said[-300:]))


def hostile_models(tools):
    good, bad, count = tools.path("model"), [], 0
    with open(os.path.join(good, "model.safetensors"), "rb") as file:
        whole = file.read()
    with open(os.path.join(good, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    length = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8:8 + length])
    first = next(iter(header))
    headers = [{**header, first + EVIL: header[first]}, {**header, "more" + EVIL: {
        "dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}, {**header, first: {
            **header[first], "dtype": "F32" + EVIL}},
        {name if name != first else first + EVIL: one for name, one in header.items()}]
    configs = [{**config, "model_type": "llama" + EVIL}, {**config, "hidden_act": "silu" + EVIL},
               {**config, "rope_scaling": {"rope_type": "odd" + EVIL}},
               {**config, "more" + EVIL: "value" + EVIL}]
    index = {"weight_map": {name: "file" + EVIL for name in header}}
    for number, (one, other, has_index) in enumerate(
            [(new, config, False) for new in headers] + [(header, new, False) for new in configs] +
            [(header, config, True)]):
        folder = tools.path(f"model{number}{EVIL}")
        os.mkdir(folder)
        text = json.dumps(one).encode()
        with open(os.path.join(folder, "model.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + whole[8 + length:])
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(other, file)
        if has_index:
            with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
                json.dump(index, file)
        for form in ([], ["--json"]):
            store = tools.fresh()
            code, said = said_by("import", folder, "--run", "evil", "--store", store, *form)
            count += code != 0
            if code == 0:
                said += said_by("show", "evil", "--store", store, *form)[1]
            if code < 0 or CONTROLS.search(said):
                bad.append((number, form, code, said[:1000]))
            shutil.rmtree(store, ignore_errors=True)
        shutil.rmtree(folder)
    test("nor one of a model that is imported, or refused", not bad and count >= 8, (count, bad))


def trainer(tools):
    lib_train.make_tokens(tools.world.folder, lib_train.prose())
    command = lib_train.command(tools.world.folder, tools.world.server, "shown",
                                "--checkpoint.no_enable", "--training.steps", 40)
    shown, code, _ = on_a_terminal(*command, columns=60)
    lines = [line.replace("\x1b[K", "") for line in re.split(r"[\r\n]", shown)]
    bars = [line for line in lines if re.match(r"step \d+ of 40 \[#*\.*\] ", line)]
    test("a run's last line says how far it is, and is left empty",
         code == 0 and bars and bars[-1].startswith("step 40 of 40 ") and
         max(map(len, bars)) < 60 and shown.rindex(CLEARED) >
         shown.rindex(bars[-1]) and any(re.search(r" step: 40 +loss:", line) for line in lines),
         shown[-2000:])


def main():
    print(f"# SEED={seed}")
    tools = Tools()
    try:
        tools.prepare()
        bars(tools)
        no_bars(tools)
        durability(tools)
        hostile_manifests(tools)
        hostile_names(tools)
        hostile_models(tools)
        trainer(tools)
    finally:
        tools.world.close()
    end()


if __name__ == "__main__":
    main()
