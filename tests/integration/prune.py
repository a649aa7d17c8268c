#!/usr/bin/env python3
"""prune - ckpt-cli prune, pin and unpin, through a ckptd and on a directory.

Goal: the plan and the removals agree, and pins and leases are respected. (ckptd_power and
clients_cli_power cut a prune at each call, kills.py kills it at any moment.) Method: a real ckptd;
`saver save` makes checkpoints. Those of all ages are saved under a clock that is set back
(build/shims/clock.so).
"""

import glob
import json
import os
import re
import subprocess

import lib_train
from lib_store import SAVER, Clock, World, change, comes_to
from lib_table import says
from lib_tap import end, test

DIRECTORY = "{}/step-{:08d}-a{:04d}"  # of run, step and attempt


def shard_of(world, step):
    """The first of that checkpoint."""
    (folder,) = glob.glob(os.path.join(world.store, world.run, f"step-{step:08d}-*"))
    return min(glob.glob(os.path.join(folder, "shard-*")))


def plan_of(said, key="plan"):
    return {entry["step"]: entry[key] for entry in said["checkpoints"] if key in entry}


def through_a_server(world):
    world.launch()
    server = ("--server", world.server)
    world.save(range(1, 9))
    prune = f"prune {world.run} --keep-last"
    says("more than half is refused", f"{prune} 3", *server, code=74, err="more than half")
    said = says("a dry run removes nothing", f"{prune} 3 --dry-run --json", *server,
                then=lambda: world.steps() == list(range(1, 9)))
    plan = plan_of(said)
    test("and plans", said["needs_most"] and (plan[8], plan[6], plan[1]) ==
         ("last, good", "last", "remove"), said)
    says("that the plan needs --most it says", f"{prune} 3 --dry-run", *server,
         out=("PLAN", "without --most nothing"))
    test("and only then", "--most" not in world.cli(*prune.split(), 4, "--dry-run", *server)[1])
    pinned_on_a_server(world)
    world.stop()


def pinned_on_a_server(world):
    run, server = world.run, ("--server", world.server)
    newest = {entry["step"]: entry["attempt"] for entry in world.listed()}
    pin = f"{run}@2-a{newest[2]}"
    says("a pin is made", f"pin {pin} --note 'best so far'", *server, out="pinned")

    def pinned():
        return [[entry["step"] for entry in world.listed(*where) if entry["pinned"]]
                for where in ((), server)]

    test("the list shows it, from both sides", pinned() == [[2], [2]], pinned())
    says("nor does rm plan to remove it", f"rm {pin} --dry-run --force", *server, code=74,
         err="is pinned")
    for name, step in ((run, 8), (f"{run}@5", 5)):
        kind = "a step" if "@" in name else "a run"
        said = says(f"of {kind} the newest is pinned", f"pin {name} --json", *server)
        test("it says which", said == {"run": run, "step": step, "attempt": newest[step],
                                       "pinned": True, "durability": "local"}, said)
        says("and unpinned", f"unpin {name} --json", *server,
             then=lambda: pinned()[0] == [2])
    for step, name in ((4, "draft"), (8, "final")):
        says(f"step {step} is tagged", f"tag {run}@{step} {name}", *server, out=name)
    rows = rows_of(says("a plan is told", f"prune {run} --keep-last 3 --dry-run", *server))
    test("with the tags of what goes and of what stays",
         (rows[4], rows[8]) == ("to be removed, tag draft", "kept: last, good, tag final"), rows)
    said = says("a prune does what it planned", f"prune {run} --keep-last 3 --most --json", *server,
                then=lambda: world.steps() == [2, 6, 7, 8] and world.tombstones() == [])
    done = plan_of(said, "removed")
    test("and says so, with the tags", [step for step in done if done[step]] == [5, 4, 3, 1] and
         plan_of(said, "tags") == {4: "draft", 8: "final"}, said)
    said = [int(step) for step in re.findall(r"removed step (\d+), attempt \d+", world.log())]
    test("the log names each that went", sorted(said) == [1, 3, 4, 5], world.log())
    said = re.findall(r"(\w+) step 2, attempt \d+.*best so far", world.log())
    test("and who was pinned, with the note", said == ["pinned"], world.log())
    says("a pin is taken away", f"unpin {pin}", *server, out="no longer pinned")
    says("not twice", f"unpin {pin}", *server, code=66,
         err=f"{DIRECTORY.format(run, 2, newest[2])} is not pinned\n")


def on_a_directory(world):
    store, run = ("--store", world.store), world.run
    says("a pin needs no server", f"pin {run}@2", *store, out="pinned")
    says("rm plans no removal of its run", f"rm {run} --dry-run --force", *store, code=74,
         err="is pinned")
    says("nor does a prune", f"prune {run} --keep-last 1 --keep-every 3 --most", *store,
         out="removed", then=lambda: world.steps() == [2, 6, 7, 8])
    pin = says("nor does it to be taken away", f"unpin {run}@2 --json", *store)
    test("which is said", pin["pinned"] is False, pin)
    says("but not twice, here too", f"unpin {run}@2", *store, code=66,
         err=f"{DIRECTORY.format(run, 2, pin['attempt'])} is not pinned\n")
    says("what is free now goes, the last two good ones never",
         f"prune {run} --keep-within 0s --keep-last 1", *store, out="removed",
         then=lambda: world.steps() == [7, 8])
    path = shard_of(world, 8)
    content = open(path, "rb").read()
    os.truncate(path, 4096)
    said = says("a plan looks at the files", f"prune {run} --keep-last 1 --dry-run --json", *store)
    test("what is not whole is kept as evidence and counts for nothing",
         plan_of(said) == {8: "unverifiable", 7: "last, good"}, said)
    open(path, "wb").write(content)


def changed(world):
    through_a_server(world)
    on_a_directory(world)


def told(world):
    """list and show report the steps that were read back: steps 1 to 3, of them the newest
    first."""
    said = {}
    for where in (world.where, ("--store", world.store)):
        listed = world.listed(*where)
        shown, lines = {}, set()
        for entry in listed:
            name = f"{world.run}@{entry['step']}"
            shown[entry["step"]] = json.loads(
                world.cli("show", name, *where, "--json")[1])["read_back"]
            lines |= {(entry["step"], line) for line in
                      world.cli("show", name, *where)[1].splitlines() if line[:9] == "read back"}
        rows = world.cli("list", world.run, *where)[1].splitlines()[1:]
        said[where[0]] = ({e["step"]: e["read_back"] for e in listed}, shown, lines,
                          [re.sub("^.*Z +|, in memory|[0-9]+ s ago, ", "", row) for row in rows])
    read = {step: step < 10 for step in (14, 13, 12, 11, 3, 2, 1)}
    lines = {(step, f"read back    {'yes' if read[step] else 'not yet'}") for step in read}
    test("what was not read back since its commit is told, by a server and of a directory",
         all(one == (read, read, lines, ["local, not read back"] * 4 +
                     ["local, verified whole"] + ["local"] * 2) for one in said.values()), said)


def read_back(world):
    """Checkpoints that the scrub has read back stay also when no ckptd plans."""
    def plan(*where):
        code, out, err = world.cli("prune", world.run, *where, "--keep-last", 1, "--dry-run",
                                   "--json")
        return code, {e["step"]: e["plan"] for e in json.loads(out)["checkpoints"]}, err

    world.launch()
    world.save([1, 2, 3])
    world.stop()
    world.launch("--scrub.rate", "1GiB", "--scrub.start_ms", "0")
    assert comes_to(lambda: world.status()["scrub"]["passes"] > 0, True), world.log()
    world.stop()
    world.launch()
    world.save(range(11, 15))
    served, read_alone = plan(*world.where), plan("--store", world.store)
    told(world)
    world.stop()
    proven = [step for step, reasons in served[1].items() if "proven" in reasons]
    test("of those that were read back the last two stay, by a server's plan", proven == [3, 2],
         served)
    test("and by one without a server", read_alone == served, (read_alone, served))
    code, out, err = world.cli("prune", world.run, "--store", world.store, "--keep-last", 1,
                               "--most")
    test("which a prune obeys", code == 0 and world.steps() == [2, 3, 13, 14],
         (out, err, world.steps()))
    folder = os.path.join(world.store, world.run, "scrub")
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "w") as cursor:
            cursor.write("2 nonsense")
    code, plans, err = plan("--store", world.store)
    test("where the scrub stood nobody can read it is said", code == 0 and
         "cannot be read" in err and
         [step for step in plans if "proven" in plans[step]] == [3], (plans, err))
    code, out, err = world.cli("list", "--store", world.store, "--json")
    test("and then what was read out of turn alone counts as read back", code == 0 and
         "cannot be read" in err and
         [e["step"] for e in json.loads(out) if e["read_back"]] == [3], (out, err))


def known_damage(world):
    """The two newest are damaged and verify of the directory has found it: a prune keeps the whole
    one, and the next ckptd serves it. (ckptd_retain tests [retention] in this case.)"""
    store = ("--store", world.store)
    world.launch()
    world.save([2, 4, 6])
    for step in (4, 6):
        change(shard_of(world, step), (1 << 20) + 77)
    world.stop()
    says("verify finds the damage", f"verify --all {world.run}", *store, code=1)
    said = says("a list with damage in it ends with 1", "list", *store, code=1)
    test("which names both", said.count("DAMAGED") == 2, said)
    said = says("a prune goes on", f"prune {world.run} --keep-last 2 --json", *store)
    test("what was found damaged counts nowhere", plan_of(said) ==
         {6: "unverifiable", 4: "unverifiable", 2: "last, good, proven"}, said)
    world.launch()
    loaded = subprocess.run([SAVER, "load", world.server, "2", "1", "2"], timeout=100,
                            capture_output=True, text=True)
    test("the whole one stays, and the next ckptd serves it",
         world.steps() == [2, 4, 6] and loaded.returncode == 0,
         (world.steps(), loaded, world.log()))
    world.stop()


def damage_that_others_find(world):
    """Damage found by a command that reads for another purpose counts like a finding of verify."""
    world.launch()
    world.save([2, 4, 6])
    for step in (4, 6):
        change(shard_of(world, step), (1 << 20) + 77)
    output = os.path.join(world.folder, "out.safetensors")
    says("an export through ckptd tells it of damage, and ckptd proves it itself",
         f"export {world.run}@6 --output {output}", *world.where, code=1, out="ckptd was notified",
         err="is damaged", then=lambda: comes_to(lambda: world.status()["runs"][0]["damaged"], 1))
    world.stop()
    store = ("--store", world.store)
    says("reshard finds it on the directory", f"convert {world.run}@4 --shards 3 --output {output}",
         *store, code=1, err="is damaged")
    said = says("and the list knows it", "list", *store, code=1)
    test("both of it", said.count("DAMAGED") == 2, said)


HOUR, DAY = 3600, 86400
AGES = {1: 20 * DAY, 2: 10 * DAY, 3: 5 * DAY // 2, 4: 5 * HOUR, 5: 2 * HOUR, 6: 2400, 7: 600, 8: 0}


def rows_of(text):
    """{step: its text} of a printed plan or result."""
    return {int(step): said for step, said in
            re.findall(r"^\S+@(\d+)-a\d+ +[0-9.]+ \w+  (.+)$", text, re.M)}


def by_age(world):
    """Saved while the clock is set back that far; the saves take little time compared with the
    ages."""
    clock = Clock(world.folder)
    world.launch()
    for step, seconds in AGES.items():
        clock.set(0, -seconds)
        world.save([step])
    for span, oldest, where in (("1w", 3, ("--server", world.server)),
                                ("90m", 6, ("--store", world.store))):
        if where[0] == "--store":
            world.stop()
        before = world.steps()
        want = {step: "removed" if step < oldest else
                "kept: within, good" if step > 6 else "kept: within" for step in before}
        code, out, err = world.cli("prune", world.run, *where, "--keep-within", span)
        test(f"a prune names what went and what kept the others, {where[0]}",
             code == 0 and rows_of(out) == want and "RESULT" in out and
             f"\n{oldest - before[0]} of {len(before)} checkpoints, " in out and
             world.steps() == list(range(oldest, 9)), (code, out, err))


def train(world):
    """Twelve steps of a tiny Llama, each saved; its loss file as {step: (loss, norm)}."""
    lib_train.make_tokens(world.folder, lib_train.prose())
    subprocess.run(
        lib_train.command(world.folder, world.server, "best", "--training.steps", 12,
                          "--checkpoint.interval", 1, "--checkpoint.async_mode", "disabled"),
        check=True, capture_output=True, timeout=100)
    with open(os.path.join(world.folder, "loss")) as losses:
        lines = [line.split() for line in losses]
    return {int(step): tuple(map(float.fromhex, rest)) for step, *rest in lines}


def best_by_a_metric(world):
    world.launch()
    saved = train(world)
    for options, column, reverse in (((), 0, False), (("--best", "highest"), 0, True),
                                     (("--metric", "grad_norm"), 1, False)):
        want = sorted(saved, key=lambda step: saved[step][column], reverse=reverse)[:3]
        for where in (("--server", world.server), ("--store", world.store)):
            plan = plan_of(says(f"a plan by {options or 'loss'} is made, {where[0]}",
                                " ".join(["prune best --keep-best 3 --dry-run --json", *options]),
                                *where))
            found = sorted(step for step in plan if "best" in plan[step])
            test("which keeps the best three", len(plan) == 12 and found == sorted(want),
                 (want, plan))
    says("a metric that no checkpoint has is an error", "prune best --keep-best 3 --metric beauty",
         "--server", world.server, code=2, err="has a value of the metric")
    world.stop()


def main():
    for story in (changed, best_by_a_metric, read_back, known_damage, damage_that_others_find,
                  by_age):
        world = World()
        try:
            story(world)
        finally:
            world.close()
    end()


if __name__ == "__main__":
    main()
