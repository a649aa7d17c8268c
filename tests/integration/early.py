#!/usr/bin/env python3
"""early - shards of a save that are sent to another node before its commit (precommit_copy.c).

Goal: while a rank still copies, written shards are sent to the other node, which lists nothing;
after the commit only the rest is sent. Of an aborted save, or one whose node has died, nothing
stays there, and no memory is held. Where both nodes have a rank, the shards of the second one's
come to the first in the same way. Shards that are not final are not sent, and those that the
manifest does not confirm are sent again. Method: two real ckptd on loopback addresses, ranks of
libckpt in this process that stop before their last tensor, AbortSave, SIGKILL, SIGSTOP. A byte of a
shard that changes while it is fetched. A third node, which has no rank, gets all shards in the same
way. A save is aborted for a rank that ends before it has begun it.
"""

import glob
import os
import re
import signal
import sys
import threading
import time

from lib_nodes import cluster_in, has, scratch, shards
from lib_store import change, take_libckpt, wait_until
from lib_tap import end, need, need_programs, test

need("numpy")
import numpy  # noqa: E402

need_programs("openssl")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
take_libckpt()
sys.path.insert(0, os.path.join(ROOT, "clients/python/src"))
sys.dont_write_bytecode = True
import holdfast  # noqa: E402
from holdfast import _lib, arrays  # noqa: E402

RUN, PARTS, MIB, TENSORS = "early", "parts", 1 << 20, 12
OPTIONS = ("--nodes.look_ms", "200", "--nodes.lost_ms", "5000", "--nodes.rate", "8MiB")


class Rank(holdfast.Client):
    """Saves in two halves: all tensors but one, then that one."""

    def __init__(self, node, run=RUN, rank=0, world_size=1):
        super().__init__(node.server, run, rank, world_size, busy_seconds=10, take_over=True)
        random = numpy.random.default_rng(1)
        self.tensors = {f"r{rank}w{i:02}": random.random(MIB // 4, "float32")
                        for i in range(TENSORS)}
        self.begun = None

    def describe(self):
        self._describe([arrays.part(name, value) for name, value in self.tensors.items()])

    def begin(self, step):
        self.open_save(step)
        self.copy_most()

    def open_save(self, step):
        for tensor in self.tensors.values():
            tensor[0] = step
        self.describe()
        self.begun = _lib.ctypes.c_void_p()
        _lib.check(self._lib.ckpt_save_begin(self._handle, _lib.byref(self.begun), step, b"{}"))

    def copy_most(self):
        for place in range(TENSORS - 1):
            self._lib.ckpt_save_copy(self.begun, self._lib.ckpt_save_order(self._handle, place))

    def copy_rest(self):
        self._lib.ckpt_save_copy(self.begun, self._lib.ckpt_save_order(self._handle, TENSORS - 1))
        _lib.check(self._lib.ckpt_save_end(self.begun))

    def finish(self, step):
        """Seconds between the commit and the copy."""
        self.copy_rest()
        self.wait(step, "local")
        committed = time.monotonic()
        self.wait(step, "replicated")
        return time.monotonic() - committed

    def abort(self):
        self._lib.ckpt_save_abort(self.begun)


def shard_of(node, step, run=RUN, shard=1):
    """Where its file is there; "": it is not."""
    found = glob.glob(os.path.join(node.store, run, f"step-{step:08}-a*", f"shard-{shard:05}-*"))
    return found[0] if found else ""


def come(node, step, run=RUN, shard=1):
    """Bytes of the shard that have come there."""
    path = shard_of(node, step, run, shard)
    if not path:
        return 0
    with open(path, "rb") as file:
        return sum(any(block) for block in iter(lambda: file.read(MIB), b"")) * MIB


def has_directory(node, step, run=RUN):
    return bool(glob.glob(os.path.join(node.store, run, f"step-{step:08}-a*")))


def begin(rank, first, second, step):
    rank.begin(step)
    wait_until(lambda: come(second, step) >= (TENSORS - 2) * MIB, first.said)


def sent_behind(node, step, run=RUN, tier="n2"):
    """Bytes sent after the commit, and in total."""
    found = re.search(rf"{run}, step {step}, attempt \d+ is in the tier {tier}: (\d+) of (\d+) "
                      "bytes sent", node.log())
    return int(found[1]), int(found[2])


def goes_before(rank, first, second):
    begin(rank, first, second, 1)
    test("what is written lies at the other node, which lists nothing",
         not has(second, RUN, 1) and second.listed(*second.where) == [] and
         first.listed(*first.where) == [] and "only after its commit" not in first.log(),
         first.said() + second.said())
    lag = rank.finish(1)
    wait_until(lambda: "is in the tier n2" in first.log(), first.said)
    sent, of = sent_behind(first, 1)
    test("behind the commit the rest alone is sent", 0 < sent <= 3 * MIB and of > TENSORS * MIB,
         (sent, of, first.said()))
    test("the copy is whole", second.all_verify() == [] and
         second.entry(RUN, 1).get("durability") == "replicated", second.said())
    print(f"# {sent} of {of} bytes and {lag:.3f} s behind the commit, at 8 MiB/s")


def given_up(rank, first, second):
    for step in (2, 3):
        begin(rank, first, second, step)
        rank.abort()
        wait_until(lambda step=step: not has_directory(second, step), second.said)
    test("of saves that are given up nothing stays there",
         not has_directory(second, 2) and not has_directory(second, 3), second.said())
    begin(rank, first, second, 3)
    rank.finish(3)
    test("the step is saved again, and copied: no memory is held, no mark in the way",
         second.all_verify() == [] and has(second, RUN, 3), second.said())


def saver_dies(rank, first, second):
    begin(rank, first, second, 5)
    first.kill()
    test("when the saver's ckptd dies nothing of it is listed",
         5 not in [entry["step"] for entry in second.listed(*second.where)], second.said())
    wait_until(lambda: not has_directory(second, 5), second.said)
    test("and what came goes", "which another node did not finish" in second.log(),
         second.said())


class Pair:
    """A rank at each node."""

    def __init__(self, first, second):
        self.nodes = first, second
        self.ranks = [Rank(node, PARTS, i, 2) for i, node in enumerate(self.nodes)]
        attempt = self.ranks[0].start()
        self.ranks[1].start(attempt)
        waits = [threading.Thread(target=rank.describe) for rank in self.ranks]
        for wait in waits:
            wait.start()
        for wait in waits:
            wait.join()

    def begin(self, step):
        for rank in self.ranks:
            rank.begin(step)

    def begin_until_come(self, step):
        self.begin(step)
        wait_until(lambda: come(self.nodes[0], step, PARTS, 2) >= (TENSORS - 2) * MIB,
                   lambda: self.nodes[0].said() + self.nodes[0].log()[-3000:])

    def finish(self, step):
        for rank in self.ranks:
            rank.copy_rest()
        for rank in self.ranks:
            rank.wait(step, "local")
        self.ranks[0].wait(step, "replicated")

    def is_right(self, step):
        """Is the second one's shard the same at both, and is all that they hold whole?"""
        texts = []
        for node in self.nodes:
            with open(shard_of(node, step, PARTS, 2), "rb") as file:
                texts.append(file.read())
        return texts[0] == texts[1] and all(node.all_verify() == [] for node in self.nodes)

    def close(self):
        for rank in self.ranks:
            rank.close()


def comes_before(pair, first, second):
    pair.begin_until_come(1)
    test("what another node's rank has written comes before the commit, and is not listed",
         shards(first, PARTS, 1) == [1, 2] and shards(second, PARTS, 1) == [2] and
         not has(first, PARTS, 1) and not has(second, PARTS, 1) and
         1 not in [entry["step"] for entry in first.listed(*first.where)
                   if entry["run"] == PARTS] and "comes here behind" not in first.log(),
         first.said() + second.said())
    pair.finish(1)
    sent, of = sent_behind(first, 1, PARTS, "local")
    test("behind the commit the rest alone comes", 0 < sent <= 3 * MIB and of > 2 * TENSORS * MIB,
         (sent, of, first.said()))
    test("both have all of it, bit for bit", pair.is_right(1), first.said())
    print(f"# {sent} of {of // 2} bytes came behind the commit")


def comes_again(pair, first, second):
    """The first node fetches a byte that differs from the final one of the shard."""
    pair.ranks[0].begin(2)
    wait_until(lambda: come(first, 2, PARTS, 1) > 0, first.said)
    pair.ranks[1].open_save(2)
    first.process.send_signal(signal.SIGSTOP)
    pair.ranks[1].copy_most()
    wait_until(lambda: come(second, 2, PARTS, 2) >= (TENSORS - 2) * MIB, second.said)
    path = shard_of(second, 2, PARTS, 2)
    change(path, 8 * MIB)
    first.process.send_signal(signal.SIGCONT)
    wait_until(lambda: come(first, 2, PARTS, 2) >= (TENSORS - 2) * MIB, first.said)
    change(path, 8 * MIB)
    pair.finish(2)
    sent, _ = sent_behind(first, 2, PARTS, "local")
    test("what the manifest does not confirm comes again, all of it",
         sent > TENSORS * MIB and pair.is_right(2), (sent, first.said()))


def parts_given_up(pair, first, second):
    pair.begin_until_come(3)
    pair.ranks[1].abort()
    for node in (first, second):
        wait_until(lambda node=node: not has_directory(node, 3, PARTS), node.said)
    pair.ranks[0].abort()
    test("of a save that is given up nothing stays at either node, no mark either",
         not has_directory(first, 3, PARTS) and not has_directory(second, 3, PARTS),
         first.said() + second.said())
    pair.begin_until_come(4)
    pair.finish(4)
    test("the next one comes, bit for bit", pair.is_right(4), first.said())


def member_dies(pair, first, second):
    pair.begin_until_come(5)
    second.kill()
    second.start(*OPTIONS)
    for node in (first, second):
        wait_until(lambda node=node: not has_directory(node, 5, PARTS), node.said)
    steps = {(node.name, entry["step"]) for node in (first, second)
             for entry in node.listed(*node.where) if entry["run"] == PARTS}
    test("a node dies while its shard is fetched: its save alone is lost",
         steps == {(name, step) for name in ("n1", "n2") for step in (1, 2, 4)} and
         first.all_verify() == [] and second.all_verify() == [], (steps, first.said()))


def lead_dies(pair, first, second):
    pair.begin_until_come(6)
    first.kill()
    first.start(*OPTIONS)
    pair.ranks[1].abort()
    said = ""
    try:
        pair.ranks[1].open_save(7)
    except holdfast.HoldfastError as error:
        said = str(error)
    test("while it starts again the other's rank does not hear that its attempt is over",
         "lost the session" in said, said)
    wait_until(lambda: not has_directory(first, 6, PARTS), first.said)
    test("the node that fetches dies: its start removes what came, and the rest is listed",
         has(first, PARTS, 4) and first.all_verify() == [], first.said())


def third_gets_all(first, second, third):
    """It has no rank, and is the only node that can have a copy of both parts."""
    pair = Pair(first, second)
    pair.begin(1)
    for shard in (1, 2):
        wait_until(lambda shard=shard: come(third, 1, PARTS, shard) >= (TENSORS - 2) * MIB,
                   lambda: first.said() + first.log()[-3000:])
    test("what both nodes' ranks have written goes to a node without any before the commit",
         third.listed(*third.where) == [] and not has(first, PARTS, 1) and
         "only after its commit" not in first.log(), first.log()[-3000:])
    pair.finish(1)
    sent, of = sent_behind(first, 1, PARTS, "n3")
    test("behind the commit the rest alone goes, and the copy is whole",
         0 < sent <= 5 * MIB and of > 2 * TENSORS * MIB and third.all_verify() == [] and
         not has(third, PARTS, 1, "places.json") and shards(third, PARTS, 1) == [1, 2],
         (sent, of, third.said()))
    pair.begin(2)
    wait_until(lambda: come(third, 2, PARTS, 2) >= 2 * MIB, first.said)
    pair.ranks[1].abort()
    for node in (first, second, third):
        wait_until(lambda node=node: not has_directory(node, 2, PARTS), node.said)
    pair.close()


def rank_leaves(first, second):
    """A rank at another node ends before it has begun a save."""
    for node in (first, second):
        node.kill()
        node.start(*OPTIONS, "--nodes.silent_ms", "2000")
    pair, said, began = Pair(first, second), "", time.monotonic()
    pair.ranks[1].close()
    pair.ranks[0].begin(3)
    pair.ranks[0].copy_rest()
    try:
        pair.ranks[0].wait(3, "local")
    except holdfast.HoldfastError as error:
        said = str(error)
    took = time.monotonic() - began
    test("its save is given up, not before the time that is set, and names rank and node",
         "rank 1 has not begun it, and node n2" in said and took >= 2, (said, took, first.said()))
    pair.ranks[0].close()


def ranks_on_both(first, second):
    pair = Pair(first, second)
    comes_before(pair, first, second)
    comes_again(pair, first, second)
    parts_given_up(pair, first, second)
    member_dies(pair, first, second)
    pair.close()
    pair = Pair(first, second)
    lead_dies(pair, first, second)
    pair.close()


def main():
    with scratch("ea-") as folder, cluster_in(folder, ("a", "b"), *OPTIONS) as cluster:
        first, second = cluster.nodes
        rank = Rank(first)
        goes_before(rank, first, second)
        given_up(rank, first, second)
        saver_dies(rank, first, second)
        first.start(*OPTIONS)
        ranks_on_both(first, second)
    with scratch("eb-") as folder, cluster_in(folder, ("a", "b", "c"), *OPTIONS) as cluster:
        third_gets_all(*cluster.nodes)
        rank_leaves(*cluster.nodes[:2])
    end()


main()
