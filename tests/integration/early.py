#!/usr/bin/env python3
"""early - what of a save goes to another node before it is committed (ckptd/drain/early.c).

Goal: while a rank still copies, what is written lies at the other node, which lists nothing; at the
commit the rest alone is sent; of a save that is given up, or whose node has died, nothing stays
there, and no memory is held; another node that ends meanwhile costs the save nothing. Method: two
real ckptd on loopback addresses, a rank of libckpt in this process that stops before its last
tensor, AbortSave, SIGKILL.
"""

import glob
import os
import re
import shutil
import sys
import time

from lib_nodes import cluster_in, has, scratch, wait_until
from lib_store import BUILD, is_sanitized
from lib_tap import end, need, test

need("numpy")
import numpy  # noqa: E402

if not shutil.which("openssl") or is_sanitized("libckpt.so.1"):
    print("openssl is missing, or a library with a sanitizer cannot be loaded into Python")
    sys.exit(77)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.environ["HOLDFAST_LIBCKPT"] = os.path.join(BUILD, "libckpt.so.1")
sys.path.insert(0, os.path.join(ROOT, "clients/python/src"))
sys.dont_write_bytecode = True
import holdfast  # noqa: E402
from holdfast import _lib, arrays  # noqa: E402

RUN, MIB, TENSORS = "early", 1 << 20, 12
OPTIONS = ("--nodes.look_ms", "200", "--nodes.lost_ms", "5000", "--nodes.rate", "8MiB")


class Rank(holdfast.Client):
    """Saves in two halves: all tensors but one, then that one."""

    def __init__(self, node):
        super().__init__(node.server, RUN, busy_seconds=10)
        random = numpy.random.default_rng(1)
        self.tensors = {f"w{i:02}": random.random(MIB // 4, "float32") for i in range(TENSORS)}
        self.begun = None

    def begin(self, step):
        for tensor in self.tensors.values():
            tensor[0] = step
        parts = [arrays.part(name, value) for name, value in self.tensors.items()]
        self._describe(parts)
        self.begun = _lib.ctypes.c_void_p()
        _lib.check(self._lib.ckpt_save_begin(self._handle, _lib.byref(self.begun), step, b"{}"))
        for place in range(TENSORS - 1):
            self._lib.ckpt_save_copy(self.begun, self._lib.ckpt_save_order(self._handle, place))

    def finish(self, step):
        """Seconds between the commit and the copy."""
        self._lib.ckpt_save_copy(self.begun, self._lib.ckpt_save_order(self._handle, TENSORS - 1))
        _lib.check(self._lib.ckpt_save_end(self.begun))
        self.wait(step, "local")
        committed = time.monotonic()
        self.wait(step, "replicated")
        return time.monotonic() - committed

    def abort(self):
        self._lib.ckpt_save_abort(self.begun)


def come(node, step):
    """Bytes of the shard that have come there."""
    found = glob.glob(os.path.join(node.store, RUN, f"step-{step:08}-a*", "shard-*"))
    if not found:
        return 0
    with open(found[0], "rb") as file:
        return sum(any(block) for block in iter(lambda: file.read(MIB), b"")) * MIB


def has_directory(node, step):
    return bool(glob.glob(os.path.join(node.store, RUN, f"step-{step:08}-a*")))


def begin(rank, first, second, step):
    rank.begin(step)
    wait_until(lambda: come(second, step) >= (TENSORS - 2) * MIB, first.said)


def sent_behind(node, step):
    """Bytes that were sent behind the commit, and of all."""
    found = re.search(rf"step {step}, attempt \d+ is in the tier n2: (\d+) of (\d+) bytes sent",
                      node.log())
    return int(found[1]), int(found[2])


def goes_before(rank, first, second):
    begin(rank, first, second, 1)
    time.sleep(0.5)  # in which what is not written would go, too
    test("what is written lies at the other node, which lists nothing",
         not has(second, RUN, 1) and second.listed(*second.where) == [] and
         first.listed(*first.where) == [] and "behind its commit alone" not in first.log(),
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


def other_ends(rank, first, second):
    begin(rank, first, second, 4)
    second.kill()
    second.start(*OPTIONS)
    test("a node that ends meanwhile removes what came", not has(second, RUN, 4), second.said())
    rank.finish(4)
    test("and has the copy after the commit", has(second, RUN, 4) and second.all_verify() == [],
         second.said())


def saver_dies(rank, first, second):
    begin(rank, first, second, 5)
    first.kill()
    test("when the saver's ckptd dies nothing of it is listed",
         5 not in [entry["step"] for entry in second.listed(*second.where)], second.said())
    wait_until(lambda: not has_directory(second, 5), second.said)
    test("and what came goes", "which another node has not finished" in second.log(),
         second.said())


def main():
    with scratch("ea-") as folder, cluster_in(folder, ("a", "b"), *OPTIONS) as cluster:
        first, second = cluster.nodes
        rank = Rank(first)
        goes_before(rank, first, second)
        given_up(rank, first, second)
        other_ends(rank, first, second)
        saver_dies(rank, first, second)
    end()


main()
