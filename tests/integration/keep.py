#!/usr/bin/env python3
"""keep - a careless operator's actions on a store lose no whole checkpoint.

Goal: a disk that is not mounted, a store that is moved away: nothing is removed, and the reason is
reported. Method: a real ckptd on a directory, which this script moves, empties and fills as an
operator may; `saver save` makes checkpoints.
"""

import json
import os
import shutil
import subprocess

from lib_store import PATIENCE, World, comes
from lib_tap import end, test


def without_its_disk(world):
    """The directory is there, empty, as the place where a disk is not mounted."""
    os.mkdir(world.store)
    world.spawn("--store_must_exist", "true")
    code = world.process.wait(PATIENCE)
    test("where no store is none begins: 78", code == 78 and os.listdir(world.store) == [],
         (code, os.listdir(world.store)))
    said = world.log()
    test("and what to look at is named",
         f"{world.store} holds no store" in said and "mounted" in said and "--make_store" in said,
         said)
    done = subprocess.run([world.ckptd, "--store", world.store, "--store_must_exist", "true",
                           "--make_store"], capture_output=True, text=True)
    world.launch("--store_must_exist", "true")
    world.save([1])
    test("a store is made on purpose", done.returncode == 0 and world.steps() == [1], done.stderr)


def moved_away(world):
    """And another directory is in its place, as after an unmount."""
    away = world.store + "-away"
    os.rename(world.store, away)
    os.mkdir(world.store)
    told = comes(lambda: world.status()["offline"])
    test("a store that is moved while it is served goes offline with the reason",
         told and world.store in world.status()["offline"], world.status())
    good, said = world.try_save(2)
    test("nothing more is saved, into neither directory",
         not good and os.listdir(world.store) == [] and
         not [name for name in os.listdir(os.path.join(away, world.run)) if "00000002" in name],
         said)
    os.rmdir(world.store)
    os.rename(away, world.store)
    test("brought back it is served again, by the same ckptd",
         comes(lambda: not world.status()["offline"]), world.status())
    world.save([2])
    test("and saved into", world.steps() == [1, 2] and world.all_verify() == [], world.steps())
    world.end()
    world.launch()


def step_of(world, number):
    run = os.path.join(world.store, world.run)
    return os.path.join(run, next(name for name in os.listdir(run) if f"{number:08d}" in name))


def manifest_lost(world):
    """It was moved away by mistake; or is a link, or a FIFO; or is yet to come from a backup."""
    world.save([3, 4])
    world.stop()
    folders = [step_of(world, number) for number in (2, 3, 4)]
    paths = [os.path.join(folder, "manifest.json") for folder in folders]
    for path in paths:
        os.rename(path, path + ".away")
    os.symlink("manifest.json.away", paths[1])
    os.mkfifo(paths[2])
    offline = {entry["step"]: entry.get("flaw") for entry in world.listed()}
    world.launch()
    served = {entry["step"]: entry.get("flaw") for entry in world.listed(*world.where)}
    test("shards without a manifest are set aside, and named from both sides",
         served[2] == offline[2] == "set aside" and served[4] == offline[4] == "set aside" and
         served[3] and offline[3] and served[1] is offline[1] is None, (served, offline))
    code, out, err = world.cli("gc", *world.where, "--dry-run", "--json")
    named = [entry["name"] for entry in json.loads(out)["rubbish"]]
    world.cli("gc", *world.where)
    world.stop()
    world.cli("gc", "--store", world.store)
    test("gc names them, and removes none of their shards",
         all(f"{world.run}/{os.path.basename(folder)}" in named for folder in folders) and
         all(len([name for name in os.listdir(folder) if name.startswith("shard")]) == 2
             for folder in folders), (named, err))
    for path in paths:
        if os.path.lexists(path):
            os.remove(path)
        os.rename(path + ".away", path)
    world.launch()
    test("with their manifests they are whole", world.steps() == [1, 2, 3, 4] and
         world.all_verify() == [])


def name_of(world, number):
    return f"{world.run}@{number}-a{int(step_of(world, number).rsplit('-a', 1)[1])}"


def removed_by_name(world, *where):
    """A damaged or quarantined checkpoint is removed when the operator names it, with a message."""
    served = where == world.where
    world.save([11, 12, 13, 14])
    world.stop()
    os.remove(os.path.join(step_of(world, 11), "manifest.json"))
    with open(os.path.join(step_of(world, 12), "manifest.json"), "w") as file:
        file.write("damaged")
    names = [name_of(world, number) for number in (11, 12)]
    pinned = name_of(world, 13)
    world.cli("pin", pinned, "--store", world.store)
    if served:
        world.launch()
    from_where = "a ckptd" if served else "a directory"
    code, out, err = world.cli("rm", names[0], *where)
    test(f"{from_where}: without a yes nothing goes", code == 74 and "--yes" in err and
         "will be lost" in out and os.path.exists(step_of(world, 11)), (code, out, err))
    code, out, err = world.cli("rm", names[0], *where, "--json")
    test(f"{from_where}: and JSON alone says so with --json", code == 74 and out == "" and
         json.loads(err), (code, out, err))
    said = [world.cli("rm", name, *where, "--yes") for name in names]
    run = os.path.join(world.store, world.run)
    test(f"{from_where}: what is set aside or damaged goes",
         [code for code, _, _ in said] == [0, 0] and
         not [name for name in os.listdir(run) if "00000011" in name or "00000012" in name] and
         (not served or not os.listdir(os.path.join(run, "quarantine"))), said)
    code, out, err = world.cli("rm", pinned, *where, "--yes")
    whole = world.cli("rm", world.run, *where, "--yes")
    test(f"{from_where}: what is pinned stays, and its run", code == 74 and whole[0] == 74 and
         "pin" in err and "pin" in whole[2] and os.path.exists(step_of(world, 13)),
         (code, err, whole))
    world.cli("unpin", pinned, *where)
    code, out, err = world.cli("rm", world.run, *where, "--yes")
    test(f"{from_where}: a whole run goes", code == 0 and not os.path.exists(run), (code, out, err))
    if not served:
        world.launch()
    world.run = None
    world.save([1])
    test(f"{from_where}: and its name begins anew", world.steps() == [1], world.listed())


def empty_runs(world):
    """Runs that were begun and never saved count toward the limit; removing one makes room for
    another."""
    world.stop()
    for number in range(4):
        os.makedirs(os.path.join(world.store, f"empty{number}", "attempts"))
        open(os.path.join(world.store, f"empty{number}", "attempts", "0001"), "w").close()
    shutil.rmtree(os.path.join(world.store, world.run))
    world.launch("--limits.runs", "4")
    full = world.try_save(1)
    code, out, err = world.cli("rm", "empty2", *world.where, "--yes")
    test("a run without a checkpoint can be removed, which makes room for another",
         not full[0] and "limits.runs" in full[1] and code == 0 and world.try_save(1)[0],
         (full, code, out, err))


def main():
    world = World()
    try:
        without_its_disk(world)
        moved_away(world)
        manifest_lost(world)
        removed_by_name(world, *world.where)
        removed_by_name(world, "--store", world.store)
        empty_runs(world)
        world.stop()
    finally:
        world.close()
    end()


main()
