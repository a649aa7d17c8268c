#!/usr/bin/env python3
"""trash - what is removed in a bucket comes back, though nothing can be renamed there.

Goal: with tier.trash_s the manifest alone moves, so no load and no list finds the checkpoint, and
its shards stay, also for gc, until the term is over; then all of it is gone. `undelete` brings the
manifest back, byte for byte, and refuses when a shard that it names is missing, and says which.
Method: the real programs on the strict server of the tests.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

from lib_server import Server  # noqa: E402
from lib_store import World, comes_to, wait_until  # noqa: E402
from lib_tap import end, test  # noqa: E402
from tier import drained  # noqa: E402

STORE = "s3://checkpoints/far"
OPTIONS = ("--tier.store", STORE, "--tier.quiet", "false", "--tier.look_ms", "0",
           "--retention.keep_last", "1", "--retention.may_remove_most", "true")
DAY = "--tier.trash_s", "86400"
FIRST = "/step-00000001"


def objects(server, *parts):
    """{key: bytes} of those whose keys have all of these."""
    with server.lock:
        return {key: found.data for key, found in server.objects.items()
                if all(part in key for part in parts)}


def manifests(server):
    """Steps of those in the list, and in the trash."""
    listed, trashed = [], []
    for key in objects(server, "manifest.json"):
        (trashed if "/trash/" in key else listed).append(int(key.split("/step-")[1][:8]))
    return sorted(listed), sorted(trashed)


def goes(world, server):
    """By the tier's rules; what it was before."""
    world.launch(*OPTIONS, *DAY, "--tier.keep_last", "2")
    for step in (1, 2):
        world.save_one(step)
        wait_until(drained(world), world.log)
    world.run = world.listed()[0]["run"]
    before = objects(server, FIRST, "manifest.json"), objects(server, FIRST, "/shard-")
    world.save_one(3)
    wait_until(drained(world), world.log)
    is_there = comes_to(lambda: manifests(server), ([2, 3], [1]))
    test("the manifest alone goes into the trash", is_there and
         objects(server, FIRST, "/shard-") == before[1], (manifests(server), world.log()[-3000:]))
    steps = {entry["step"] for entry in world.listed(*world.where)}
    code, out, err = world.cli("undelete", world.run, "--dry-run", *world.where)
    test("it is in no list, and --dry-run tells of it with its size", steps == {2, 3} and
         code == 0 and "in the far tier" in out and "MiB" in out, (steps, out, err))
    code, out, err = world.cli("gc", *world.where)
    test("gc leaves its shards", objects(server, FIRST, "/shard-") == before[1], (out, err))
    world.stop()
    return before


def comes_back(world, server, before):
    world.launch(*OPTIONS, *DAY)
    name = f"{world.run}@1"
    lost = next(key for key in objects(server, FIRST, "/shard-00001"))
    with server.lock:
        kept = server.objects.pop(lost)
    code, out, err = world.cli("undelete", name, *world.where)
    test("what lacks a shard stays in the trash, and the answer says which", code != 0 and
         manifests(server) == ([2, 3], [1]) and "shard-00001" in out + err, (code, out, err))
    with server.lock:
        server.objects[lost] = kept
    code, out, err = world.cli("undelete", name, *world.where)
    after = objects(server, FIRST, "manifest.json"), objects(server, FIRST, "/shard-")
    test("whole it comes back, byte for byte", code == 0 and after == before,
         (code, out, err, sorted(after[0]), sorted(before[0])))
    code, out, err = world.cli("verify", name, "--store", STORE)
    test("and verifies", code == 0, (out, err))


def ends(world, server):
    code, out, err = world.cli("rm", f"{world.run}@2-a2", "--yes", *world.where)
    test("rm goes there too", code == 0 and manifests(server) == ([1, 3], [2]), (out, err))
    world.stop()
    world.launch(*OPTIONS, "--tier.trash_s", "1")
    test("when its term is over manifest and shards are gone",
         comes_to(lambda: (manifests(server), len(objects(server, "/step-00000002"))),
                  (([1, 3], []), 0)),
         (manifests(server), list(objects(server, "/step-00000002")), world.log()[-3000:]))
    bad = [step for step in (1, 3)
           if world.cli("verify", f"{world.run}@{step}", "--store", STORE)[0] != 0]
    test("and no other", not bad, bad)
    test("no tombstone stays", comes_to(lambda: len(objects(server, "/tombstones/step-")), 0),
         list(objects(server, "/tombstones/")))
    world.stop()


def main():
    server = Server()
    os.environ.update(server.environment)
    world = World()
    try:
        before = goes(world, server)
        comes_back(world, server, before)
        ends(world, server)
    finally:
        world.close()
    test("the server saw nothing wrong", not server.bugs, server.bugs)
    server.close()
    end()


if __name__ == "__main__":
    main()
