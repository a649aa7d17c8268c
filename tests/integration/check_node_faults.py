#!/usr/bin/env python3
"""node_faults - four nodes with two ranks each, and faults in random order.

Goal, with replication 2: any process is killed with SIGKILL or stopped for three seconds, any node
is lost for good with its disk. Any link is cut one way or both, or loses and reorders packets; any
disk is full. The run continues with the losses of an undisturbed run, bit for bit. Each start uses
the newest checkpoint whose level, acknowledged before the fault, covers the fault: "local" every
fault except a lost node, "replicated" that one. The remaining copies then reach their level again.
Method: real ckptd, each in a network namespace with a separate disk, where the system permits both.
A switch in user space with delays (lib_switch.py) connects them. Otherwise they have loopback
addresses, whose links stay good, and no disk is filled. mpirun starts the ranks again like a
launcher: without the nodes that are lost. One run goes through each fault once: a start of eight
ranks costs more than a fault. SEED= repeats a story, SCENARIOS= bounds it, FAULTS= names some.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time

import lib_train
from lib_hosts import Disk, Refused, own_mounts
from lib_nodes import Node, Run, certificates
from lib_switch import Switch, bad
from lib_store import wait_until
from lib_tap import end, need_programs, skip, test

SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))
SCENARIOS = int(os.environ.get("SCENARIOS", 8))
STEPS, STARTS_MAX, SECONDS = 500, 5, 3
DELAY_S, LOSS, LATE = 0.002, 0.1, 0.2
SLOW = "--debug.slow_copy_us", "50000"  # a fault is to hit a save
PAUSE = 0.3  # seconds between two looks: each is a ckpt-cli, 40 ms of a CPU
DOMAINS = "a", "b", "c", "d"
CALLS = 7070  # a port; the bulk plane has the next
OPTIONS = "--nodes.silent_ms", "2000", "--retention.keep_last", "4"

need_programs("openssl", "mpirun")


class Cluster:
    """A lost node comes back as a new node of that name, with an empty disk. Node i is at port i +
    1 of the switch."""

    def __init__(self, folder, switch, has_disks):
        self.folder, self.switch, self.has_disks = folder, switch, has_disks
        self.authority = os.path.join(folder, "authority")
        certificates("authority", self.authority)
        self.hosts = [switch.host(i + 1) if switch else None for i in range(len(DOMAINS))]
        self.disks = [None] * len(DOMAINS)
        self.nodes = []
        for i in range(len(DOMAINS)):
            self.nodes.append(self.make(i))

    def make(self, i):
        host, store, before = f"127.0.0.{i + 1}", None, ()
        if self.hosts[i]:
            host, before = self.hosts[i].address, self.hosts[i].before
        if self.has_disks:
            self.disks[i] = Disk(tempfile.mkdtemp(prefix="disk-", dir=self.folder), 400, 4000)
            store = os.path.join(self.disks[i].path, "store")
        node = Node(f"n{i + 1}", DOMAINS[i], host, self.authority, CALLS, store=store)
        node.before, node.nodes = before, self.nodes
        return node

    def start(self, nodes):
        for node in nodes:
            node.spawn(*OPTIONS)
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
        self.start([self.nodes[i]])

    def close(self):
        for node in self.nodes:
            node.close()
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


# Each fault: (cluster, run, random) -> its description, and the number of the lost node.

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


def cut_link(cluster, run, chance):
    """One way, or both."""
    a, b = chance.sample(range(len(DOMAINS)), 2)
    ways = cluster.switch.between(a + 1, b + 1)[:chance.randrange(1, 3)]
    with bad(ways, is_cut=True):
        time.sleep(SECONDS)
    how = "both ways" if len(ways) == 2 else "one way"
    return f"the link from n{a + 1} to n{b + 1} is cut {how} for {SECONDS} s", None


def cut_off(cluster, run, chance):
    i = chance.randrange(len(DOMAINS))
    with bad(cluster.switch.of(i + 1), is_cut=True):
        time.sleep(SECONDS)
    return f"no packet comes to n{i + 1} or from there for {SECONDS} s", None


def lose_packets(cluster, run, chance):
    """Until some packets were lost, some overtaken, and a checkpoint was replicated all the
    same."""
    i = chance.randrange(len(DOMAINS))
    ways = cluster.switch.of(i + 1)

    def counts():
        return [sum(getattr(way, name) for way in ways) for name in ("frames", "lost", "overtaken")]

    def replicated():
        return newest(cluster.nodes[:1], run.name, "replicated")

    before, step, begun = counts(), replicated(), time.monotonic()
    with bad(ways, loss=LOSS, late=LATE):
        time.sleep(SECONDS)
        wait_until(lambda: min(map(int.__sub__, counts(), before)) > 0 and
                   (replicated() > step or run.process.poll() is not None), run.said, PAUSE)
    frames, lost, overtaken = map(int.__sub__, counts(), before)
    took = time.monotonic() - begun
    return (f"the links of n{i + 1} lose {lost} and reorder {overtaken} of {frames} frames in "
            f"{took:.1f} s, and step {replicated()} is replicated after {step}"), None


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


LINKS = [cut_link, cut_off, lose_packets]
FAULTS = [kill_ckptd, kill_rank, lose_node, *LINKS, fill_disk, stop_process]


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
    if count > 0 and floor > 0:  # a newer checkpoint may be a save of the killed ranks
        wait_until(lambda: len(starts(run)) > before or run.process.poll() is not None, run.said,
                   PAUSE)
    later = starts(run)[before:]
    logs = [(node.name, node.log()[-int(os.environ.get("LOG", 1500)):]) for node in left]
    test(f"seed {SEED}, {number}: {what}: {count} starts, each from step {floor}, the newest that "
         f"was {level}, or later", all(step >= floor for step in later) and
         (count == 0 or floor == 0 or later != []), (later, run.said()[-3000:], logs))
    if gone is not None:
        cluster.replace(gone)


def story(cluster, folder, name, numbers, faults, chance):
    """A run that continues through all of that, a fault each time. Returns its losses."""
    run = Run(folder, name, STEPS)
    run.start(cluster.nodes, *SLOW)
    for number, fault in zip(numbers, chance.sample(faults, len(faults))):
        begun = time.monotonic()
        scenario(cluster, run, number, fault, chance)
        print(f"# {time.monotonic() - begun:.1f} s", flush=True)
    run.stop()
    return run.losses()


def untouched(cluster, folder, step):
    """The losses of an undisturbed run, until that step."""
    run = Run(folder, "whole", STEPS)
    run.start(cluster.nodes[:1], "--checkpoint.interval", str(STEPS))
    wait_until(lambda: os.path.exists(run.losses_at) and step in run.losses() or
               run.process.poll() is not None, run.said, PAUSE)
    run.stop()
    return run.losses()


def own(what):
    """The result, and why it differs."""
    try:
        return what(), ""
    except Refused as reason:
        return None, str(reason)


def main():
    print(f"# SEED={SEED}", flush=True)
    no_disks, (switch, no_hosts) = own(own_mounts)[1], own(lambda: Switch(SEED, DELAY_S))
    faults = [fault for fault in FAULTS if not (fault is fill_disk and no_disks) and
              not (fault in LINKS and no_hosts) and
              fault.__name__ in os.environ.get("FAULTS", fault.__name__)]
    for names, reason in ((["a disk is full"], no_disks),
                          (["nodes are network namespaces", "a link is cut, one way or both",
                            "a node is cut off", "links lose and reorder packets"], no_hosts)):
        if reason:
            skip(names, reason)
    folder = tempfile.mkdtemp(prefix="fa-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    chance = random.Random(SEED)
    lib_train.make_tokens(folder, lib_train.prose())
    cluster = Cluster(folder, switch, not no_disks)
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
        if switch:
            test("a copy of each goes through the switch", switch.bytes() > sum(copied) > 0,
                 (switch.bytes(), copied))
    finally:
        cluster.close()
        if switch:
            switch.close()
        shutil.rmtree(folder, ignore_errors=True)
    end()


main()
