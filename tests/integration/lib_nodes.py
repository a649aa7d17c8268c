"""lib_nodes - a small cluster: several ckptd on loopback addresses, each with a store, a
certificate and peers. A node can be killed, or lost for good with its disk. Runs have ranks on
several nodes.
"""

import contextlib
import glob
import os
import shutil
import signal
import socket
import subprocess
import tempfile

import lib_train
from lib_network import tls_channel
from lib_store import World, change, wait_until

MPI = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
PUBLISH, REMOVE = 7, 10  # PeerOp of ckpt.proto
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def certificates(*words):
    done = subprocess.run([os.path.join(ROOT, "deploy/certificates"), *words], text=True,
                          capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def free_port(host):
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


class Node(World):
    """nodes: all of the cluster; set before the first start. via: where this node finds another,
    by its name, when that is not its own address. port: of its calls; the bulk plane has the
    next."""

    def __init__(self, name, domain, host, authority, port=None, store=None):
        super().__init__(store)
        self.name, self.domain, self.nodes, self.via = name, domain, [], {}
        self.address = f"{host}:{port or free_port(host)}"
        self.bulk = f"{host}:{port + 1 if port else free_port(host)}"
        self.is_lost, self.before = False, ()
        certificates("issue", authority, os.path.join(self.folder, "tls"),
                     f"holdfast://node/{name}", host)

    def spawn(self, *options, **popen):
        peers = ",".join(f"{node.name}@{node.domain}={self.via.get(node.name, node.address)}"
                         for node in self.nodes if node is not self)
        super().spawn("--tls.listen", self.address, "--tls.directory",
                      os.path.join(self.folder, "tls"), "--nodes.name", self.name,
                      "--nodes.domain", self.domain, "--nodes.peers", peers,
                      "--tier.part_bytes", "1MiB", "--tier.quiet", "false",
                      "--tier.retry_ms", "100", "--tier.look_ms", "0",
                      "--tls.bulk", self.bulk, "--nodes.wait_ms", "6000", *options,
                      **{**popen, "before": self.before})

    def start(self, *options):
        self.launch(*options)

    def wait_until_it_answers(self):
        wait_until(lambda: self.cli("health", *self.where)[0] in (0, 1), self.log)

    def wait_until_it_reaches(self, *others):
        """A start of a run asks most of the nodes, for nodes.wait_ms at most."""
        wait_until(lambda: {node.name for node in others} <= {
            peer["name"] for peer in self.status()["nodes"]["peers"]
            if peer["links"]["control"]["rtt_seconds"] is not None}, self.said)

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def lose(self):
        """Lost for good: the processes and the disk of the node."""
        self.kill()
        shutil.rmtree(self.store)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.is_lost = True

    def close(self):
        if not self.is_lost:
            super().close()

    def said(self):
        """For a test that fails."""
        return self.cli("status", *self.where)[1] + self.log()

    def entry(self, run, step):
        found = [entry for entry in self.listed(*self.where)
                 if (entry["run"], entry["step"]) == (run, step)]
        return found[0] if found else {}


class Cluster:
    def __init__(self, folder, domains):
        """One node per domain named: n1, n2, ... on 127.0.0.1, .2, ..."""
        authority = os.path.join(folder, "authority")
        certificates("authority", authority)
        self.nodes = [Node(f"n{i + 1}", domain, f"127.0.0.{i + 1}", authority)
                      for i, domain in enumerate(domains)]
        for node in self.nodes:
            node.nodes = self.nodes

    def start(self, *options):
        for node in self.nodes:
            node.spawn(*options)
        for node in self.nodes:
            node.wait_until_it_answers()

    def close(self):
        for node in self.nodes:
            node.close()


class Run:
    """The trainer with two ranks at each of the nodes; its losses continue from start to start."""

    def __init__(self, folder, name, steps):
        self.folder, self.name, self.steps, self.process = folder, name, steps, None
        self.losses_at = os.path.join(folder, name + ".loss")
        self.log = os.path.join(folder, name + ".log")

    def start(self, nodes, *options, ranks=2):
        words = []
        for node in nodes:
            words += [":"] if words else []
            words += ["-n", str(ranks)] + lib_train.command(
                self.folder, node.server, self.name, "--training.steps", self.steps,
                "--checkpoint.interval", "1", "--checkpoint.when_busy", "wait",
                "--comm.backend", "mpi", "--metrics.loss_file", self.losses_at, *options)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(MPI + words, stdout=log, stderr=log)

    def end(self):
        return self.process.wait(200)

    def said(self):
        with open(self.log, errors="replace") as log:
            return log.read()[-6000:]

    def losses(self):
        with open(self.losses_at) as file:
            return {int(line.split()[0]): line for line in file}

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """mpirun ends the ranks first."""
        self.process.terminate()
        self.process.wait(100)


def shards(node, run, step):
    return sorted(int(os.path.basename(path)[6:11]) for path in glob.glob(
        os.path.join(node.store, run, f"step-{step:08d}-a*", "shard-*")))


def has(node, run, step, name="manifest.json"):
    return bool(glob.glob(os.path.join(node.store, run, f"step-{step:08d}-a*", name)))


def damage_and_scrub(node, run, step):
    """Changes a byte of a shard on its disk; waits until the scrub has repaired it."""
    shard = sorted(glob.glob(os.path.join(node.store, run, f"step-{step:08d}-a*", "shard-*")))[-1]
    with open(shard, "rb") as file:
        before = file.read()
    change(shard, len(before) // 2)
    node.cli("server", "scrub", "start", *node.where)

    def is_whole():
        with open(shard, "rb") as file:
            same = file.read() == before
        said = node.status()
        return same and said["mending"]["mended"] == 1

    wait_until(is_whole, node.said)


def field(number, data):
    """A field of a message: at most 2 MiB."""
    size, length = len(data), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


def refusal(node, asks, operation, key, data=b""):
    """A node's error for such a request of another; "": it succeeded."""
    import grpc
    with tls_channel(os.path.join(asks.folder, "tls"), node.address) as channel:
        try:
            channel.unary_unary("/holdfast.v1.Checkpoint/Peer")(
                bytes([8, operation]) + field(2, key.encode()) + field(6, data), timeout=30)
        except grpc.RpcError as error:
            return error.details()
    return ""


def scratch(prefix):
    """A folder that is removed at the end; its name is short, as a socket's path is."""
    return tempfile.TemporaryDirectory(prefix=prefix, dir=os.environ.get("TMPDIR", "/var/tmp"))


@contextlib.contextmanager
def cluster_in(folder, domains, *options):
    """A Cluster that was started with these options of ckptd."""
    cluster = Cluster(folder, domains)
    cluster.start(*options)
    try:
        yield cluster
    finally:
        cluster.close()
