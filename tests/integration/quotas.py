#!/usr/bin/env python3
"""quotas - the limits of one identity at a ckptd, and the audit lines of its actions.

Goal: neither of two trainers over TLS takes more saves in work, memory for saves or bytes of the
disk than limits.identity_* allow. A refusal names the identity, the amount, and the setting. Others
are not delayed by it. Calls beyond limits.identity_rate wait. Every commit, removal, pin, take-over
and denial is one line of the log with the identity. Method: a real ckptd with certificates of a
test authority; Python's grpcio makes the calls of ranks, with message types from the server's
description, and ckpt-cli those of operators.
"""

import os
import re
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lib_tap  # noqa: E402

lib_tap.need("grpc", "google.protobuf")
lib_tap.need_programs("openssl")
import grpc  # noqa: E402
from lib_network import Network  # noqa: E402
from lib_ranks import MIB, Ranks  # noqa: E402
from lib_store import PATIENCE  # noqa: E402
from lib_tap import test  # noqa: E402

IMAGE = 5 * MIB  # of ELEMENTS and a header, in segments of 1 MiB
RATE, BURST = 500, 3276  # a tenth of the defaults: the least
CALLS, CALL_COSTS = 270, 16
SMALL = ("--memory.pool_bytes", "64MiB", "--memory.segment_bytes", "1MiB",
         "--limits.drain_ms", "1")


def serve(world, *words):
    world.serve(*SMALL, *words)
    return Ranks(world, "anna"), Ranks(world, "bert")


def saves(world):
    anna, bert = serve(world, "--limits.identity_saves", "2")
    for run in ("a1", "a2"):
        anna.call("BeginSave", session=anna.open(run), step=1)
    third = anna.open("a3")
    said = anna.refused("BeginSave", session=third, step=1)
    test("a third save in work of one certificate is refused", said and "RESOURCE" in said, said)
    test("and told whose it is, how many, and the setting", "holdfast://operator/anna has 2 saves "
         "in progress, and limits.identity_saves = 2" in str(said), said)
    bert.call("BeginSave", session=bert.open("b"), step=1)
    test("another certificate's is not", True)
    anna.open("a1", True)  # ends the save of the attempt before
    test("when one of its saves has ended it may", not anna.refused(
        "BeginSave", session=third, step=1, busy_ms=PATIENCE * 1000))
    world.stop()


def arena(world):
    anna, bert = serve(world, "--limits.identity_arena_bytes", str(2 * IMAGE))
    for run in ("a1", "a2"):
        anna.call("BeginSave", session=anna.open(run), step=1)
    said = anna.refused("BeginSave", session=anna.open("a3"), step=1)
    test("memory for saves beyond that of one certificate is refused", said and "RESOURCE" in said,
         said)
    test("and told whose it is, the bytes, and the setting",
         f"holdfast://operator/anna has {2 * IMAGE} bytes of memory in saves and asks for {IMAGE} "
         f"more, and limits.identity_arena_bytes = {2 * IMAGE}" in str(said), said)
    test("another certificate's is not", not bert.refused("BeginSave", session=bert.open("b"),
                                                          step=1))
    world.stop()
    anna, _ = serve(world, "--limits.identity_arena_bytes", str(IMAGE - 1))
    try:
        anna.open("a4")
        said = None
    except grpc.RpcError as error:
        said = error.details()
    test("ranks that could never save within it are refused at the start", said and
         f"asks for {IMAGE} more, and limits.identity_arena_bytes = {IMAGE - 1}" in said, said)
    world.stop()


def requests(world):
    world.serve(*SMALL, "--limits.identity_rate", str(RATE))
    reader = Ranks(world, "carl")
    begun = time.monotonic()
    for call in [reader.begin("Hello") for _ in range(CALLS)]:
        call.result()
    took = time.monotonic() - begun
    test("calls that cost more than may come at once are answered, and those beyond take as "
         "long as limits.identity_rate says", took >= (CALLS * CALL_COSTS - BURST) / RATE, took)
    world.stop()


class Users(Ranks):
    """Of this user, by the socket of this machine."""

    def __init__(self, world):
        self.channel = grpc.insecure_channel(world.server)


def disk(world):
    world.serve(*SMALL)
    world.save([3])
    used = world.listed()[0]["bytes"]
    world.stop()
    _, bert = serve(world, "--limits.identity_disk_bytes", str(used + 4 * MIB))
    users = Users(world)
    said = users.refused("BeginSave", session=users.open("mine"), step=1)
    test("after a restart a user's checkpoints of another run count, and a save beyond is refused",
         said and f"user {os.getuid()} has {used} bytes of checkpoints and asks for " in said and
         f"more, and limits.identity_disk_bytes = {used + 4 * MIB}" in said, said)
    said = bert.refused("BeginSave", session=bert.open("b"), step=1)
    test("another identity's is not", said is None, said)
    world.stop()


def audit_lines(world, event):
    return [line for line in world.log().split("\n")
            if re.search(rf" (info|warn) audit: {event}", line)]


def audit(world):
    anna, bert = serve(world)
    me = f"user {os.getuid()}, process"
    world.save([3, 4, 5])
    name = f"{world.run}@3-a1"
    commits = audit_lines(world, "commit by")
    test("each commit is one line, with who opened its attempt", len(commits) == 3 and
         all(f"commit by {me}" in line and f"run {world.run}, step {step}, attempt" in line
             for step, line in zip((3, 4, 5), commits)), commits)
    done = world.ask("anna", "pin", name, "--note", "mine")
    pins = audit_lines(world, "pin by")
    test("a pin is one line", len(pins) == 1 and
         f"pin by holdfast://operator/anna: run {world.run}, step 3, attempt 1: mine" in pins[0],
         (done, pins))
    world.ask("anna", "unpin", name)
    done = world.ask("anna", "rm", name, "--yes")
    gone = audit_lines(world, "remove by")
    test("a removal is one line", len(gone) == 1 and
         f"remove by holdfast://operator/anna: run {world.run}, step 3" in gone[0],
         (done, gone))
    done = world.ask("anna", "rm", world.run, "--yes")
    gone = audit_lines(world, "remove by")[1:]
    test("so is that of a whole run", len(gone) == 1 and gone[0].endswith(
        f"remove by holdfast://operator/anna: run {world.run}: all of them"), (done, gone))
    anna.open("taken")
    bert.call("OpenAttempt", run="taken", world_size=1, take_over=True)
    taken = audit_lines(world, "attempt by holdfast://operator/bert: run taken")
    test("a take-over is one line, with both", len(taken) == 1 and
         "takes over from attempt 1 of holdfast://operator/anna" in taken[0], taken)
    said = Ranks(world, "carl").refused("Gc")
    denials = audit_lines(world, "Gc refused to")
    test("a denial is one line, with who asked and why", said and len(denials) == 1 and
         "Gc refused to holdfast://reader/a: " in denials[0], denials)
    world.stop()


def main():
    world = Network()
    try:
        for name, uri in (("anna", "operator/anna"), ("bert", "operator/bert"),
                          ("carl", "reader/a")):
            world.issue(name, f"holdfast://{uri}")
        saves(world)
        arena(world)
        requests(world)
        audit(world)
        disk(world)
    finally:
        world.close()
    lib_tap.end()


main()
