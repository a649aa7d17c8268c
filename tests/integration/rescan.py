#!/usr/bin/env python3
"""rescan - checkpoints that are copied into a served store, or moved away, without ckptd; and
backups.

Goal: a checkpoint or a whole run that is copied into the store of a running ckptd is listed and
loaded without a restart, but not before it is whole. One that is moved away leaves the list, and
comes back with its directory; unlisted directories are named with the reason. A store that was
backed up by cp, rsync or a snapshot of a directory while ckptd saved is a store with whole
checkpoints. Method: the real programs; cp, mv and rsync.
"""

import json
import os
import shutil
import subprocess

from lib_store import PATIENCE, SAVER, World, comes_to
from lib_tap import end, skip, test

VANISHED = {"cp": 1, "rsync": 24}  # their statuses when a file went while they copied


def steps(world, *run):
    code, out, err = world.cli("list", *run, *world.where, "--json")
    assert code in (0, 1), err
    return sorted(entry["step"] for entry in json.loads(out))


def loads(world, step):
    return subprocess.run([SAVER, "load", world.server, "2", "1", str(step)], timeout=PATIENCE,
                          capture_output=True).returncode == 0


def rescan(world):
    code, out, err = world.cli("server", "rescan", *world.where, "--json")
    assert code == 0, err
    return json.loads(out)


def copied_in(world, source):
    run, names = world.run, sorted(os.listdir(os.path.join(source, world.run)))
    step1, step2 = (os.path.join(source, run, name) for name in names if name.startswith("step-"))
    there = os.path.join(world.store, run)
    shutil.copytree(step1, os.path.join(there, os.path.basename(step1)))
    test("a checkpoint that was copied into the store is listed", steps(world) == [1, 3])
    test("and loaded", loads(world, 1), world.log())
    half = os.path.join(there, os.path.basename(step2))
    os.mkdir(half)
    parts = sorted(os.listdir(step2))  # manifest.json is the first
    for name in parts[:-1]:
        shutil.copy(os.path.join(step2, name), half)
    said = rescan(world)
    test("one that is not whole yet is not, and rescan says why", steps(world) == [1, 3] and
         said["added"] == 0 and len(said["skipped"]) == 1 and "is missing" in said["skipped"][0],
         said)
    shutil.copy(os.path.join(step2, parts[-1]), half)
    test("when its last file is there it is listed, and no note calls it damaged",
         steps(world) == [1, 2, 3] and loads(world, 2) and
         not os.path.exists(os.path.join(there, "quarantine")), world.log())


def history_is_written(world):
    """The journal has every event: ckptd writes a second after the first."""
    folder = os.path.join(world.store, world.run, "history")
    newest = max(name for name in os.listdir(folder) if name[0] != ".")
    with open(os.path.join(folder, newest)) as file:
        told = file.read().count('"event":')
    return told == world.log().count(" audit: ")


def moved(world):
    path = os.path.join(world.store, world.run)
    name = next(name for name in os.listdir(path) if name.startswith("step-00000002"))
    aside = os.path.join(world.folder, "aside")
    shutil.move(os.path.join(path, name), aside)
    # It stays while it is in use: a load that has ended notes what it read back.
    test("one that was moved away leaves the list", comes_to(lambda: steps(world), [1, 3]),
         world.log())
    test("and the log says so", "step 2" in world.log() and "has vanished" in world.log())
    shutil.move(aside, os.path.join(path, name))
    test("with its directory it comes back, whole", steps(world) == [1, 2, 3] and loads(world, 2))
    assert comes_to(lambda: history_is_written(world), True)
    os.rename(path, aside)
    test("a whole run leaves the list", comes_to(lambda: steps(world), []))
    world.stop()  # writes what the journals lack
    test("and nothing makes its folder again", not os.path.exists(path),
         (list(os.walk(path)), world.log()[-2000:]))
    world.launch()
    os.rename(aside, path)
    said = rescan(world)
    test("and comes back", said["added"] == 3 and steps(world) == [1, 2, 3], said)
    world.save_one(4)
    test("it is trained on in a new attempt", steps(world) == [1, 2, 3, 4] and loads(world, 4))


def copied(command):
    """The copy may miss a file that ckptd replaced in the meantime (the journal)."""
    done = subprocess.run(command, timeout=PATIENCE, capture_output=True, text=True)
    return done.returncode == 0 or done.returncode == VANISHED[command[0]] and \
        ("vanished" in done.stderr or "No such file" in done.stderr)


def backed_up(world, how, command):
    """While ckptd saves: checkpoints that were committed before the copy began are whole in the
    copy."""
    copy = os.path.join(world.folder, "copy-" + how)
    before = set(steps(world))
    saver = subprocess.Popen([SAVER, "save", world.server, "2", "1", str(max(before) + 1)],
                             stderr=subprocess.DEVNULL)
    assert copied([*command, world.store + "/", copy])
    saver.wait(PATIENCE)
    other = World(store=copy)
    try:
        other.launch()
        found = set(steps(other))
        test(f"a backup by {how} under a ckptd that saves has every checkpoint from before it",
             before <= found, (before, found, other.log()))
        test("which load, and verify", not other.all_verify() and loads(other, max(before)),
             other.log())
        other.stop()
    finally:
        other.close()


def main():
    world = World()
    source = os.path.join(world.folder, "source")
    try:
        world.launch()
        world.save([1, 2])
        world.stop()
        world.copy_store(source)
        world.launch()
        world.save_one(3)
        for entry in list(world.listed()):
            if entry["step"] < 3:
                shutil.rmtree(os.path.join(world.store, world.run,
                                           f"step-{entry['step']:08}-a{entry['attempt']:04}"))
        copied_in(world, source)
        moved(world)
        backed_up(world, "cp", ["cp", "-a"])
        if shutil.which("rsync"):
            backed_up(world, "rsync", ["rsync", "-a"])
        else:
            skip(["a backup by rsync"], "there is no rsync")
        world.stop()
    finally:
        world.close()
    end()


main()
