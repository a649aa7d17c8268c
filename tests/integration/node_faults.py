#!/usr/bin/env python3
"""node_faults - four nodes with two ranks each, and what goes wrong, in random order.

Goal, with replication 2: whatever process is killed with SIGKILL or stopped for three seconds,
whatever node goes away for good with all it had, whatever link is cut one way or both, whatever
disk is full: the run goes on with the losses of one that was never touched, bit for bit, and each
start from the newest checkpoint whose level, as acknowledged before the fault, covers it: "local"
every fault but a lost node, "replicated" that one. What is left then reaches its level again.
Method: real ckptd, each in a network namespace on a disk of its own where the system permits both
(else on loopback addresses, and no disk is filled). Each reaches each other one at an address of
its own, where relays with delays and resets of their own (lib_relay.py) pass on the calls, and the
bytes of the bulk plane. mpirun starts the ranks again like a launcher: without the nodes that are
lost. One run goes through each fault once: a start of eight ranks costs more than a fault. SEED=
repeats a story, SCENARIOS= bounds it, FAULTS= names some.
"""

import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import lib_train
from lib_hosts import Disk, Host, Refused, add_address, own_mounts, own_network
from lib_nodes import Node, Run, certificates, wait_until
from lib_relay import Relay
from lib_tap import end, skip, test

SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))
SCENARIOS = int(os.environ.get("SCENARIOS", 8))
STEPS, STARTS_MAX, SECONDS = 500, 5, 3
SLOW = "--debug.slow_copy_us", "50000"  # a fault is to hit a save
PAUSE = 0.3  # seconds between two looks: each is a ckpt-cli, 40 ms of a CPU
DOMAINS = "a", "b", "c", "d"
CALLS, BULK = 7070, 7071  # ports, as lib_nodes.py has them
OPTIONS = "--nodes.silent_ms", "2000", "--retention.keep_last", "4"

if not shutil.which("openssl") or not shutil.which("mpirun"):
    print("openssl or mpirun is missing")
    sys.exit(77)


class Cluster:
    """Who is lost comes back as a new node of that name, with nothing."""

    def __init__(self, folder, chance, has_hosts, has_disks):
        self.folder, self.chance = folder, chance
        self.authority = os.path.join(folder, "authority")
        certificates("authority", self.authority)
        self.hosts = [Host(i + 1) if has_hosts else None for i in range(len(DOMAINS))]
        self.disks = [None] * len(DOMAINS)
        self.has_disks = has_disks
        self.relays, self.nodes, self.relayed_before = {}, [], 0
        for pair in itertools.permutations(range(len(DOMAINS)), 2):
            if has_hosts:
                add_address(self.way(*pair))
        for i in range(len(DOMAINS)):
            self.nodes.append(self.make(i))
        for i in range(len(DOMAINS)):
            self.connect(i)

    def way(self, i, j):
        """Where node i finds node j."""
        return f"10.77.0.{100 + 10 * i + j}" if self.hosts[i] else f"127.0.{i + 1}.{100 + j}"

    def make(self, i):
        host, store, before = f"127.0.0.{i + 1}", None, ()
        if self.hosts[i]:
            host, before = self.hosts[i].address, self.hosts[i].before
        if self.has_disks:
            self.disks[i] = Disk(tempfile.mkdtemp(prefix="disk-", dir=self.folder), 400, 4000)
            store = os.path.join(self.disks[i].path, "store")
        ways = [self.way(j, i) for j in range(len(DOMAINS)) if j != i]
        node = Node(f"n{i + 1}", DOMAINS[i], host, self.authority, CALLS, ways, store)
        node.before = before
        return node

    def connect(self, i):
        node = self.nodes[i]
        node.nodes = self.nodes
        for j, other in enumerate(self.nodes):
            if other is not node:
                self.relays[node.name, other.name] = [
                    Relay(to, self.way(i, j), self.chance.randrange(1 << 30), 0.002, 0.0005, port)
                    for to, port in ((other.address, CALLS), (other.bulk, BULK))]
                node.via[other.name] = f"{self.way(i, j)}:{CALLS}"

    def start(self, nodes):
        for node in nodes:
            node.spawn(*OPTIONS, "--tls.bulk_advertise", f"0.0.0.0:{BULK}")
        for node in nodes:
            wait_until(lambda node=node: node.cli("health", *node.where)[0] in (0, 1), node.log)

    def lose(self, i):
        node = self.nodes[i]
        if self.has_disks:
            node.kill()
            shutil.rmtree(node.store)
            self.disks[i].close()
            os.makedirs(node.store, exist_ok=True)
        node.lose()

    def replace(self, i):
        self.nodes[i] = self.make(i)
        for pair in [pair for pair in self.relays if pair[0] == self.nodes[i].name]:
            self.close_relays(pair)
        self.connect(i)
        for node in self.nodes:
            node.nodes = self.nodes
        self.start([self.nodes[i]])

    def relayed(self):
        """Bytes of the bulk plane."""
        return self.relayed_before + sum(bulk.passed for _, bulk in self.relays.values())

    def close_relays(self, pair):
        relays = self.relays.pop(pair)
        self.relayed_before += relays[1].passed
        for relay in relays:
            relay.close()

    def close(self):
        for node in self.nodes:
            node.close()
        for pair in list(self.relays):
            self.close_relays(pair)
        for one in self.disks + self.hosts:
            if one:
                one.close()


def ranks_of(run, node=None):
    """The processes of the trainer's ranks; of one node's."""
    listed = subprocess.run(["pgrep", "-P", str(run.process.pid)], text=True, capture_output=True,
                            check=False).stdout.split()
    found = []
    for pid in map(int, listed):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if node is None or node.server.encode() in file.read():
                    found.append(pid)
        except OSError:
            pass  # it has ended
    return found


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


# Each fault: (cluster, run, chance) -> what was done, and the number of the node that is gone.

def kill_ckptd(cluster, run, chance):
    node = chance.choice(cluster.nodes)
    node.kill()
    time.sleep(chance.random())
    cluster.start([node])
    return f"kill -9 of {node.name}'s ckptd", None


def kill_rank(cluster, run, chance):
    pids = ranks_of(run)
    send(chance.sample(pids, min(1, len(pids))), signal.SIGKILL)
    return "kill -9 of a rank", None


def lose_node(cluster, run, chance):
    i = chance.randrange(len(DOMAINS))
    pids = ranks_of(run, cluster.nodes[i])
    cluster.lose(i)
    send(pids, signal.SIGKILL)
    return f"n{i + 1} is away for good", i


def cut_link(cluster, run, chance, *ways):
    a, b = chance.sample(cluster.nodes, 2)
    there, other_way = cluster.relays[a.name, b.name], {"out": "back", "back": "out"}
    for relay in there:
        relay.hold(*ways)
    for relay in cluster.relays[b.name, a.name]:
        relay.hold(*[other_way[way] for way in ways])
    time.sleep(SECONDS)
    for relay in there + cluster.relays[b.name, a.name]:
        relay.go_on()
    return f"the link {a.name}-{b.name} is cut {' and '.join(ways)} for {SECONDS} s", None


def cut_both_ways(cluster, run, chance):
    return cut_link(cluster, run, chance, "out", "back")


def cut_one_way(cluster, run, chance):
    return cut_link(cluster, run, chance, "out")


def cut_off(cluster, run, chance):
    i = chance.randrange(len(DOMAINS))
    cluster.hosts[i].set_link("down")
    time.sleep(SECONDS)
    cluster.hosts[i].set_link("up")
    return f"no packet comes to n{i + 1} for {SECONDS} s", None


def fill_disk(cluster, run, chance):
    i = chance.randrange(len(DOMAINS))
    cluster.disks[i].fill()
    time.sleep(SECONDS)
    cluster.disks[i].free()
    return f"the disk of n{i + 1} is full for {SECONDS} s", None


def stop_process(cluster, run, chance):
    pids = ranks_of(run) + [node.process.pid for node in cluster.nodes]
    pid = chance.choice(pids)
    send([pid], signal.SIGSTOP)
    time.sleep(SECONDS)
    send([pid], signal.SIGCONT)
    return f"{'a ckptd' if pid in pids[-len(DOMAINS):] else 'a rank'} stands for {SECONDS} s", None


FAULTS = [kill_ckptd, kill_rank, lose_node, cut_both_ways, cut_one_way, cut_off, fill_disk,
          stop_process]


def newest(nodes, run, level):
    """The newest step that any node lists with that level; 0: none."""
    levels = ("local", "replicated") if level == "local" else ("replicated",)
    steps = [0]
    for node in nodes:
        code, out, _ = node.cli("list", "--json", *node.where)
        if code in (0, 1):
            steps += [entry["step"] for entry in json.loads(out)
                      if entry["run"] == run and entry["durability"] in levels]
    return max(steps)


def starts(run):
    """The steps that its starts went on from, as the trainer said."""
    with open(run.log, errors="replace") as log:
        return [int(step) for step in re.findall(r"loaded step (\d+)", log.read())]


def advance(run, nodes, step):
    """Until that step is replicated. How often the run was started for it, like a launcher does."""
    count = 0

    def has_come():
        return newest(nodes[:1], run.name, "replicated") >= step

    while not has_come():
        if run.process.poll() is not None:
            assert count < STARTS_MAX, run.said()
            run.start(nodes, *SLOW)
            count += 1
        wait_until(lambda: has_come() or run.process.poll() is not None, run.said, PAUSE)
    return count


def scenario(cluster, run, number, fault, chance):
    first = cluster.nodes[:1]
    advance(run, cluster.nodes, newest(first, run.name, "replicated") + chance.randrange(1, 3))
    time.sleep(chance.random() * 0.3)
    level = "replicated" if fault is lose_node else "local"
    floor, before = newest(first, run.name, level), len(starts(run))
    what, gone = fault(cluster, run, chance)
    if chance.random() < 0.5:
        run.kill()
    left = [node for i, node in enumerate(cluster.nodes) if i != gone]
    count = advance(run, left, newest(left, run.name, "local") + 1)
    later = starts(run)[before:]
    logs = [(node.name, node.log()[-int(os.environ.get("LOG", 1500)):]) for node in left]
    test(f"seed {SEED}, {number}: {what}: {count} starts, each from step {floor}, the newest that "
         f"was {level}, or later", all(step >= floor for step in later) and
         (count == 0 or floor == 0 or later != []), (later, run.said()[-3000:], logs))
    if gone is not None:
        cluster.replace(gone)


def story(cluster, folder, name, numbers, faults, chance):
    """A run that goes on through all of that, a fault each time. Its losses."""
    run = Run(folder, name, STEPS)
    run.start(cluster.nodes, *SLOW)
    for number, fault in zip(numbers, chance.sample(faults, len(faults))):
        begun = time.monotonic()
        scenario(cluster, run, number, fault, chance)
        print(f"# {time.monotonic() - begun:.1f} s", flush=True)
    run.stop()
    return run.losses()


def untouched(cluster, folder, step):
    """The losses of a run that nothing befalls, until that step."""
    run = Run(folder, "whole", STEPS)
    run.start(cluster.nodes[:1], "--checkpoint.interval", str(STEPS))
    wait_until(lambda: os.path.exists(run.losses_at) and step in run.losses() or
               run.process.poll() is not None, run.said, PAUSE)
    run.stop()
    return run.losses()


def own(what):
    try:
        what()
        return ""
    except Refused as reason:
        return str(reason)


def main():
    print(f"# SEED={SEED}", flush=True)
    no_disks, no_hosts = own(own_mounts), own(own_network)
    faults = [fault for fault in FAULTS if not (fault is fill_disk and no_disks) and
              not (fault is cut_off and no_hosts) and
              fault.__name__ in os.environ.get("FAULTS", fault.__name__)]
    for names, reason in ((["a disk is full"], no_disks), (["nodes are network namespaces"],
                                                            no_hosts)):
        if reason:
            skip(names, reason)
    folder = tempfile.mkdtemp(prefix="fa-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    chance = random.Random(SEED)
    lib_train.make_tokens(folder, lib_train.prose())
    cluster = Cluster(folder, chance, not no_hosts, not no_disks)
    try:
        cluster.start(cluster.nodes)
        losses = [story(cluster, folder, f"s{number}",
                        range(number, min(number + len(faults), SCENARIOS + 1)), faults, chance)
                  for number in range(1, SCENARIOS + 1, len(faults))]
        expected = untouched(cluster, folder, max(step for story in losses for step in story))
        wrong = [(step, line, expected.get(step)) for story in losses
                 for step, line in story.items() if expected.get(step) != line]
        test("the losses of each run are those of one that was never touched, bit for bit",
             wrong == [] and min(map(len, losses)) > 0, wrong[:10])
        copied = [entry["bytes"] for entry in cluster.nodes[0].listed(*cluster.nodes[0].where)
                  if entry["durability"] == "replicated"]
        test("a copy of each goes over the bulk plane, through the relays",
             cluster.relayed() > sum(copied) > 0, (cluster.relayed(), copied))
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)
    end()


main()
