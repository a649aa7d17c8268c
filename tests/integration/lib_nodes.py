"""lib_nodes - a small cluster: several ckptd on loopback addresses, each with a store, a
certificate and peers; and what may happen to them: killed, or away for good with all they had.
"""

import os
import shutil
import signal
import socket
import subprocess
import time

from lib_store import PATIENCE, World

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
    """nodes: all of the cluster; set before the first start."""

    def __init__(self, name, domain, host, authority):
        super().__init__()
        self.name, self.domain, self.nodes = name, domain, []
        self.address = f"{host}:{free_port(host)}"
        self.is_lost = False
        certificates("issue", authority, os.path.join(self.folder, "tls"),
                     f"holdfast://node/{name}", host)

    def spawn(self, *options, **popen):
        peers = ",".join(f"{node.name}@{node.domain}={node.address}" for node in self.nodes
                         if node is not self)
        super().spawn("--tls.listen", self.address, "--tls.directory",
                      os.path.join(self.folder, "tls"), "--nodes.name", self.name,
                      "--nodes.domain", self.domain, "--nodes.peers", peers,
                      "--tier.part_bytes", "1MiB", "--tier.quiet", "false",
                      "--tier.retry_ms", "100", "--tier.look_ms", "0",
                      "--nodes.wait_ms", "6000", *options, **popen)

    def start(self, *options):
        self.launch(*options)

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def lose(self):
        """Away for good: the processes and all that the node had."""
        self.kill()
        shutil.rmtree(self.folder)
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
            wait_until(lambda node=node: node.cli("health", *node.where)[0] in (0, 1), node.log)

    def close(self):
        for node in self.nodes:
            node.close()


def wait_until(is_so, what):
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.02)
