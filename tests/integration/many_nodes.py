#!/usr/bin/env python3
"""many_nodes - a ckptd with many peers, of which nearly none answers.

Goal: the cost of a peer is bounded: threads and buffers are shared by all, so their number does not
grow with that of the peers, and a silent peer costs little memory. Silent peers take no more than
their share of the threads: a save gets its copy at a node that answers. Method: three real ckptd.
The first has SILENT further peers, before the others in its settings, at a socket that accepts no
connection: a call to one waits until its deadline.
"""

import os
import socket
import types

from lib_nodes import Cluster, scratch
from lib_store import is_sanitized, wait_until
from lib_tap import end, need, test

need("grpc", "google.protobuf")

SILENT = 61
THREADS_MAX = 130  # 18 without peers; 32 workers and 32 for transfers; 8 for errands; gRPC's own
RESIDENT_MAX = 0.7  # MB for each: a gRPC channel, and its calls under way
ADDRESSES_MAX = 1.6  # GB, for 16 buffers of 16 MiB, and the stacks of the threads
# A heap of malloc takes 64 MiB of addresses: how many there are depends on which threads met.
os.environ["GLIBC_TUNABLES"] = "glibc.malloc.arena_max=4"


def silent_nodes(port):
    return [types.SimpleNamespace(name=f"s{i}", domain=f"away-{i}", address=f"127.0.0.1:{port}")
            for i in range(SILENT)]


def costs(node):
    """Threads, resident MB of private memory (the arena is filled in the background), GB of address
    space."""
    with open(f"/proc/{node.process.pid}/status") as file:
        said = dict(line.split(":", 1) for line in file)
    return (int(said["Threads"]), int(said["RssAnon"].split()[0]) / 1024,
            int(said["VmSize"].split()[0]) / (1 << 20))


def connections(node, port):
    """Of its own that are open to that port of this machine."""
    own = set()
    for number in os.listdir(f"/proc/{node.process.pid}/fd"):
        try:
            own.add(os.readlink(f"/proc/{node.process.pid}/fd/{number}"))
        except FileNotFoundError:
            pass
    lines = []
    for name in ("tcp", "tcp6"):  # gRPC's sockets are of both
        with open(f"/proc/{node.process.pid}/net/{name}") as file:
            lines += [line.split() for line in file][1:]
    return sum(int(line[2].split(":")[1], 16) == port and line[3] == "01"
               and f"socket:[{line[9]}]" in own for line in lines)


def ranks_of(node):
    import grpc
    from lib_ranks import Ranks

    return Ranks(types.SimpleNamespace(channel=lambda *_: grpc.insecure_channel(node.where[1])), "")


def follows(first, second):
    """A rank of the first node joins an attempt whose file only the second has."""
    attempt = ranks_of(second).call("OpenAttempt", run="other", world_size=2).attempt
    whole = {"name": "w", "dtype": "F32", "shape": [1 << 20], "offset": [0], "extent": [1 << 20]}
    described = ranks_of(first).begin("Describe", run="other", attempt=attempt, rank=1,
                                      world_size=2, slices=[whole])
    wait_until(lambda: "is coordinated by node" in first.log() or described.done(), first.said)
    return "is coordinated by node" in first.log()


def asked(node):
    """Peers that it has found silent."""
    return node.log().count("cannot be read")


def measured(cluster):
    options = ("--nodes.attempts", "local", "--nodes.look_ms", "1000", "--tier.part_bytes", "16MiB")
    first, second, third = cluster.nodes
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen(1)
        first.nodes = []
        first.start(*options)
        alone = costs(first)
        first.kill()
        first.nodes = silent_nodes(hole.getsockname()[1]) + cluster.nodes
        for node in (first, second, third):
            node.start(*options)
        first.save_one(1)
        run = first.listed(*first.where)[0]["run"]
        wait_until(lambda: first.entry(run, 1).get("durability") == "replicated", first.said)
        tiers = first.entry(run, 1).get("tiers")
        test("a save gets its copy at a node that answers",
             tiers in ("local,n2", "local,n3", "local,n2,n3"),  # both: n2 had not answered at first
             (tiers, first.said()))
        wait_until(lambda: asked(first) >= SILENT, first.said)
        test("a node finds who coordinates an attempt behind peers that do not answer",
             follows(first, second), first.said())
        now = costs(first)
        calls = connections(first, int(second.address.rsplit(":", 1)[1]))
    test("threads do not follow the number of peers", now[0] <= THREADS_MAX, (alone, now))
    test("nor do buffers", now[2] - alone[2] < ADDRESSES_MAX, (alone, now))
    test("a silent peer costs little memory",
         now[1] - alone[1] < 10 + SILENT * RESIDENT_MAX or is_sanitized(), (alone, now))
    test("all calls to a peer go by one connection", calls == 1, calls)
    print(f"# {SILENT} silent peers: {now[0]} threads ({alone[0]} without peers), "
          f"{now[1]:.0f} MB resident ({alone[1]:.0f}), {now[2]:.2f} GB of addresses "
          f"({alone[2]:.2f})")


def main():
    with scratch("mn-") as folder:
        cluster = Cluster(folder, ["a", "b", "c"])
        try:
            measured(cluster)
        finally:
            cluster.close()
    end()


main()
