#!/usr/bin/env python3
"""node_left - a rank at another node that ends before it has begun a save.

Goal: the save is given up within the time that the settings name, and says which rank of which node
it lacked; the ranks of a new attempt save again. Method: two real ckptd on loopback addresses, a
rank at each through the package holdfast, SIGKILL.
"""

import os
import subprocess
import sys
import time

from lib_nodes import cluster_in, scratch
from lib_store import take_libckpt
from lib_tap import end, need, test

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SILENT_S, PATIENCE_S = 2, 30
need("numpy")
import numpy  # noqa: E402

sys.path.insert(0, os.path.join(ROOT, "clients/python/src"))
take_libckpt()
import holdfast  # noqa: E402


def piece(rank):
    rows = numpy.full((1, 1 << 16), rank, numpy.float32)
    return {"w": holdfast.Slice(rows, (2, 1 << 16), (rank, 0))}


def follower(server, attempt):
    """Rank 1: saves step 1, and is killed."""
    with holdfast.Client(server, run="left", rank=1, world_size=2) as client:
        client.start(int(attempt))
        client.save(1, piece(1)).wait()
        print("saved", flush=True)
        time.sleep(600)


def begin(first, second):
    """Both ranks have saved step 1; rank 0, and the process of rank 1."""
    client = holdfast.Client(first.server, run="left", rank=0, world_size=2)
    attempt = client.start()
    other = subprocess.Popen([sys.executable, os.path.abspath(__file__), second.server,
                              str(attempt)], stdout=subprocess.PIPE, text=True)
    client.save(1, piece(0)).wait()
    assert other.stdout.readline() == "saved\n"
    return client, other


def left(first, second):
    client, other = begin(first, second)
    other.kill()
    other.wait()
    began = time.monotonic()
    said = ""
    try:
        client.save(2, piece(0)).wait(timeout=PATIENCE_S)
    except holdfast.HoldfastError as error:
        said = str(error)
    took = time.monotonic() - began
    test("a save whose rank at another node has ended is given up, and names rank and node",
         "rank 1 has not begun it, and node n2" in said, (said, took, first.said()))
    test("not before the time that is set, and soon behind it", SILENT_S <= took < PATIENCE_S / 2,
         took)
    client.close()
    client, other = begin(first, second)
    level = first.entry("left", 1).get("durability")
    test("the next attempt saves", level == "local", (level, first.said()))
    client.close()
    other.kill()
    other.wait()


def main():
    if len(sys.argv) == 3:
        follower(*sys.argv[1:])
        return
    with scratch("nl-") as folder, cluster_in(
            folder, ("a", "b"), "--nodes.silent_ms", str(SILENT_S * 1000)) as cluster:
        left(*cluster.nodes)
    end()


main()
