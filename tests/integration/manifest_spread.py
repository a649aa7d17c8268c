#!/usr/bin/env python3
"""manifest_spread - the coordinator sends the manifest of a save to some nodes, and these send it
to the others.

Goal: with a rank on each of ten nodes eight get the manifest from the coordinator, the ninth from
one of them, and all have the same bytes. A node that cannot reach the named one asks again, and the
coordinator sends it. Method: mpirun, ten real ckptd on loopback addresses; then again, with nodes
that know only the coordinator.
"""

import glob
import os
import re

import lib_tap
import lib_train
from lib_nodes import Run, cluster_in, scratch
from lib_tap import end, test

NODES, STEPS = 10, 2
OPTIONS = "--nodes.replicas", "1", "--nodes.look_ms", "1000"

lib_tap.need("grpc")
lib_tap.need_programs("openssl", "mpirun")


def manifests(cluster, run, step):
    """Of each node: its bytes."""
    found = [glob.glob(os.path.join(node.store, run, f"step-{step:08d}-a*", "manifest.json"))
             for node in cluster.nodes]
    return [open(paths[0], "rb").read() if paths else b"" for paths in found]


def handed_on(cluster, run):
    """Per step: the nodes from which others were to have it."""
    logs = "".join(node.log() for node in cluster.nodes)
    return [re.findall(rf"run {run}, step {step}: its manifest comes from node (\S+)", logs)
            for step in range(1, STEPS + 1)]


def saved(folder, cluster, name):
    run = Run(folder, name, STEPS)
    run.start(cluster.nodes, ranks=1)
    code = run.end()
    test(f"{name}: a run on ten nodes is saved", code == 0, (code, run.said()))
    texts = [manifests(cluster, name, step) for step in range(1, STEPS + 1)]
    test(f"{name}: all nodes have the same manifest",
         all(same[0] and len(set(same)) == 1 for same in texts), texts[0])


def handed(folder, cluster):
    saved(folder, cluster, "all")
    froms = handed_on(cluster, "all")
    test("one node has it from another than the coordinator",
         all(len(nodes) == 1 and nodes[0] != "n1" for nodes in froms), froms)


def asked_again(folder, cluster):
    for node in cluster.nodes[1:]:
        node.kill()
        node.nodes = [node, cluster.nodes[0]]
        node.spawn(*OPTIONS)
    for node in cluster.nodes[1:]:
        node.wait_until_it_answers()
    saved(folder, cluster, "few")
    froms = handed_on(cluster, "few")
    test("who does not know the node that is named asks again",
         all(len(nodes) == 1 for nodes in froms) and
         any("no peer is named" in node.log() for node in cluster.nodes), froms)


def main():
    with scratch("ms-") as folder:
        lib_train.make_tokens(folder, lib_train.prose())
        with cluster_in(folder, [f"d{i}" for i in range(NODES)], *OPTIONS) as cluster:
            handed(folder, cluster)
            asked_again(folder, cluster)
    end()


main()
