#!/usr/bin/env python3
"""memory_copies - copies of another node's checkpoints that a node keeps in memory.

Goal: nodes.replicas_in = "memory": the copy takes no disk, and the level's name says so. The
previous copy is removed when the next is whole. A restarted node gets its copy again. A copy that
does not fit is refused, and the sender reports it. Where the saver's node is lost with its disk,
the copy is written from memory to the disk, whole. Ranks load it out of memory, and damage on the
other disk is repaired from there. A ticket of the bulk plane is valid for it, and an operator's rm
removes it. Method: two real ckptd on loopback addresses, SIGKILL, removed directories.
"""

import glob
import os
import ssl
import subprocess

from lib_network import bulk_socket, fetch_from, ticket_from, tls_channel
from lib_nodes import cluster_in, damage_and_scrub, has, scratch
from lib_store import PATIENCE, SAVER, wait_until
from lib_tap import end, need, need_programs, test

need("grpc")
need_programs("openssl")

IN_MEMORY = ("--nodes.replicas_in", "memory", "--nodes.look_ms", "200", "--nodes.lost_ms", "1500")


def memory_of(node):
    return node.status()["nodes"]["memory"]


def is_at(node, run, step, level, tiers):
    entry = node.entry(run, step)
    return entry.get("durability") == level and entry.get("tiers") == tiers


def copied(first, second):
    first.save_one(1)
    run = first.listed(*first.where)[0]["run"]
    wait_until(lambda: is_at(first, run, 1, "replicated(mem)", "local,n2 (memory)"), first.said)
    wait_until(lambda: is_at(second, run, 1, "replicated(mem)", "memory,n1"), second.said)
    test("the level names the memory, and each node says where the copy is", True)
    test("the other node's disk has nothing of it", not has(second, run, 1, "*"),
         os.listdir(os.path.join(second.store, run)))
    before = memory_of(second)
    test("its status says so in bytes", before["copies"] == 1 and
         before["bytes"] - before["bytes_left"] >= first.entry(run, 1)["bytes"] and
         "1 copy of other nodes" in second.cli("status", *second.where)[1], second.said())
    first.save_one(2)
    wait_until(lambda: first.entry(run, 2).get("tiers") == "local,n2 (memory)" and
               memory_of(second)["copies"] == 1, second.said)
    after = memory_of(second)
    test("the next one takes its place",
         abs(after["bytes_left"] - before["bytes_left"]) < (1 << 16) and
         not second.entry(run, 1).get("tiers", "").startswith("memory"),
         (before, after, second.listed(*second.where)))
    return run


def returned(first, second, run):
    second.kill()
    second.start(*IN_MEMORY, "--nodes.memory_bytes", "1MiB")
    wait_until(lambda: "does not fit" in first.said() or "no room for" in first.said(), first.said)
    test("a copy that does not fit is refused, and is on no list",
         first.entry(run, 2).get("durability") == "local" and memory_of(second)["copies"] == 0,
         first.said())
    second.kill()
    second.start(*IN_MEMORY)
    wait_until(lambda: is_at(first, run, 2, "replicated(mem)", "local,n2 (memory)"), first.said)
    test("a node that was started again gets its copy again", memory_of(second)["copies"] == 1,
         second.said())


def come_from(node):
    """Bytes of checkpoints that it has read from the other node."""
    said = node.status()
    return said["nodes"]["peers"][0]["links"]["bulk"]["bytes_in"]


def served(first, second, run):
    """To another node, over the bulk plane of the one that has it in memory."""
    tls = os.path.join(first.folder, "tls")
    paths = glob.glob(os.path.join(first.store, run, "step-00000002-a*", "shard-*"))
    with open(min(paths), "rb") as file:
        data = file.read(1 << 20)
    with tls_channel(tls, second.address) as channel:
        ticket = ticket_from(channel, run, 2)
    context = ssl.create_default_context(cafile=os.path.join(tls, "authority.pem"))
    context.load_cert_chain(os.path.join(tls, "certificate.pem"), os.path.join(tls, "key.pem"))
    with bulk_socket(context, second.bulk) as stream:
        got = fetch_from(stream, ticket, 0, len(data))
    test("a ticket of the bulk plane is good for a copy in memory", got == (0, data),
         (got[0], got[1][:200]))


def read(first, second, run):
    """At the node whose disk is damaged, and at the one that has it in memory. It goes to the disk
    there when ranks have loaded it, so that comes last."""
    damage_and_scrub(first, run, 2)
    test("damage on the disk is mended out of the other node's memory",
         first.all_verify() == [] and not has(second, run, 2), first.said())
    before = come_from(second)
    done = subprocess.run([SAVER, "load", second.server, "2", "1", "2"], capture_output=True,
                          timeout=PATIENCE)
    test("ranks load it out of memory, and nothing comes over the network",
         done.returncode == 0 and come_from(second) == before, (done, second.said()))


def removed(first, second, run):
    """By an operator, at the node that has it in memory alone."""
    first.save_one(3)
    wait_until(lambda: is_at(second, run, 3, "replicated(mem)", "memory,n1"), second.said)
    name = f"{run}@3-a{second.entry(run, 3)['attempt']}"
    came = f"step 3, attempt {second.entry(run, 3)['attempt']}: received a copy from"
    code, out, err = second.cli("rm", name, "--yes", *second.where)
    test("rm names the node that keeps its own copy", code == 0 and
         "copies of it stay at n1, until it is removed there" in out, (code, out, err))
    wait_until(lambda: second.log().count(came) == 2, second.said)
    test("and takes that in memory: the other node sends it again", True)


def lost(first, second, run):
    first.save_one(4)
    wait_until(lambda: first.entry(run, 4).get("durability") == "replicated(mem)", first.said)
    was_there = has(second, run, 4)
    first.lose()
    wait_until(lambda: second.entry(run, 4).get("tiers", "").startswith("local,memory"),
               second.said)
    test("where the saver is lost the copy goes to the disk, and is whole there",
         not was_there and has(second, run, 4) and second.all_verify() == [], second.all_verify())


def main():
    with scratch("mc-") as folder, cluster_in(folder, ("a", "b"), *IN_MEMORY) as cluster:
        first, second = cluster.nodes
        run = copied(first, second)
        returned(first, second, run)
        served(first, second, run)
        read(first, second, run)
        removed(first, second, run)
        lost(first, second, run)
    end()


main()
