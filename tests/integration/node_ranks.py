#!/usr/bin/env python3
"""node_ranks - the ranks of one attempt on two nodes, each with its own ckptd.

Goal: ranks save through the ckptd of their own node: each node's store holds the shards of its
ranks and the manifest, and is whole by itself and for the tools. kill -9 of a node's ckptd, of
ranks, or of both, loses no acknowledged checkpoint, and a new start resumes with the losses of an
undisturbed run, bit for bit. This holds also with the ranks of one node alone, where the other only
answers, or where a third node has a copy. A tool at either node reads the other's files. A returned
node removes or completes its parts of a save as the coordinator decides. Where most of the nodes
are lost, a start needs an operator's word or the far tier. Method: mpirun starts two ranks per node
on loopback addresses, real ckptd, SIGKILL.
"""

import glob
import json
import os
import re
import shutil
import subprocess
import tempfile

import lib_train
from lib_nodes import Cluster, Run, certificates, has, shards
from lib_relay import Relay
from lib_store import CLI, PATIENCE, make_tier, wait_until
from lib_tap import end, need_programs, test

STEPS = 8
SLOW_STEPS = 4  # over a slow link
ALONE = "--nodes.replicas", "1", "--nodes.silent_ms", "2000"  # no copies
SOON = "--nodes.wait_ms", "1000"  # for lost nodes

need_programs("openssl", "mpirun")


def whole(folder, cluster):
    first, second, _ = cluster.nodes
    run = Run(folder, "whole", STEPS)
    run.start((first, second))
    twice = []
    while run.process.poll() is None:  # a list reads the peers, during commits, too
        for node in (first, second):
            listed = [(entry["run"], entry["step"]) for entry in node.listed(*node.where)]
            twice += listed if len(set(listed)) < len(listed) else []
    code = run.end()
    test("two ranks on each of two nodes train and save", code == 0,
         (code, run.said(), first.log()[-3000:], second.log()[-3000:]))
    held = [shards(node, "whole", STEPS) for node in (first, second)]
    test("each node holds the shards of its ranks", held == [[1, 2], [3, 4]], held)
    test("and the manifest", has(first, "whole", STEPS) and has(second, "whole", STEPS))
    entries = [node.entry("whole", STEPS) for node in (first, second)]
    test("both list it as whole", all(entry.get("durability") == "local" and
                                      not entry.get("damage") for entry in entries), entries)
    logs = first.log() + second.log()
    test("listed in the midst of a commit, none is there twice, and none has vanished",
         not twice and "has vanished" not in logs, (twice, logs[-3000:]))
    return run.losses()


def tools(folder, cluster):
    """A reader asks either node for a checkpoint of which each has a part."""
    tls, files = os.path.join(folder, "reader"), []
    certificates("issue", os.path.join(folder, "authority"), tls, "holdfast://reader")
    for node in cluster.nodes[:2]:
        path = os.path.join(folder, node.name + ".safetensors")
        done = subprocess.run([CLI, "export", f"whole@{STEPS}", "--output", path, "--server",
                               node.address], capture_output=True, text=True, timeout=PATIENCE,
                              env={**os.environ, "HOLDFAST_TLS": tls})
        test(f"a tool reads at {node.name} the shards that the other node has, too",
             done.returncode == 0, done.stderr)
        with open(path, "rb") as file:
            files.append(file.read())
    test("and the same bytes at both", files[0] == files[1] and len(files[0]) > 1 << 10)
    parts = [run for node in cluster.nodes[:2] for run in node.status()["runs"]
             if run["run"] == "whole"]
    test("the status of each says which half of the bytes its ranks saved", len(parts) == 2 and all(
        0.9 < 2 * part["newest_bytes_here"] / part["newest_bytes"] <= 1 for part in parts), parts)


def resumed(folder, cluster, expected):
    """All ranks are killed, then a node's ckptd, too."""
    first, second, _ = cluster.nodes
    run = Run(folder, "r", STEPS)
    run.start((first, second), "--debug.pause_at_step", 4)
    wait_until(lambda: has(second, "r", 3) and has(first, "r", 3), run.said)
    run.kill()
    second.kill()
    second.start(*ALONE)
    run.start((first, second), "--debug.pause_at_step", 6)
    wait_until(lambda: has(second, "r", 5) and has(first, "r", 5), run.said)
    test("ranks and a ckptd are killed: a new start goes on from the newest checkpoint",
         "newest checkpoint: step 3" in first.log(), first.log()[-2000:])
    run.kill()
    run.start((first,), "--debug.pause_at_step", 8)
    wait_until(lambda: has(first, "r", 7), run.said)
    held = shards(first, "r", 7)
    test("the ranks of one node resume alone, with the other's shards over the network",
         held == [1, 2] and not has(second, "r", 7), (held, run.said()))
    run.kill()
    run.start((second, first))
    code = run.end()
    test("then both again, coordinated by the other node", code == 0 and
         shards(second, "r", STEPS) == [1, 2] and has(first, "r", STEPS),
         (code, run.said(), second.log()[-2000:]))
    test("all losses are those of the run that was never touched",
         run.losses() == expected, (run.losses(), expected))


def away(folder, cluster):
    """A node's ckptd dies in a save; the other waits for it no longer than configured."""
    first, second, _ = cluster.nodes
    run = Run(folder, "d", STEPS)
    run.start((first, second), "--debug.pause_at_step", 4)
    wait_until(lambda: has(second, "d", 3) and has(first, "d", 3), run.said)
    run.kill()
    for node in (first, second):
        node.kill()
    first.start(*ALONE, *SOON)
    run.start((first,))
    code = run.end()
    said = run.said() + first.log()
    test("shards on a node that is gone are missed by its name", code != 0 and
         "lies on node n2, which does not answer" in said, (code, said[-3000:]))
    second.start(*ALONE)
    run.start((first, second))
    test("it comes back, and the run goes on", run.end() == 0, run.said())


def peer_of(node, other):
    """A node's status about another."""
    peers = node.status()["nodes"]["peers"]
    return next(peer for peer in peers if peer["name"] == other.name)


def slow(folder, cluster):
    """On such a link a rank begins its next save before its node's report on the end of the last
    one arrives: this must not count as leaving."""
    first, second, _ = cluster.nodes
    relay = Relay(first.address, delay_s=0.3)
    second.via[first.name] = relay.address
    for node in (first, second):
        node.kill()
        node.start("--nodes.replicas", "1")  # a busy machine is silent for longer than the link
    run = Run(folder, "s", SLOW_STEPS)
    run.start((first, second))
    seen = []

    def shows_save():
        seen.append(peer_of(first, second)["told"])
        return run.process.poll() is not None or [
            save for save in (seen[-1] or {"saves": []})["saves"] if save["run"] == "s"]

    wait_until(shows_save, run.said)
    test("status of one node shows a save in work on the other, and the memory it takes",
         run.process.poll() is None and seen[-1]["pool"]["segments_used"] > 0, seen[-1:])
    code = run.end()
    steps = [entry["step"] for entry in first.listed(*first.where) if entry["run"] == "s"]
    test("saves whose end is told late are not taken for left",
         code == 0 and sorted(steps) == list(range(1, SLOW_STEPS + 1)),
         (code, steps, run.said(), first.log()[-3000:]))
    taken = [sum(map(float, re.findall(r"(?:staging|sync|names|manifest) ([0-9.]+)", line))) -
             float(line.split(" bytes in ")[1].split()[0]) for line in first.log().splitlines()
             if " run s, " in line and " committed: " in line]
    test("the parts of what they took are the whole",
         len(taken) == SLOW_STEPS and max(map(abs, taken)) < 0.01, (taken, first.log()[-3000:]))
    second.via = {}
    for node in (first, second):
        node.kill()
        node.start(*ALONE)
    relay.close()


def mark(store, step, nonce, coordinator):
    """As the part of a save that n1 coordinates leaves it."""
    folder = os.path.join(store, "whole", f"step-{step:08d}-a0001")
    with open(os.path.join(folder, "unfinished"), "w") as file:
        file.write(f'{{"format":"holdfast-part","version":1,"run":"whole","step":{step},'
                   f'"attempt":1,"nonce":"{nonce}","coordinator":"{coordinator}"}}\n')
    for name in ("manifest.json", "places.json"):
        if os.path.exists(os.path.join(folder, name)):
            os.unlink(os.path.join(folder, name))
    return folder


def returned(cluster):
    """A node that comes back finds parts of a save that was committed, and of one that was not."""
    first, second, _ = cluster.nodes
    second.kill()
    old = glob.glob(os.path.join(second.store, "whole", f"step-{STEPS:08d}-a0001"))[0]
    with open(os.path.join(old, "manifest.json")) as file:
        nonce = json.load(file)["nonce"]
    with open(os.path.join(old, "places.json")) as file:
        places = json.load(file)
    shutil.copytree(old, old.replace(f"{STEPS:08d}", f"{STEPS + 1:08d}"))
    mark(second.store, STEPS, nonce, "n1")
    over = mark(second.store, STEPS + 1, "0" * 32, "n1")
    first.kill()
    second.start(*ALONE)
    test("without its coordinator nothing of a part is removed", shards(second, "whole", STEPS) ==
         shards(second, "whole", STEPS + 1) == [3, 4] and not has(second, "whole", STEPS))
    name = f"whole@{STEPS}-a1"
    listed = second.cli("list", "whole", *second.where)[1]
    code, _, said = second.cli("rm", name, "--yes", *second.where)
    test("they are in doubt, and rm refuses", code == 74 and listed.count("IN DOUBT: node n1") == 2
         and "wait for that node" in said and os.path.isdir(old), (code, said, listed))
    second.stop()
    code, _, said = second.cli("rm", name, "--yes", "--store", second.store)
    test("also on the directory", code == 74 and "start that ckptd" in said and os.path.isdir(old),
         (code, said))
    code, _, said = second.cli("rm", name, "--force", "--dry-run", "--store", second.store)
    test("unless it is forced", code == 0, (code, said))
    second.start(*ALONE)
    first.start(*ALONE)
    wait_until(lambda: has(second, "whole", STEPS) and not os.path.exists(over), second.said)
    with open(os.path.join(old, "places.json")) as file:
        test("the coordinator's manifest comes back, and where the shards are",
             json.load(file)["shards"] == places["shards"])
    wait_until(lambda: not second.entry("whole", STEPS).get("damage"),
               lambda: str(second.entry("whole", STEPS)))
    test("it is listed as whole again", second.entry("whole", STEPS).get("durability") == "local",
         second.entry("whole", STEPS))


def replicated(folder, cluster, expected):
    """A third node gets all shards, from both; then one of the two is lost."""
    first, second, third = cluster.nodes
    run = Run(folder, "c", STEPS)
    run.start((first, second), "--debug.pause_at_step", 5)
    wait_until(lambda: first.entry("c", 4).get("durability") == "replicated", first.said)
    test("a copy on a third node holds every shard", shards(third, "c", 4) == [1, 2, 3, 4] and
         not has(third, "c", 4, "places.json"), shards(third, "c", 4))
    test("two nodes that hold a half each are no two copies",
         first.entry("c", 4)["tiers"].count(",") == 2, first.entry("c", 4))
    run.kill()
    second.lose()
    run.start((first,))
    code = run.end()
    test("a node is lost for good: the other resumes alone from the copy, bit for bit",
         code == 0 and run.losses() == expected, (code, run.said(), first.log()[-2000:]))


def alone(folder, cluster):
    """Most of the nodes are lost for good: an operator decides, or the far tier."""
    first, _, third = cluster.nodes
    run = Run(folder, "c", STEPS)
    code, _, said = first.cli("server", "attempt", "c", "--force", "--yes", *first.where)
    test("while most of the nodes answer, no start is forced",
         code != 0 and "most of the nodes answer" in said, said)
    third.lose()
    first.kill()
    first.start(*SOON)
    os.unlink(run.losses_at)
    run.start((first,), "--training.steps", STEPS + 1)
    code = run.end()
    test("one node of three starts nothing", code != 0 and "1 of 3 nodes answered" in run.said() and
         "ckpt-cli server attempt RUN --force" in run.said(), (code, run.said()))
    code, said, _ = first.cli("server", "attempt", "c", *first.where)
    test("ckpt-cli says who answers", code == 0 and
         "1 of 3 nodes answer: a start waits for a majority" in said, said)
    said = first.cli("server", "attempt", "c", "--force", "--yes", *first.where)
    run.start((first,), "--training.steps", STEPS + 1)
    code = run.end()
    test("an operator lets the next start go on without them", code == 0 and
         list(run.losses()) == [STEPS + 1], (said, code, run.said()))
    test("and the journal has it", "force" in first.cli("server", "history", "c", *first.where)[1])
    run.start((first,), "--training.steps", STEPS + 2)
    test("that start alone", run.end() != 0 and "1 of 3 nodes answered" in run.said(), run.said())
    first.kill()
    far = os.path.join(folder, "far")
    make_tier(os.path.join(folder, "maker"), far)
    first.start("--tier.store", "dir:" + far, *SOON)
    run.start((first,), "--training.steps", STEPS + 2)
    code = run.end()
    test("with a far tier, which takes each number once, none is forced", code == 0 and
         list(run.losses()) == [STEPS + 1, STEPS + 2] and
         "an attempt is opened without a majority of the nodes" in first.log(),
         (code, run.said(), first.log()[-2000:]))


def main():
    folder = tempfile.mkdtemp(prefix="nr-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    lib_train.make_tokens(folder, lib_train.prose())
    try:
        cluster = Cluster(folder, ("a", "b", "c"))
        cluster.start(*ALONE)
        try:
            expected = whole(folder, cluster)
            tools(folder, cluster)
            returned(cluster)
            resumed(folder, cluster, expected)
            slow(folder, cluster)
            away(folder, cluster)
        finally:
            cluster.close()
        os.rename(os.path.join(folder, "authority"), os.path.join(folder, "before"))
        cluster = Cluster(folder, ("a", "b", "c"))
        cluster.start()
        try:
            replicated(folder, cluster, expected)
            alone(folder, cluster)
        finally:
            cluster.close()
    finally:
        shutil.rmtree(folder)
    end()


if __name__ == "__main__":
    main()
