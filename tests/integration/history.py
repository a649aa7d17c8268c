#!/usr/bin/env python3
"""history - the journal of a run, and the scrub as an operator starts and pauses it.

Goal: ckptd, and ckpt-cli on the directory, list in order who opened an attempt, committed, left,
pinned, unpinned and removed, and when, across a restart, and within the journal's bound. Method:
the real programs; a journal that is full is written by hand.
"""

import glob
import json
import os
import time

from lib_store import World, comes, comes_to
from lib_tap import end, test

BOUND = 64 << 10


def events(world, *where):
    code, out, err = world.cli("server", "history", world.run, *where, "--json")
    assert code == 0, err
    return json.loads(out)


def named(found):
    return [(e["event"], e.get("step")) for e in found]


def told(world):
    world.launch()
    world.save([1, 2, 3, 4])
    world.cli("pin", f"{world.run}@1", "--note", "the best", *world.where)
    world.cli("unpin", f"{world.run}@1", *world.where)
    world.cli("prune", world.run, "--keep-last", 3, *world.where)
    served = events(world, *world.where)
    want = [event for step in (1, 2, 3, 4)
            for event in (("attempt", None), ("commit", step), ("end", None))]
    want += [("pin", 1), ("unpin", 1), ("remove", 1)]
    test("attempts, commits, ends, pins and removals are told, in order", named(served) == want,
         served)
    test("with the user and process that asked for each", all(
        e["by"].startswith("rank " if e["event"] == "end" else f"user {os.getuid()}, process ")
        for e in served), served)
    test("a later attempt tells from whom it took over",
         "takes over from attempt 1 of user" in served[3]["detail"], served[3])
    test("and a pin its note", served[12]["detail"] == "the best", served[12])
    now = time.strftime("%Y-%m-%dT%H", time.gmtime())
    test("and the time of each", all(e["time"][:11] == now[:11] for e in served), served)
    world.stop()
    alone = events(world, "--store", world.store)
    test("an end of ckptd leaves all of it in the directory", alone == served, (alone, served))
    text = world.cli("server", "history", world.run, "--store", world.store)[1]
    test("a person reads it as a table", text.split("\n")[0].split() == ["TIME", "EVENT", "STEP",
                                                                        "BY"], text)


def bounded(world):
    folder = os.path.join(world.store, world.run, "history")
    journal = max(glob.glob(os.path.join(folder, "*")))
    os.chmod(journal, 0o600)
    line = json.dumps({"time": "t", "event": "old", "by": "b", "detail": "x" * 100}) + "\n"
    with open(journal, "w") as file:
        file.write(line * (BOUND // len(line)))
    world.launch()
    world.save_one(5)
    world.stop()
    journal = sorted(glob.glob(os.path.join(folder, "*")))
    found = events(world, "--store", world.store)
    test("a journal that is full loses its oldest events for new ones", len(journal) == 2 and
         os.path.getsize(journal[1]) <= BOUND and
         named(found)[-2:] == [("commit", 5), ("end", None)] and
         named(found)[0] == ("old", None), (journal, found[-3:]))


def scrubbed(world):
    def doing():
        return json.loads(world.cli("server", "scrub", "progress", *world.where, "--json")[1])

    def passes():
        return doing()["passes"]

    world.launch("--scrub.rate", "1GiB")  # which would begin in a day
    world.cli("server", "scrub", "pause", *world.where)
    test("a scrub can be paused", doing()["doing"] == "paused", doing())
    code, out, err = world.cli("server", "scrub", "start", world.run, *world.where)
    test("and started at once", code == 0 and comes_to(passes, 1), (out, err, doing()))
    world.cli("server", "scrub", "start", *world.where)
    test("again, also before its period is over", comes_to(passes, 2), doing())
    world.stop()
    world.launch("--scrub.rate", "4MiB")  # a block in 0.25 s
    world.cli("server", "scrub", "start", *world.where)
    comes(lambda: doing()["bytes_read"] > 0)
    world.cli("server", "scrub", "pause", *world.where)
    world.save_one(6)  # the block under way has been read by then
    before = doing()
    world.save_one(7)
    after = doing()
    test("a pause in the middle of a pass reads no more, and tells how far it is",
         before["bytes_read"] == after["bytes_read"] > 0 and after["doing"] == "paused" and
         after["run"] == world.run and after["pass_bytes"] > 0, (before, after))
    test("an unknown action is a slip", world.cli("server", "scrub", "stop", *world.where)[0] == 2)
    world.stop()


def main():
    world = World()
    try:
        told(world)
        bounded(world)
        scrubbed(world)
    finally:
        world.close()
    end()


main()
