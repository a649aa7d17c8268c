"""rows_nodes.py - the cost of bytes between nodes compared with a bare stream of the same bytes.

`remote_*`: ranks whose node has no ckptd save into another's, over TCP and over TLS 1.3: from the
first rank's begin until the last one may change its state, which is when ckptd holds every byte and
has verified it. `remote_load_*`: they load it again. The reference, bench/stream, moves as many
bytes over as many connections from memory to memory, without a hash, a name or a place in a
checkpoint. `peer_fetch`: ranks load a checkpoint that only another node has from a ckptd with an
empty store, over TLS. `replication`: the second node's copy of each save at the default pace, its
rate and its cost. No rank waits for it: a copy that a rank waits for runs at full speed.
`load_scattered`: ranks of a fourth node load shards from the disks of three. `node_loss`: from kill
-9 of a node, its ckptd and its ranks, to the end of the first new step on another. All go over the
loopback, where no link is the limit: the figures are those of the processors.
"""
import json
import os
import shutil
import socket
import subprocess
import time

from fio import fio_read, shards
from measure import Program, Row, say
from rows_train import RESTART, START, data_110m, seconds_since_epoch, wait_for

MIB, QUICK_MIB, RANKS = 2048, 256, 2
CONNECTIONS_EACH = 4  # of a rank, by default (proto/bulk/bulk.h)
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
        if not os.path.exists(self.path("authority")):
            certify("authority", self.path("authority"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def issue(self, name, uri, *hosts):
        certify("issue", self.path("authority"), self.path(name), uri, *hosts)
        return self.path(name)


def room(mib):
    """Memory for two images and the unused space of segments; two checkpoints on the disk."""
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


class Cluster:
    """Nodes that are peers. Ranks save into the first `savers`, over shared memory."""

    def __init__(self, bench, name, *options, nodes=2, savers=1, mib=0):
        self.bench, self.name, self.options = bench, name, options
        self.mib = mib or (QUICK_MIB if bench.quick else MIB)
        authority = Authority(bench)
        self.addresses = [free_address() for _ in range(nodes)]
        self.bulk = [free_address() for _ in range(nodes)]
        self.keys = [authority.issue(f"n{i + 1}", f"holdfast://node/n{i + 1}", "127.0.0.1")
                     for i in range(nodes)]
        self.processes, self.servers, self.stores = [], [], []
        for i in range(nodes):
            process, server, store = self.start(i)
            self.processes.append(process)
            self.servers.append(server)
            self.stores.append(store)
        self.savers = self.servers[:savers]

    def start(self, i):
        peers = ",".join(f"n{k + 1}@d{k + 1}={address}" for k, address in enumerate(self.addresses)
                         if k != i)
        return self.bench.start_ckptd(
            f"{self.name}-{i}", "--tls.listen", self.addresses[i], "--tls.directory", self.keys[i],
            *room(self.mib), "--nodes.name", f"n{i + 1}", "--nodes.domain", f"d{i + 1}",
            "--nodes.peers", peers, "--tls.bulk", self.bulk[i], "--nodes.look_ms", "200",
            *self.options)

    def restart(self, i):
        """Its memory is empty then."""
        self.bench.end(self.processes[i])
        self.processes[i], _, _ = self.start(i)

    def program(self, *servers, ranks=RANKS):
        return Program(self.bench.program("bench/ranks"), ",".join(servers), self.name, str(ranks),
                       str(self.mib), "rows")

    def knows(self, server):
        """Waits until a node lists the first one's last save."""
        step = self.newest(self.servers[0])
        while self.newest(server) != step:
            time.sleep(0.05)

    def newest(self, server):
        listed = json.loads(self.bench.run(self.bench.program("ckpt-cli"), "list", "--json",
                                           "--server", server))
        return max((entry["step"] for entry in listed), default=0)

    def cpu(self):
        return sum(map(self.bench.cpu_of, self.processes))

    def fetched(self, saver):
        """GiB per second of a load from the other node alone."""
        saver.ask("save")
        self.knows(self.servers[1])
        reader = self.program(self.servers[1])
        answer = reader.ask("load")
        reader.close()
        return self.mib / 1024 / answer["seconds"]

    def is_replicated(self):
        listed = json.loads(self.bench.run(self.bench.program("ckpt-cli"), "list", "--json",
                                           "--server", self.servers[0]))
        newest = max(listed, key=lambda entry: entry["step"])
        return newest["durability"] == "replicated"

    def replicated(self, saver):
        """(GiB per second from the save's begin until it is replicated, CPU seconds a GiB)."""
        begun, before = time.monotonic(), self.cpu()
        saver.ask("save")
        while not self.is_replicated():
            time.sleep(0.05)
        gib = self.mib / 1024
        return gib / (time.monotonic() - begun), (self.cpu() - before) / gib


def row_peer_fetch(bench):
    """ranks load what only another node has, over TLS, beside a bare stream of TLS 1.3"""
    pair = Cluster(bench, "peer_fetch", "--nodes.replicas", "1", "--nodes.rate", "0")
    saver = pair.program(*pair.savers)
    stream = Program(bench.program("bench/stream"), str(pair.mib), "2", pair.keys[0])
    stream.ask("send")
    pair.fetched(saver)
    yield bench.pairs("peer_fetch", "GiB/s", lambda: pair.fetched(saver),
                      lambda: pair.mib / 1024 / stream.ask("send")["seconds"],
                      pairs_max=PAIRS, goal=GOAL,
                      note=f"{pair.mib} MiB from the memory of one node to ranks of another")


def row_replication(bench):
    """a second node's copy of each save, at the default pace"""
    pair = Cluster(bench, "replication")
    saver = pair.program(*pair.savers)
    pair.replicated(saver)
    samples = [pair.replicated(saver) for _ in range(3 if bench.quick else 7)]
    note = f"{pair.mib} MiB; the pace is nodes.rate, 0.25 GiB/s to each peer"
    yield Row("replication", "GiB/s", [rate for rate, _ in samples], note=note)
    yield Row("replication_cpu", "CPU seconds a GiB of both nodes", [cpu for _, cpu in samples],
              note="the save itself, hashes of both ends, TLS and both disks")


def row_load_scattered(bench):
    """a checkpoint whose shards lie on the disks of 3 of 4 nodes, loaded by ranks of the fourth"""
    cluster = Cluster(bench, "scattered", "--nodes.replicas", "1", "--nodes.rate", "0", nodes=4,
                      savers=3, mib=QUICK_MIB)  # four nodes take their memory in each sample
    stream = Program(bench.program("bench/stream"), str(cluster.mib), "6", cluster.keys[0])
    stream.ask("send")
    saver = cluster.program(*cluster.savers, ranks=3)
    files, gib = [], cluster.mib / 1024

    def ours():
        saver.ask("save")
        files[:] = [path for store in cluster.stores[:3] for path in shards(store, "scattered")]
        for i in range(4):
            cluster.restart(i)
        saver.ask("forget")  # connections to those that ended
        cluster.knows(cluster.servers[3])
        reader = cluster.program(cluster.servers[3], ranks=3)
        seconds = reader.ask("load")["seconds"]
        equal = reader.ask("check")["equal"]
        reader.close()
        if not equal:
            raise RuntimeError("what was loaded is not what was saved")
        return gib / seconds

    def reference():
        disk = fio_read(bench, files)["rate"] / 2**30
        return min(disk, gib / stream.ask("send")["seconds"])

    yield bench.pairs("load_scattered", "GiB/s", ours, reference, pairs_max=7, goal=0.8,
                      note=f"{cluster.mib} MiB, 3 shards, nothing in memory; beside the lower of "
                           "fio's rate of these files and a bare stream of TLS 1.3")
    stream.close()


LOSS_MIB = 1344  # of the 110M preset's state
LOSS_PARTS = ("start", "init", "attempt", "load", "weights", "first_step")


def row_node_loss(bench):
    """kill -9 of a node's ckptd and its 2 ranks to the end of the first new step on another"""
    samples = {name: [] for name in ("whole", *LOSS_PARTS)}
    for count in range(1 if bench.quick else 3):
        for name, value in zip(samples, lose_node(bench, f"loss{count}")):
            samples[name].append(value)
    note = "110M, 1.3 GB on all of 3 nodes, from the disk of one; no detection, no requeue"
    for name, values in samples.items():
        yield Row("node_loss" if name == "whole" else f"node_loss_{name}", "s", values,
                  direction="lower", note=note if name == "whole" else None)


def start_again(bench, command, log):
    """As the launcher does when a start ends with 75, until one has made its first step."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        ranks = bench.start(command, log)
        while ranks.poll() is None:
            if START.search(open(log).read()):
                return ranks
            time.sleep(0.02)
        if ranks.returncode != 75:
            break
        time.sleep(0.2)
    raise RuntimeError("no start succeeds: " + open(log).read()[-300:])


def lose_node(bench, run):
    """Seconds from the kill until the first new step has ended, and the parts."""
    cluster = Cluster(bench, run, "--nodes.rate", "0", "--nodes.replicas", "3", nodes=3,
                      mib=LOSS_MIB)
    options = ["--job.run", run, *data_110m(bench), *RESTART, "--comm.ranks", "2",
               "--checkpoint.enable", "--checkpoint.interval", "2", "--training.steps", "1000",
               "--checkpoint.async_mode", "async_with_pinned_mem", "--checkpoint.durability",
               "replicated", "--ckptd.address"]
    log = os.path.join(bench.tmp, run + ".ranks")
    trainer = [bench.program("trainer"), "--job.config_file", "deploy/main-job.toml", *options]
    ranks = bench.start([*trainer, cluster.servers[0]], log)
    wait_for(os.path.join(bench.tmp, f"{run}-1.log"), "a copy from", ranks)
    killed = time.time()
    for process in (ranks, cluster.processes[0]):
        process.kill()
        process.wait()
    again = start_again(bench, [*trainer, cluster.servers[1]], log + "2")
    with open(log + "2") as file:
        at, init, attempt, load, weights, step, first, lived = START.findall(file.read())[0]
    bench.end(again)
    for process in cluster.processes[1:]:
        bench.end(process)
    for store in cluster.stores:
        shutil.rmtree(store)
    if step == "1":
        raise RuntimeError("the ranks started anew instead of from a checkpoint")
    at = seconds_since_epoch(at)
    return [at - killed, at - float(lived) - killed, *map(float, (init, attempt, load, weights,
                                                                  first))]
