#!/usr/bin/env python3
"""mend - damage of one copy is found, named, and repaired from another tier.

Goal: for any changed byte of a local shard, the first reader (a load, the scrub) finds it, and the
far copy serves. The local file is then restored to the byte, the quarantine is lifted, and the
journal records it; also when ckptd is killed in between. Likewise for a far object, whose damage
the scrub of the far tier finds. A damaged source replaces nothing. Method: the real programs on a
`dir:` tier, a byte flipped in a header and one in the data (clients_damage flips every one).
"""

import glob
import os
import random
import subprocess

from lib_store import PATIENCE, SAVER, change, wait_until
from lib_tap import end, test
from tier import PARTS, drained, new_world, tier_of

SCRUB = "--scrub.start_ms", "100", "--scrub.rate", "1GiB", "--scrub.period_s", "0"
SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))


def contents(paths):
    out = {}
    for path in paths:
        with open(path, "rb") as file:
            out[path] = file.read()
    return out


def read(world, step=1):
    return subprocess.run([SAVER, "read", world.server, str(step), "5000"], capture_output=True,
                          text=True, timeout=PATIENCE)


def journal(world, run):
    code, out, err = world.cli("server", "history", run, "--json", *world.where)
    assert code == 0, err
    return out


def samples(path):
    """Places in the header and in the data."""
    return 9, random.Random(SEED).randrange(4096, os.path.getsize(path) - 8192)


def is_mended(world, before, folder):
    return lambda: (contents(before) == before and
                    not glob.glob(f"{folder}/quarantine/*") and
                    not glob.glob(f"{folder}/step-*/*.new"))


def by_loads(world, options):
    world.start(*options)
    world.save_one(1)
    wait_until(drained(world), "the drain")
    run = world.listed()[0]["run"]
    folder = os.path.join(world.store, run)
    files = glob.glob(f"{folder}/step-*/shard-*") + glob.glob(f"{folder}/step-*/manifest.json")
    before = contents(files)
    shard = sorted(files)[-1]
    assert "shard" in shard
    for offset in samples(shard):
        world.stop()
        change(shard, offset)
        world.start(*options)
        good = read(world)
        wait_until(lambda: is_mended(world, before, folder)() and
                   world.status()["mending"]["mended"] == 1,
                   lambda: (offset, world.log()[-3000:], world.status()["mending"]))
        test(f"byte {offset}: the far copy serves, and the local one is mended to the byte",
             good.returncode == 0 and world.status()["mending"]["mended"] == 1 and
             '"mend"' in journal(world, run), (good, world.status()["mending"]))
        test(f"byte {offset}: the list has a whole checkpoint again",
             [entry["durability"] for entry in world.listed(*world.where)] == ["bucket"] and
             world.cli("verify", "--store", world.store, run)[0] == 0, world.listed(*world.where))
    test("the log says from where it was served",
         "is damaged in the local tier, and served from the far one" in world.log())
    world.stop()
    os.remove(shard)
    world.start(*options)
    wait_until(is_mended_or_lost(world, before, folder, run), lambda: world.log()[-3000:])
    test("a shard that is gone comes back", contents(files) == before, world.log()[-2000:])
    world.stop()
    return run, folder, before, shard


def is_mended_or_lost(world, before, folder, run):
    def look():
        read(world)
        return all(map(os.path.exists, before)) and is_mended(world, before, folder)()
    return look


def by_scrub(world, options, run, folder, before, shard):
    world.start(*options)
    change(shard, os.path.getsize(shard) // 3)
    found = world.cli("verify", run, *world.where)
    test("what verify found is in the list", found[0] == 1 and
         world.listed(*world.where)[0]["verified"]["damages"] > 0, found)
    world.cli("server", "scrub", "start", *world.where)
    wait_until(lambda: is_mended(world, before, folder)() and
               world.status()["mending"]["mended"] == 1, lambda: world.log()[-3000:])
    test("what the scrub finds is mended, too", world.status()["mending"]["mended"] == 1,
         world.status()["mending"])
    test("and the list does not tell any more what verify found before", "verified" not in
         world.listed(*world.where)[0], world.listed(*world.where))
    world.stop()


def killed(world, options, run, folder, before, shard):
    """Between the finding and the end of the repair; the next start sees the note of the
    quarantine."""
    for _ in range(2):
        change(shard, os.path.getsize(shard) // 2)
        world.start(*options, "--tier.rate", "4MiB")
        read(world)
        wait_until(lambda: glob.glob(f"{folder}/quarantine/*") or
                   is_mended(world, before, folder)(), "the note")
        world.process.kill()
        world.process.wait()
        world.start(*options)
        wait_until(is_mended(world, before, folder), lambda: world.log()[-3000:])
        world.stop()
    test("a start mends what the one before had found", contents(before) == before,
         world.log()[-2000:])


def far_by_scrub(world, options, run, folder, before, shard):
    """A far object is damaged, and no client loads it."""
    far = shard.replace(world.store, world.far)
    there = contents([far])
    for offset in samples(far):
        change(far, offset)
        world.start(*options, *SCRUB)
        wait_until(lambda: contents([far]) == there and tier_of(world)["mended"] == 1,
                   lambda: (world.log()[-2000:], tier_of(world), world.status()["far_scrub"]))
        test(f"byte {offset} of a far object: the scrub finds it, and the local copy mends it",
             world.status()["far_scrub"]["damaged"] == 1 and
             not glob.glob(f"{world.far}/{run}/quarantine/*") and
             world.cli("verify", "--store", world.far, run)[0] == 0, world.status()["far_scrub"])
        world.stop()


def without_replace(world):
    """A far tier that puts nothing in the place of another object, as a bucket."""
    options = "--tier.store", f"fault:seed=1:local:{world.far}", *PARTS
    world.start(*options)
    world.save_one(1)
    wait_until(drained(world), "the drain")
    run = world.listed()[0]["run"]
    far = sorted(glob.glob(f"{world.far}/{run}/step-*/shard-*"))[-1]
    there = contents([far])
    world.stop()
    change(far, os.path.getsize(far) // 2)
    world.start(*options, *SCRUB)
    wait_until(lambda: tier_of(world)["mended"] == 1, lambda: (world.log()[-2000:], tier_of(world)))
    test("an object is mended where nothing can be replaced at once",
         contents([far]) == there and world.cli("verify", "--store", world.far, run)[0] == 0,
         world.log()[-2000:])
    world.stop()


def both(world, options, run, folder, before, shard):
    """The source is damaged where the copy is not."""
    far = shard.replace(world.store, world.far)
    change(far, os.path.getsize(far) // 4)
    change(shard, os.path.getsize(shard) // 2)
    damaged = contents([shard])
    world.start(*options)
    read(world)
    wait_until(lambda: "quarantined" in world.log() and world.status()["mending"]["now"] is None,
               lambda: world.log()[-3000:])
    test("a damaged source mends nothing, and replaces nothing",
         contents([shard]) == damaged and not glob.glob(f"{folder}/step-*/*.new") and
         world.status()["mending"]["mended"] == 0, world.status()["mending"])
    world.stop()


def main():
    print(f"# SEED={SEED}")
    world, options = new_world()
    bed = by_loads(world, options)
    by_scrub(world, options, *bed)
    killed(world, options, *bed)
    far_by_scrub(world, options, *bed)
    both(world, options, *bed)
    without_replace(new_world(ckptd="tests/ckptd")[0])
    end()


if __name__ == "__main__":
    main()
