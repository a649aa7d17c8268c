#!/usr/bin/env python3
"""tier - the far tier: committed checkpoints drain there, and a machine with an empty disk resumes
from it.

Goal: a save that was acknowledged as `bucket` survives the loss of every process and of the whole
local store: a fresh ckptd with an empty store and a fresh trainer have the losses of an undisturbed
run, bit for bit. Two ckptd that share a far tier never both own one attempt. A drain that is killed
or whose tier fails for a while resumes and completes. A directory that is no store is not turned
into one. Method: the real programs on a `dir:` tier; SIGKILL, removed directories, a tier that is a
file for a while.
"""

import glob
import hashlib
import json
import os
import random
import re
import shutil
import threading
import time

import lib_train
from lib_store import BUILD, PATIENCE, World, make_tier, wait_until
from lib_tap import end, test

SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))
STEPS = 10
LARGE = "--model.dim", "512", "--model.n_layers", "4", "--model.hidden_dim", "2048"
PARTS = "--tier.part_bytes", "1MiB", "--tier.quiet", "false", "--tier.lease_ms", "100"


def tier_of(world, *where):
    code, out, err = world.cli("status", "--json", *(where or world.where))
    assert code == 0, err
    return json.loads(out)["tier"]


def drained(world):
    return lambda: tier_of(world)["now"] is None and tier_of(world)["waiting"] == 0


def train(world, run, *options, **popen):
    return lib_train.Trainer(
        lib_train.command(world.folder, world.server, run, "--training.steps", STEPS,
                          "--checkpoint.interval", "1", "--checkpoint.when_busy", "wait",
                          "--comm.ranks", "2",
                          "--metrics.loss_file", os.path.join(world.folder, run + ".loss"),
                          *options), **popen)


def losses(world, run):
    with open(os.path.join(world.folder, run + ".loss")) as file:
        return {int(line.split()[0]): line for line in file}


def far_has(world, run, step, attempt):
    """True when it is committed there, as a tool without ckptd sees it."""
    code, out, _ = world.cli("list", "--json", "--store", world.far)
    found = json.loads(out) if code in (0, 1) and out else []
    return any((entry["run"], entry["step"], entry["attempt"]) == (run, step, attempt)
               for entry in found)


def lose_everything(world):
    world.process.kill()
    world.process.wait()
    shutil.rmtree(world.store)


def resumes(world, options, rounds):
    lib_train.make_tokens(world.folder, lib_train.prose())
    world.start(*options)
    process = train(world, "whole")
    said = process.communicate()[1]
    test("a run trains beside the drain", process.returncode == 0, said)
    expected = losses(world, "whole")
    chance = random.Random(SEED)
    for round_ in range(rounds):
        run, last = f"r{round_}", chance.randrange(1, STEPS)
        process = train(world, run, "--debug.pause_at_step", last + 1)
        wait_until(lambda: far_has(world, run, last, 1) or process.poll() is not None,
                   f"step {last} in the far tier")
        process.kill()
        process.communicate()
        lose_everything(world)
        world.start(*options)
        listed = {(entry["run"], entry["step"]): entry for entry in world.listed(*world.where)}
        test(f"round {round_}: a fresh ckptd lists what the far tier has",
             listed.get((run, last), {}).get("durability") == "bucket", (run, last, listed.keys()))
        ranks = 1 + round_ % 2  # two ranks' checkpoint, cut for so many ranks straight from there
        process = train(world, run, "--checkpoint.durability", "bucket", "--comm.ranks", ranks)
        said = process.communicate()[1]
        log = world.log()
        test(f"round {round_}: a fresh trainer of {ranks} resumes from step {last}, bit for bit",
             process.returncode == 0 and losses(world, run) == expected and
             f"newest checkpoint: step {last}" in log, (said[-2000:], log[-2000:]))
        test(f"round {round_}: with checkpoint.durability the end waits for the far tier",
             f"step {STEPS} is durable (bucket)" in said and
             far_has(world, run, STEPS, 2), said[-2000:])
    world.stop()


def verified(world, run):
    """The run's checkpoints that do not verify in the far tier."""
    code, out, err = world.cli("verify", "--store", world.far, run)
    return None if code == 0 else (code, out, err)


def numbers(store, run):
    return {int(name) for name in os.listdir(os.path.join(store, run, "attempts"))
            if name.isdigit()}


def races(worlds, options, rounds):
    """Starts of one run on two ckptd, at the same time."""
    for world in worlds:
        world.start(*options, "--tier.lease_ms", "0")  # the lease lets one start

    def start_often(world):
        for _ in range(rounds):
            world.save_one(1, ranks=1)

    threads = [threading.Thread(target=start_often, args=(world,)) for world in worlds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run = worlds[0].listed()[0]["run"]
    taken = [numbers(world.store, run) for world in worlds]
    test(f"of two ckptd one wins each of {2 * rounds} attempts",
         not taken[0] & taken[1] and taken[0] | taken[1] == set(range(1, 2 * rounds + 1)) and
         numbers(worlds[0].far, run) == taken[0] | taken[1],
         (sorted(taken[0] & taken[1]), [len(some) for some in taken]))
    for world in worlds:
        wait_until(drained(world), "both have drained")
    bad = verified(worlds[0], run)
    found = glob.glob(f"{worlds[0].far}/{run}/step-*/manifest.json")
    marks = glob.glob(f"{worlds[0].far}/{run}/step-*/unfinished")
    test("each attempt's checkpoint is in the far tier once, and whole, without a mark",
         bad is None and len(found) == 2 * rounds and not marks, (bad, len(found), marks))
    for world in worlds:
        world.stop()


def killed(world, options, rounds):
    """SIGKILL at any point of a drain that is made slow."""
    chance = random.Random(SEED)
    slow = (*options, "--tier.rate", "4MiB")
    world.start(*slow)
    for step in range(1, rounds + 1):
        world.save_one(step)
        time.sleep(chance.random() * 1.5)
        world.process.kill()
        world.process.wait()
        world.start(*slow)
    world.end()
    world.start(*options)
    wait_until(drained(world), "the drain has ended")
    run = world.listed()[0]["run"]
    names = {os.path.basename(path) for path in glob.glob(f"{world.far}/{run}/step-*")}
    whole = {os.path.basename(os.path.dirname(path))
             for path in glob.glob(f"{world.far}/{run}/step-*/manifest.json")}
    # A kill between a manifest and the end of its mark leaves it to gc.
    code, out, err = world.cli("gc", *world.where)
    marks = glob.glob(f"{world.far}/{run}/step-*/unfinished")
    test("a drain that is killed anywhere goes on: all is there, whole, and gc leaves no mark",
         verified(world, run) is None and len(whole) == rounds and names == whole and
         code == 0 and not marks, (verified(world, run), names, whole, marks, out, err))
    world.stop()


def unwell(world, options):
    """A far tier whose operations fail now and then; from some on; that is full."""
    world.ckptd = os.path.join(BUILD, "tests", "ckptd")
    faulty = f"fault:seed={SEED % 1000},error=0.1:local:{world.far}"
    world.start("--tier.store", faulty, *PARTS, "--tier.retry_ms", "10", *options)
    for step in range(1, 4):
        deadline = time.monotonic() + PATIENCE  # a start without an answer ends with "try again"
        while not world.try_save(step)[0]:
            assert time.monotonic() < deadline
    wait_until(drained(world), "a drain over errors")
    tier, run = tier_of(world), world.listed()[0]["run"]
    test("a drain goes on over errors of the far tier, and counts them",
         verified(world, run) is None and tier["checkpoints"] == 3 and tier["errors"] > 0 and
         tier["given_up"] == 0, tier)
    world.stop()
    world.start("--tier.store", "fault:fail_from=1:memory:", *PARTS, "--tier.retry_ms", "10",
                "--tier.wait_ms", "300")
    good, said = world.try_save(4)
    test("a start needs the far tier, and says so", not good and "the far tier does not" in said,
         said)
    world.stop()
    world.start("--tier.store", "fault:fail_from=1:memory:", *PARTS, "--tier.retry_ms", "10",
                "--tier.attempts", "local")
    good, said = world.try_save(5)
    test("but not with tier.attempts = local", good, said)
    test("which status tells", tier_of(world)["offline"] != "", tier_of(world))
    world.stop()
    world.start("--tier.store", "fault:seed=1:memory:2097152", *PARTS, "--tier.retry_ms", "10")
    for step in range(6, 9):
        world.save_one(step)
    wait_until(lambda: tier_of(world)["errors"] > 3, "a full tier is told")
    tier = tier_of(world)
    test("a full far tier holds nothing up, and is tried again",
         tier["offline"] != "" and tier["now"]["resting"] in (True, False), tier)
    world.stop()


def taken(world, other, options):
    """The same run's first attempt in two stores, apart from each other."""
    world.start(*options)
    world.save_one(1)
    wait_until(drained(world), "the first store's drain")
    other.far = world.far
    other.start("--tier.store", "fault:fail_from=1:memory:", "--tier.attempts", "local", *PARTS)
    other.save_one(1, seed=1)
    other.stop()
    other.ckptd = os.path.join(BUILD, "ckptd")
    metrics = os.path.join(other.folder, "metrics")
    other.start(*options, "--tier.attempts", "local", "--metrics.file", metrics,
                "--metrics.every_ms", "100")
    wait_until(lambda: tier_of(other)["given_up"] == 1, "the alarm")
    run = world.listed()[0]["run"]
    test("a number that another store has taken ends the drain with an alarm",
         f"another store has taken attempt 1 of run {run} there" in other.log() and
         verified(world, run) is None, other.log()[-2000:])
    alarm = f"run {run}: 1 checkpoints do not go into the far tier until a restart: another store"
    status, of_world = (one.status() for one in (other, world))
    told = status["alarms"]
    test("status says how old the newest is that the far tier has of a run, if it has one",
         status["runs"][0]["far_age_seconds"] is None and
         0 <= of_world["runs"][0]["far_age_seconds"] < PATIENCE, (status, of_world))
    health = other.cli("health", *other.where)

    def written():
        with open(metrics) as file:
            return file.read()

    test("which status and health tell", any(text.startswith(alarm) for text in told) and
         health[0] == 0 and f"alarm: {alarm}" in health[1], (told, health))
    wait_until(lambda: "holdfast_tier_given_up 1\n" in written(), written)
    test("and the metrics", "holdfast_alarms 1\n" in written(), written())
    for one in (world, other):
        one.stop()


def sums(folder):
    """Of each shard, its parts and their contents in the far tier; the manifest's values there."""
    with open(os.path.join(folder, "manifest.json")) as file:
        manifest = json.load(file)
    part = manifest["part_bytes"]
    for shard, told in zip(manifest["shard_table"], manifest["part_hashes"], strict=True):
        with open(os.path.join(folder, shard["file"]), "rb") as file:
            parts = list(iter(lambda: file.read(part), b""))
        whole = hashlib.sha256(b"".join(hashlib.sha256(one).digest() for one in parts))
        yield len(parts), whole.hexdigest(), told["sha256"]


def summed(world, options):
    world.start(*options)
    world.save_one(1)
    wait_until(drained(world), "the drain")
    run = world.listed()[0]["run"]
    world.stop()
    found = list(sums(glob.glob(f"{world.far}/{run}/step-*")[0]))
    test("the far manifest has the sum over the sums of each shard's parts",
         max(parts for parts, _, _ in found) > 1 and all(is_ == told for _, is_, told in found),
         found)


def ended(world):
    """While a large state is read from its image and sent, part by part."""
    lib_train.make_tokens(world.folder, lib_train.prose())
    world.start("--tier.store", "dir:" + world.far, "--tier.quiet", "false", "--tier.rate", "0",
                "--memory.pool_bytes", "512MiB")
    codes = train(world, "a", "--training.steps", "1", *LARGE).wait(PATIENCE), world.end()
    test("a ckptd that is told to end while it drains an image ends in order",
         codes == (0, 0), (codes, world.log()[-2000:]))


def alarms(world):
    return [text for text in world.status()["alarms"] if "the tier far" in text]


def unmounted(world, options):
    """A directory that is an empty mount point; missing; mounted while ckptd serves; moved away."""
    disk = os.path.join(world.folder, "disk")
    os.rename(world.far, disk)
    options = *options, "--tier.retry_ms", "50"
    for found in ("missing", "empty"):
        if found == "empty":
            os.mkdir(world.far)
        world.start(*options, "--tier.attempts", "local")
        world.save_one(1 + (found == "empty"))
        alarm = alarms(world)
        test(f"a far tier whose directory is {found} is away, and nothing is made there",
             len(alarm) == 1 and "holds no store" in alarm[0] and
             {entry["durability"] for entry in world.listed(*world.where)} == {"local"} and
             os.path.exists(world.far) == (found == "empty") and not glob.glob(world.far + "/*"),
             (alarm, world.listed(*world.where)))
        if found == "missing":
            world.stop()
    os.rmdir(world.far)
    os.rename(disk, world.far)
    wait_until(lambda: drained(world)() and tier_of(world)["checkpoints"] == 2,
               lambda: (tier_of(world), world.log()[-2000:]))
    test("when it is mounted, what was saved drains", not alarms(world), alarms(world))
    os.rename(world.far, disk)
    os.mkdir(world.far)
    world.save_one(3)
    wait_until(lambda: tier_of(world)["errors"] > 0, lambda: tier_of(world))
    test("one that is moved away while ckptd serves gets nothing more, nor does its place",
         os.listdir(world.far) == [] and not glob.glob(f"{disk}/*/step-*3-a*"),
         (os.listdir(world.far), glob.glob(f"{disk}/*/step-*")))
    world.stop()
    os.remove(f"{disk}/.holdfast.lock")
    os.rmdir(world.far)
    os.rename(disk, world.far)
    world.start(*options)
    wait_until(lambda: drained(world)() and tier_of(world)["checkpoints"] == 3,
               lambda: (tier_of(world), world.log()[-2000:]))
    test("one of before there were marks is known by its runs", not alarms(world), alarms(world))
    world.stop()


def collected(world, options):
    """A killed drain, whose checkpoint and node are lost with it: no ckptd resumes it."""
    metrics = os.path.join(world.folder, "metrics")
    world.start(*options, "--tier.rate", "1MiB", "--metrics.file", metrics, "--metrics.every_ms",
                "100")
    world.save_one(1)
    wait_until(lambda: glob.glob(f"{world.far}/*/step-*/unfinished"), "a drain under way")

    def told():
        now, screen = tier_of(world)["now"], world.cli("status", *world.where)[1]
        with open(metrics) as file:
            lines = file.read()
        return (now["seconds_left"] and now["bytes_per_second"] > 0 and
                0 < now["bytes_sent"] < now["bytes"] and
                re.search(r"@1-a1  \d+ % of .* s left", screen) and
                re.search(r"tier +\d checkpoints? to go, .*B, .*B/s", screen) and
                "holdfast_tier_now_seconds_left" in lines)

    wait_until(told, lambda: (tier_of(world), world.cli("status", *world.where)))
    test("how far a drain is and when it ends stands in status and in the metrics", True)
    code, out, err = world.cli("gc", *world.where)
    test("gc leaves alone what drains", code == 0 and
         len(glob.glob(f"{world.far}/*/step-*/unfinished")) == 1, (code, out, err))
    lose_everything(world)
    world.start(*options)
    run = os.path.basename(glob.glob(f"{world.far}/*/step-*")[0].rsplit("/", 1)[0])
    dry = world.cli("gc", "--dry-run", *world.where)
    found = glob.glob(f"{world.far}/{run}/step-*")
    code, out, err = world.cli("gc", *world.where)
    test("a ckptd that serves finds and removes rubbish in the far tier, too, and names the place",
         len(found) == 1 and f"dir:{world.far}/{run}/step-" in dry[1] and code == 0 and
         f"dir:{world.far}/{run}/step-" in out and not glob.glob(f"{world.far}/{run}/step-*"),
         (dry, code, out, err))
    os.rename(world.far, world.far + ".away")
    code, out, err = world.cli("gc", *world.where)
    test("one that is away is named", code == 74 and f"dir:{world.far}" in out + err and
         "moved away" in out + err, (code, out, err))
    world.stop()


def retained(world, options):
    """Rules of both tiers, and a far tier that does not answer at first."""
    rules = "--retention.keep_last", "2", "--retention.may_remove_most", "true"
    world.start("--tier.store", "fault:fail_from=1:memory:", "--tier.attempts", "local", *PARTS,
                *rules)
    for step in range(1, 7):
        world.save_one(step)
    run = world.listed()[0]["run"]
    said = {}

    def is_planned():  # retention after the last save has its own plan first
        said["prune"] = world.cli("prune", run, "--keep-last", "2", "--dry-run", *world.where)
        return "are being removed" not in said["prune"][2]

    wait_until(is_planned, lambda: said)
    out = said["prune"][1]
    test("what the far tier is to have stays until it has it, and a prune says why",
         world.steps() == list(range(1, 7)) and "draining" in out, (world.steps(), out))
    world.stop()
    world.start(*options, *rules, "--tier.keep_last", "3", "--scrub.period_s", "0")

    def far_steps():
        return sorted({entry["step"] for entry in world.listed("--store", world.far)})

    wait_until(lambda: drained(world)() and world.steps() == [5, 6] and far_steps() == [4, 5, 6],
               lambda: (world.steps(), far_steps(), world.log()[-2000:]))
    test("each tier keeps what its own rules say",
         verified(world, run) is None and
         {entry["step"] for entry in world.listed(*world.where)} == {4, 5, 6},
         world.listed(*world.where))
    for step in (4, 6):  # of the far tier alone; of both
        attempt = max(entry["attempt"] for entry in world.listed(*world.where)
                      if entry["step"] == step)
        code, out, err = world.cli("rm", f"{run}@{step}-a{attempt}", "--yes", *world.where)
        test(f"rm takes step {step} out of every tier that has it",
             code == 0 and step not in far_steps() and step not in world.steps() and
             step not in {entry["step"] for entry in world.listed(*world.where)},
             (code, out, err, far_steps()))
    world.stop()


def best(world, options):
    """Rules of one run, read again: the far tier keeps its best, and takes nothing in vain."""
    file = os.path.join(world.folder, "conf")

    def configure(text):
        with open(file, "w") as to:
            to.write(text)

    def far_steps():
        return sorted({entry["step"] for entry in world.listed("--store", world.far)})

    lib_train.make_tokens(world.folder, lib_train.prose())
    configure("")
    world.start(*options, "--config", file)
    said = train(world, "best").communicate()[1]
    wait_until(drained(world), world.log)
    before = far_steps()
    loss = {step: float.fromhex(line.split()[1]) for step, line in losses(world, "best").items()}
    want = sorted({*sorted(loss, key=loss.get)[-2:], STEPS - 1, STEPS})  # the last two stay anyway
    configure("[run.best]\ntier.keep_best = 2\nretention.best = \"highest\"\n"
              "retention.may_remove_most = true\n[run.other]\ntier.keep_last = 1\n")
    code, out, err = world.cli("server", "reload", *world.where)
    everything = list(range(1, STEPS + 1))
    wait_until(lambda: far_steps() == want, lambda: (far_steps(), want, world.log()[-3000:]))
    test("rules of a run for the far tier hold after a reload, those of the best too",
         before == everything and code == 0 and "restart:" not in out and
         world.steps() == everything, (said, before, out, err))
    world.stop()
    world.start(*options, "--config", file)
    said = train(world, "best", "--training.steps", STEPS + 1).communicate()[1]
    wait_until(lambda: far_has(world, "best", STEPS + 1, 2) and drained(world)(), world.log)
    sent = set(re.findall(r"run best, step (\d+), attempt \d+ is in the tier far: [1-9]",
                          world.log().rsplit("the far tier is dir:", 1)[1]))
    test("what they would remove again is not sent, also after a restart",
         sent == {str(STEPS + 1)}, (said, sent, world.log()[-2000:]))
    world.stop()


def new_world(far=None, ckptd=None):
    world = World()
    world.ckptd = os.path.join(BUILD, ckptd or "ckptd")
    world.far = far or os.path.join(world.folder, "far")
    if not far:
        make_tier(world.folder, world.far)
    return world, ("--tier.store", "dir:" + world.far, *PARTS)


def main():
    print(f"# SEED={SEED}")
    world, options = new_world()
    resumes(world, options, int(os.environ.get("ROUNDS", "2")))  # by one rank, and by two
    world, options = new_world()
    races([world, new_world(far=world.far)[0]], options, 15)
    killed(*new_world(), 3)
    unwell(new_world(ckptd="tests/ckptd")[0], ())
    world, options = new_world()
    taken(world, new_world(ckptd="tests/ckptd")[0], options)
    summed(*new_world())
    unmounted(*new_world())
    collected(*new_world())
    ended(new_world()[0])
    retained(*new_world(ckptd="tests/ckptd"))
    best(*new_world())
    end()


if __name__ == "__main__":
    main()
