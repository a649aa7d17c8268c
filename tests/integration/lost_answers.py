#!/usr/bin/env python3
"""lost_answers - the answer of each call is lost once, and the call is made again.

Goal: a client without an answer may repeat the call: the operation is performed once, and the
client gets the result that it needs to continue. Method: a real ckptd with TLS behind a relay.
Python's grpcio makes each call through it; the relay withholds the answer, and the connection dies.
Then the same call is made directly. check_node_faults.py loses answers between nodes (Peer, Join,
BeginPart, ReportPart).
"""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lib_tap  # noqa: E402

lib_tap.need("grpc", "google.protobuf")
lib_tap.need_programs("openssl")
import grpc  # noqa: E402
from lib_network import Network  # noqa: E402
from lib_ranks import ELEMENTS, Ranks  # noqa: E402
from lib_relay import Relay  # noqa: E402
from lib_store import PATIENCE  # noqa: E402
from lib_tap import test  # noqa: E402

BUSY = "RESOURCE_EXHAUSTED"
QUIET = 0.3  # seconds without a byte from the server: the answer has reached the relay


class Lossy(Network):
    def __init__(self):
        super().__init__()
        self.serve("--memory.segment_bytes", "1MiB", "--limits.drain_ms", "1",
                   "--retention.trash_s", "3600")
        self.issue("anna", "holdfast://operator/anna")
        self.save(range(1, 8))
        self.direct = Ranks(self, "anna")

    def lose(self, method, **fields):
        """ckptd has answered; no client received it."""
        relay = Relay(self.address)
        ranks = Ranks(self, "anna", relay.address)
        ranks.call("Hello")
        relay.hold("back")
        relay.kept = 0
        call = ranks.begin(method, **fields)
        kept, until = -1, time.monotonic() + PATIENCE
        while kept != relay.kept or kept == 0:
            assert time.monotonic() < until, (method, "was not answered", self.log()[-900:])
            kept = relay.kept
            time.sleep(QUIET)
        assert not call.done(), method
        relay.strand()
        ranks.channel.close()
        relay.close()

    def again(self, method, **fields):
        self.lose(method, **fields)
        return self.direct.call(method, **fields)

    def steps_of(self):
        return sorted(entry.step for entry in self.direct.call("List", run=self.run).checkpoints)


def code_of(call, method, **fields):
    try:
        call(method, **fields)
        return "OK"
    except grpc.RpcError as error:
        return error.code().name


def says(world, method, **fields):
    """The code of the second answer, once the first call, which may outlast QUIET, has ended."""
    said = code_of(world.again, method, **fields)
    while said == BUSY:
        said = code_of(world.direct.call, method, **fields)
    return said


def a_save(world):
    direct = world.direct
    attempt = world.again("OpenAttempt", run="lost", world_size=1, take_over=True).attempt
    test("OpenAttempt: the second answer is a later attempt", attempt == 2, attempt)
    whole = {"name": "w", "dtype": "F32", "shape": [ELEMENTS], "offset": [0], "extent": [ELEMENTS]}
    session = world.again("Describe", run="lost", attempt=attempt, rank=0, world_size=1,
                          slices=[whole]).session
    notes = {"session": session, "notes": bytes(8 + 120 * 24), "clock_ns": 1, "spoke_s": 1}
    world.again("AskSave", run="lost")
    test("Attend: the same requests", world.again("Attend", **notes).saves_asked == 2)
    world.issue("other", "holdfast://trainer/other")
    said = str(Ranks(world, "other").refused("Attend", **notes))
    test("but not for the session of another's run", said.startswith("PERMISSION_DENIED"), said)
    begin = {"session": session, "step": 5, "asked": 9}
    first = world.again("BeginSave", **begin)
    test("BeginSave: the save goes on, with the same image", first.save != 0 and
         direct.call("BeginSave", **begin) == first, first)
    said = str(direct.refused("BeginSave", session=session, step=5, asked=10))
    test("and another number asks for another save", "begin it again, on all ranks" in said, said)
    waited = world.again("WaitSave", run="lost", step=5, attempt=attempt, timeout_ms=10)
    test("WaitSave: the same state", waited.state == 3, waited)
    save = direct.call("BeginSave", session=session, step=6, asked=11).save
    test("AbortSave: done once", says(world, "AbortSave", session=session, save=save,
                                      reason="no more") in ("OK", "NOT_FOUND"))
    test("and the next save begins", direct.call("BeginSave", session=session, step=7,
                                                 asked=12).save > save)


def a_load(world):
    direct = world.direct
    load = world.again("OpenLoad", run=world.run, step=-1, below_step=-1)
    test("OpenLoad: a load of the newest", load.checkpoint.step == 7, load.checkpoint)
    shard = world.again("LoadShard", load=load.load, shard=0)
    test("LoadShard: the same bytes", shard == direct.call("LoadShard", load=load.load, shard=0) and
         shard.bytes > 0, shard)
    test("ReleaseShard: done", says(world, "ReleaseShard", load=load.load, shard=0) == "OK")
    test("CloseLoad: done once", says(world, "CloseLoad", load=load.load) in ("OK", "NOT_FOUND"))
    test("OpenBulk: a ticket", len(world.again("OpenBulk", run=world.run, step=7).ticket) == 16)


def what_looks(world):
    for method, fields in (("Hello", {}), ("List", {"run": world.run}), ("Status", {}),
                           ("Show", {"run": world.run, "step": 7}), ("Rescan", {}),
                           ("History", {"run": world.run}), ("Reload", {}),
                           ("Gc", {}), ("Scrub", {"action": 1})):
        test(f"{method}: answered", says(world, method, **fields) == "OK")
    for method in ("Stop", "AskSave"):
        test(f"{method}: refused as the first time, where no rank is",
             says(world, method, run=world.run) == "NOT_FOUND")
    said = says(world, "ForceAttempt", run=world.run, dry_run=True)
    test("ForceAttempt: refused as the first time, where there are no nodes",
         said == "INVALID_ARGUMENT", said)


def what_changes(world):
    one = {"run": world.run, "step": 1, "attempt": 1}
    test("Pin: pinned", says(world, "Pin", **one, note="mine") in ("OK", "ALREADY_EXISTS") and
         world.direct.call("Show", **one).pinned)
    test("and unpinned once", says(world, "Pin", **one, unpin=True) in ("OK", "NOT_FOUND") and
         not world.direct.call("Show", **one).pinned)
    test("Release: of one that is in no quarantine", says(world, "Release", **one) in (
        "OK", "NOT_FOUND"))
    said = says(world, "Remove", **one)
    test("Remove: that one is gone, and no other", said in ("OK", "NOT_FOUND") and
         world.steps_of() == [2, 3, 4, 5, 6, 7], (said, world.steps_of()))
    test("Undelete: it is back", says(world, "Undelete", run=world.run, step=1) in (
        "OK", "NOT_FOUND", "ALREADY_EXISTS") and world.steps_of() == [1, 2, 3, 4, 5, 6, 7],
         world.steps_of())
    manifest = world.direct.call("Show", **one).manifest_json.encode()
    test("Adopt: of one that is there it is harmless", says(world, "Adopt", manifest=manifest) in (
        "OK", "ALREADY_EXISTS") and world.steps_of() == [1, 2, 3, 4, 5, 6, 7], world.steps_of())
    rules = {"run": world.run, "keep_last": 4, "may_remove_most": True}
    said = says(world, "Prune", **rules)
    test("Prune: the rules are kept, and nothing more goes", said == "OK" and
         world.steps_of() == [4, 5, 6, 7], (said, world.steps_of()))


world = Lossy()
try:
    for part in (a_save, a_load, what_looks, what_changes):
        part(world)
finally:
    world.close()
sys.exit(0 if lib_tap.end() else 1)
