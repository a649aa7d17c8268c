"""rows_nodes.py - what bytes between nodes cost beside the barest stream of the same bytes.

`remote_*`: ranks whose node has no ckptd save into another's, over TCP and over TLS 1.3: from the
first rank's begin until the last one may change its state, which is when ckptd holds every byte and
has proven it. `remote_load_*`: they load it again. The reference, bench/stream, moves as many bytes
over as many connections from memory to memory, without a hash, a name or a place in a checkpoint.
`peer_fetch`: ranks load from a ckptd that has nothing what another node's has, over TLS.
`replication`: the second node's copy of each save at the default pace, its rate and its cost.
All go over the loopback, where no link is the limit: the figures are those of the processors.
"""
import json
import os
import socket
import subprocess
import time

from measure import Program, Row, say

MIB, QUICK_MIB, RANKS = 2048, 256, 2
CONNECTIONS_EACH = 4  # of a rank, unless it is told (proto/bulk/bulk.h)
SEGMENT_MIB = 32
GOAL, PAIRS = 0.85, 15
CERTIFICATES = os.path.join(os.path.dirname(__file__), "../../deploy/certificates")


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def certify(*words):
    subprocess.run([CERTIFICATES, *words], check=True, capture_output=True)


class Authority:
    def __init__(self, bench):
        self.folder = os.path.join(bench.tmp, "tls")
        certify("authority", self.path("authority"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def issue(self, name, uri, *hosts):
        certify("issue", self.path("authority"), self.path(name), uri, *hosts)
        return self.path(name)


def room(mib):
    """Memory for two images and what segments leave unused; two checkpoints on the disk."""
    segments = mib * 5 // 2 // SEGMENT_MIB + 1
    return ("--memory.pool_bytes", f"{segments * SEGMENT_MIB}MiB",
            "--memory.segment_bytes", f"{SEGMENT_MIB}MiB", "--retention.keep_last", "2")


class Remote:
    """A ckptd that is reached over TCP alone, ranks that save into it, and the bare stream."""

    def __init__(self, bench, name, is_plain):
        self.mib = QUICK_MIB if bench.quick else MIB
        authority = Authority(bench)
        node = authority.issue("node", "holdfast://node/n1", "127.0.0.1")
        address, bulk = free_address(), free_address()
        bench.start_ckptd(name, "--tls.listen", address, "--tls.bulk", bulk, "--tls.directory",
                          node, *room(self.mib), *(["--tls.bulk_plain"] if is_plain else []))
        os.environ["HOLDFAST_TLS"] = authority.issue("rank", "holdfast://operator/bench")
        self.ranks = Program(bench.program("bench/ranks"), address, name, str(RANKS), str(self.mib),
                             "rows")
        self.stream = Program(bench.program("bench/stream"), str(self.mib),
                              str(RANKS * CONNECTIONS_EACH), *([] if is_plain else [node]))
        self.ranks.ask("save")  # opens the attempt; both sides' memory is touched
        self.stream.ask("send")
        self.cpu = {"ours": [], "theirs": []}

    def rate(self, who, seconds, answer):
        self.cpu[who].append(answer["cpu"] / self.mib * 1024)
        return self.mib / 1024 / seconds

    def save(self):
        answer = self.ranks.ask("save")
        return self.rate("ours", answer["copied"], answer)

    def load(self):
        answer = self.ranks.ask("load")
        return self.rate("ours", answer["seconds"], answer)

    def send(self):
        answer = self.stream.ask("send")
        return self.rate("theirs", answer["seconds"], answer)

    def say_cpu(self):
        for who, samples in self.cpu.items():
            median = sorted(samples)[len(samples) // 2]
            say(f"    {who}: {median:.2f} CPU seconds a GiB of the sender")
            samples.clear()

    def rows(self, bench, way):
        note = f"{self.mib} MiB, {RANKS} ranks of {CONNECTIONS_EACH} connections each, loopback"
        for name, ours in (("save", self.save), ("load", self.load)):
            yield bench.pairs(f"remote_{name}_{way}", "GiB/s", ours, self.send,
                              pairs_max=PAIRS, goal=GOAL, note=note)
            self.say_cpu()
        self.ranks.close()
        self.stream.close()


def row_remote_tcp(bench):
    """ranks on another machine over plain TCP, saves and loads, beside the bare stream"""
    yield from Remote(bench, "tcp", True).rows(bench, "tcp")


def row_remote_tls(bench):
    """likewise over TLS 1.3, beside a bare stream of TLS 1.3"""
    yield from Remote(bench, "tls", False).rows(bench, "tls")


class Pair:
    """Two nodes that know each other. Ranks save into the first one over shared memory."""

    def __init__(self, bench, name, *options):
        self.bench, self.name = bench, name
        self.mib = QUICK_MIB if bench.quick else MIB
        authority, addresses = Authority(bench), [free_address(), free_address()]
        self.processes, self.servers = [], []
        for i, address in enumerate(addresses):
            tls = authority.issue(f"n{i + 1}", f"holdfast://node/n{i + 1}", "127.0.0.1")
            other = 1 - i
            process, server, _ = bench.start_ckptd(
                f"{name}-{i}", "--tls.listen", address, "--tls.directory", tls, *room(self.mib),
                "--nodes.name", f"n{i + 1}", "--nodes.domain", f"d{i + 1}",
                "--nodes.peers", f"n{other + 1}@d{other + 1}={addresses[other]}",
                "--tls.bulk", free_address(), "--nodes.look_ms", "200", *options)
            self.processes.append(process)
            self.servers.append(server)
        self.saver = self.program(self.servers[0])
        self.tls = authority.path("n1")

    def program(self, server):
        return Program(self.bench.program("bench/ranks"), server, self.name, str(RANKS),
                       str(self.mib), "rows")

    def knows(self, server):
        """Waits until a node lists what the other one has saved last."""
        step = self.newest(self.servers[0])
        while self.newest(server) != step:
            time.sleep(0.05)

    def newest(self, server):
        listed = json.loads(self.bench.run(self.bench.program("ckpt-cli"), "list", "--json",
                                           "--server", server))
        return max((entry["step"] for entry in listed), default=0)

    def cpu(self):
        return sum(map(self.bench.cpu_of, self.processes))

    def fetched(self):
        """GiB per second of a load of what only the other node has."""
        self.saver.ask("save")
        self.knows(self.servers[1])
        reader = self.program(self.servers[1])
        answer = reader.ask("load")
        reader.close()
        return self.mib / 1024 / answer["seconds"]

    def replicated(self):
        """(GiB per second from the commit until both nodes have it, CPU seconds a GiB). A copy
        begins while blocks become ready: some of it is there at the commit."""
        self.saver.ask("save")
        before = self.cpu()
        seconds = self.saver.ask("copied")["seconds"]
        return self.mib / 1024 / seconds, (self.cpu() - before) / self.mib * 1024


def row_peer_fetch(bench):
    """ranks load what only another node has, over TLS, beside a bare stream of TLS 1.3"""
    pair = Pair(bench, "peer_fetch", "--nodes.replicas", "1", "--nodes.rate", "0")
    stream = Program(bench.program("bench/stream"), str(pair.mib), "2", pair.tls)
    stream.ask("send")
    pair.fetched()
    yield bench.pairs("peer_fetch", "GiB/s", pair.fetched,
                      lambda: pair.mib / 1024 / stream.ask("send")["seconds"],
                      pairs_max=PAIRS, goal=GOAL,
                      note=f"{pair.mib} MiB from the memory of one node to ranks of another")


def row_replication(bench):
    """a second node's copy of each save, at the default pace"""
    pair = Pair(bench, "replication")
    pair.replicated()
    samples = [pair.replicated() for _ in range(3 if bench.quick else 7)]
    note = f"{pair.mib} MiB; the pace is nodes.rate, 0.25 GiB/s to each peer"
    yield Row("replication", "GiB/s", [rate for rate, _ in samples], note=note)
    yield Row("replication_cpu", "CPU seconds a GiB of both nodes", [cpu for _, cpu in samples],
              note="hashes of both ends, TLS and the other node's disk")
