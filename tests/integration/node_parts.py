#!/usr/bin/env python3
"""node_parts - all nodes have ranks, each node its own ranks' shards: copies all the same.

Goal: with two ranks on each of four nodes and replication 2, a checkpoint reaches the level
"replicated" when two nodes have a whole copy, and not before. Then every shard is on two nodes, and
each node says so. The node of the first rank is lost for good, with its disk: the others resume
from that checkpoint with the losses of an undisturbed run, bit for bit. Newer checkpoints that were
not replicated are skipped by name. A node that accepts no copy is skipped for another. One that
leaves before its shards are copied delays no newer checkpoint. Damage is repaired. Method: mpirun,
real ckptd on loopback addresses, removed directories.
"""

import glob
import os
import shutil

import lib_tap
import lib_train
from lib_nodes import (PUBLISH, REMOVE, Run, cluster_in, damage_and_scrub, has, refusal, scratch,
                       shards)
from lib_store import wait_until
from lib_tap import end, test

STEPS = 8
DOMAINS = "a", "b", "c", "d"
OPTIONS = "--nodes.look_ms", "500", "--nodes.lost_ms", "15000"

lib_tap.need("grpc")
lib_tap.need_programs("openssl", "mpirun")


def is_replicated(node, run, step):
    return node.entry(run, step).get("durability") == "replicated"


def is_part(node, run, step):
    return has(node, run, step, "places.json")


def whole_nodes(nodes, run, step):
    return [node.name for node in nodes
            if has(node, run, step) and not is_part(node, run, step)]


def homes_of_shards(nodes, run, step):
    """Per shard the nodes whose disk has it."""
    return [[node.name for node in nodes if shard in shards(node, run, step)]
            for shard in range(1, 9)]


def tell_parts(nodes):
    """True when each list names the contents of each node's disk."""
    is_true = True
    for node in nodes:
        tiers = {text.split()[0]: "(part)" in text
                 for text in node.entry("whole", STEPS)["tiers"].split(",")}
        is_true &= all(tiers["local" if other is node else other.name] ==
                       is_part(other, "whole", STEPS) for other in nodes)
    return is_true


def mended(node):
    """One of its own shards is damaged; another node has a whole copy."""
    folder = glob.glob(os.path.join(node.store, "whole", f"step-{STEPS:08d}-a*"))[0]

    def names_in_it():  # the earlier finding of verify is forgotten
        return sorted(set(os.listdir(folder)) - {"verified.json"})

    names = names_in_it()
    damage_and_scrub(node, "whole", STEPS)
    wait_until(lambda: is_replicated(node, "whole", STEPS), node.said)
    return names_in_it() == names and node.all_verify() == []


def mends(cluster):
    part = next(node for node in cluster.nodes if is_part(node, "whole", STEPS))
    test("a damaged shard of a part is mended from a whole copy, and it stays a part",
         mended(part), part.log()[-3000:])
    test("so is one of a whole copy, whichever node saved it", mended(cluster.nodes[0]),
         cluster.nodes[0].log()[-3000:])


def levels(folder, cluster):
    first = cluster.nodes[0]
    run = Run(folder, "whole", STEPS)
    run.start(cluster.nodes, "--checkpoint.durability", "replicated")
    code = run.end()
    test("a run on all nodes ends when its last checkpoint is replicated", code == 0 and
         f"step {STEPS} is durable (replicated)" in run.said(), (code, run.said(), first.log()))
    whole = whole_nodes(cluster.nodes, "whole", STEPS)
    test("two nodes have a whole copy then, the first and another",
         len(whole) == 2 and whole[0] == "n1", whole)
    test("no other node has sent any",
         not any(" is in the tier n" in node.log() for node in cluster.nodes[1:]),
         [node.log()[-2000:] for node in cluster.nodes])
    held = homes_of_shards(cluster.nodes, "whole", STEPS)
    test("and every shard is on two nodes at least", min(map(len, held)) >= 2, held)
    for node in cluster.nodes:
        wait_until(lambda node=node: is_replicated(node, "whole", STEPS), node.said)
    test("each node names those that have a part alone", tell_parts(cluster.nodes),
         [node.entry("whole", STEPS) for node in cluster.nodes])
    test("what is on their disks verifies, the parts as parts",
         all(node.all_verify() == [] for node in cluster.nodes),
         [node.all_verify() for node in cluster.nodes])
    mends(cluster)
    for node in cluster.nodes:
        node.kill()
    for node in cluster.nodes:
        node.start(*OPTIONS)
    for node in cluster.nodes:
        wait_until(lambda node=node: is_replicated(node, "whole", STEPS), node.said)
    wait_until(lambda: tell_parts(cluster.nodes), lambda: str([
        node.entry("whole", STEPS) for node in cluster.nodes]))
    test("after a start of all of them, too, and no copy more was made",
         whole_nodes(cluster.nodes, "whole", STEPS) == whole,
         whole_nodes(cluster.nodes, "whole", STEPS))
    return run.losses(), next(node for node in cluster.nodes if node.name == whole[1])


def refused(folder, cluster, chosen):
    """The node chosen before has another file in the place of a shard."""
    first = cluster.nodes[0]
    run = Run(folder, "whole", STEPS + 1)
    os.makedirs(os.path.join(chosen.store, "whole", f"step-{STEPS + 1:08d}-a0002",
                             "shard-00001-of-00008.safetensors"))
    run.start(cluster.nodes, "--checkpoint.durability", "replicated")
    code = run.end()
    whole = whole_nodes(cluster.nodes, "whole", STEPS + 1)
    test("a node that takes nothing is passed over for another", code == 0 and len(whole) == 2 and
         chosen.name not in whole and is_part(chosen, "whole", STEPS + 1),
         (code, whole, chosen.name, run.said(), first.log()[-3000:]))


def liar(cluster):
    """A node with a valid certificate makes requests that can lose a shard."""
    first = cluster.nodes[0]
    part = next(node for node in cluster.nodes if is_part(node, "whole", STEPS + 1))
    folder = glob.glob(os.path.join(part.store, "whole", f"step-{STEPS + 1:08d}-a*"))[0]
    key = os.path.relpath(folder, part.store)
    own = shards(part, "whole", STEPS + 1)[-1]
    said = refusal(part, first, REMOVE, f"{key}/shard-{own:05d}-of-00008.safetensors")
    test("a node cannot remove a shard that another's part has", "may not remove" in said, said)
    said = refusal(part, first, REMOVE, f"{key}/shard-{9 - own:05d}-of-00008.safetensors")
    test("of one that the part lacks it may take away what it began",
         "may not remove" not in said, said)
    with open(os.path.join(folder, "manifest.json"), "rb") as file:
        said = refusal(part, first, PUBLISH, key + "/manifest.json", file.read())
    test("a part without the other shards becomes no whole copy",
         "not whole here" in said and is_part(part, "whole", STEPS + 1), said)


def forget(nodes, run, step):
    """As if the step had never been replicated."""
    for node in nodes:
        if not is_part(node, run, step):
            node.kill()
            for path in glob.glob(os.path.join(node.store, run, f"step-{step:08d}-a*")):
                shutil.rmtree(path)
            node.start(*OPTIONS)


def gone(folder, cluster):
    """A node is lost while its shards are being fetched, which takes long."""
    first, last = cluster.nodes[0], cluster.nodes[-1]
    run = Run(folder, "g", STEPS)
    run.start(cluster.nodes, "--debug.pause_at_step", 3)
    wait_until(lambda: is_replicated(first, "g", 2), first.said)
    run.kill()
    first.kill()
    first.start("--nodes.look_ms", "500", "--nodes.rate", "1MiB")
    first.wait_until_it_reaches(*cluster.nodes[1:])
    run.start(cluster.nodes, "--debug.pause_at_step", 5)
    wait_until(lambda: has(first, "g", 4), run.said)
    last.kill()
    run.kill()
    run.start(cluster.nodes[:-1])
    code = run.end()
    test("a run goes on without a node that is gone", code == 0,
         (code, run.said(), [node.log()[-3000:] for node in cluster.nodes[:-1]]))
    wait_until(lambda: is_replicated(first, "g", STEPS), first.said)
    test("what it saves does not wait for that node's shards of older steps",
         is_part(first, "g", 4), first.log()[-3000:])
    first.kill()
    for node in (first, last):
        node.start(*OPTIONS)
    first.wait_until_it_reaches(*cluster.nodes[1:])


def lost(folder, cluster, expected):
    """The first node, which coordinates and has a whole copy, is gone for good."""
    first, *others = cluster.nodes
    run = Run(folder, "r", STEPS)
    for step in 4, 5:
        run.start(cluster.nodes, "--debug.pause_at_step", step + 1)
        wait_until(lambda step=step: is_replicated(first, "r", step), first.said)
        run.kill()
    first.lose()
    forget(others, "r", 5)
    held = homes_of_shards(others, "r", 4)
    test("every shard is on a node that is left", min(map(len, held)) >= 1, held)
    run.start(others)
    code = run.end()
    test("the others resume from what they have, bit for bit",
         code == 0 and run.losses() == expected, (code, run.said(), others[0].log()[-2000:]))
    said = run.said()
    test("from the newest of which all shards are there, and the other one is named",
         "loaded step 4 " in said and "skipped on the way to step 4: step 5, attempt 2: shards of "
         "it lie on n1, which does not answer" in said, said)
    wait_until(lambda: is_replicated(others[0], "r", STEPS), others[0].said)
    test("what they save is replicated among them",
         len(whole_nodes(others, "r", STEPS)) == 2, whole_nodes(others, "r", STEPS))
    for name, step in (("r", 4), ("whole", STEPS + 1)):
        wait_until(lambda name=name, step=step: len(whole_nodes(others, name, step)) >= 2,
                   lambda: str([node.log()[-3000:] for node in others]))
    # Each node detects by itself that one is lost: the last may do it after the copies.
    wait_until(lambda: all("node n1 has not answered" in node.log() for node in others),
               lambda: str([node.log()[-3000:] for node in others]))
    test("what the lost node had a copy of has one more again, older ones and other runs, too",
         all(len(whole_nodes(others, name, step)) >= 2
             for name, step in (("r", 4), ("whole", STEPS + 1))))
    held = homes_of_shards(others, "whole", STEPS + 1)
    test("so another one could be lost", min(map(len, held)) >= 2 and all(
        is_replicated(node, "whole", STEPS + 1) for node in others), held)


def main():
    with scratch("np-") as folder:
        lib_train.make_tokens(folder, lib_train.prose())
        with cluster_in(folder, DOMAINS, *OPTIONS) as cluster:
            expected, chosen = levels(folder, cluster)
            refused(folder, cluster, chosen)
            liar(cluster)
            gone(folder, cluster)
            lost(folder, cluster, expected)
    end()


main()
