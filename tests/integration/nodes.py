#!/usr/bin/env python3
"""nodes - several ckptd: copies on other nodes, and a node that is lost for good.

Goal: a checkpoint that was acknowledged as replicated survives the loss of its node with its disk:
another node lists it, and a fresh trainer there resumes from it with the losses of an undisturbed
run, bit for bit. Copies go only to other failure domains. A start needs most of the nodes; a node
that comes back with old state neither reuses a number nor resumes from an older checkpoint. A
damaged copy is repaired from another node's. (Kills at random moments: ckptd_sim_nodes and
check_node_faults.) Method: real ckptd on loopback addresses, certificates by deploy/certificates,
SIGKILL, removed directories.
"""

import glob
import json
import os
import re
import subprocess
import time

import lib_tap
import lib_train
from lib_nodes import PUBLISH, REMOVE, certificates, cluster_in, damage_and_scrub, refusal, scratch
from lib_store import PATIENCE, SAVER, wait_until
from lib_tap import end, test

DOMAINS = "a", "a", "b"
STEPS = 8

lib_tap.need("grpc")
lib_tap.need_programs("openssl")


def train(folder, node, run, *options):
    return lib_train.Trainer(
        lib_train.command(folder, node.server, run, "--training.steps", STEPS,
                          "--checkpoint.interval", "1", "--checkpoint.when_busy", "wait",
                          "--comm.ranks", "2",
                          "--metrics.loss_file", os.path.join(folder, run + ".loss"),
                          *options))


def losses(folder, run):
    with open(os.path.join(folder, run + ".loss")) as file:
        return {int(line.split()[0]): line for line in file}


def stores_with(cluster, run, step):
    """The nodes on whose disk it is committed."""
    return {node.name for node in cluster.nodes if not node.is_lost and
            glob.glob(os.path.join(node.store, run, f"step-{step:08d}-a*", "manifest.json"))}


def levels(folder, cluster):
    """n1 and n2 share a domain, n3 has another."""
    first, _, third = cluster.nodes
    process = train(folder, first, "whole", "--checkpoint.durability", "replicated")
    said = process.communicate()[1]
    test("a run trains, and its end waits until the last checkpoint is replicated",
         process.returncode == 0 and f"step {STEPS} is durable (replicated)" in said, said[-2000:])
    test("the copy is in the other domain, and nowhere else",
         stores_with(cluster, "whole", STEPS) == {"n1", "n3"}, stores_with(cluster, "whole", STEPS))
    entry = first.entry("whole", STEPS)
    test("the sender lists who has it", entry.get("durability") == "replicated" and
         entry.get("tiers") == "local,n3", entry)
    code, out, err = first.cli("advise", "whole", "--step-time", "60", *first.where, "--json")
    advice = json.loads(out)["replication"] if code == 0 else err
    test("advise has the time of a copy there, and keeps to it", code == 0 and
         advice["advised"] == "peer" and advice["peer"]["copy_seconds"] > 0 and
         advice["peer"]["behind_seconds"] == 0 and advice["far"] is None and
         advice["set"] == {"nodes.replicas": 2, "checkpoint.durability": "replicated"}, advice)
    wait_until(lambda: third.entry("whole", STEPS).get("durability") == "replicated", third.said)
    test("the receiver, too", third.entry("whole", STEPS)["tiers"] == "local,n1",
         third.entry("whole", STEPS))
    moved = third.status()["bulk"]["bytes_in"]
    test("its bytes came over the bulk plane", moved > entry.get("bytes", 0) > 0, moved)
    test("the copy verifies on its disk", third.all_verify() == [], third.all_verify())
    code, out, err = first.cli("status", "--json", *first.where)
    status = json.loads(out)["nodes"] if code == 0 else {}
    behind = {run["run"]: run["checkpoints_behind"] for run in status.get("runs", [])}
    test("status says which nodes there are, and that nothing is behind",
         [peer["name"] for peer in status.get("peers", [])] == ["n2", "n3"] and
         behind.get("whole") == 0, (out, err))


def mended(cluster):
    """A shard of n1 is damaged, and n3 has the checkpoint."""
    first = cluster.nodes[0]
    damage_and_scrub(first, "whole", STEPS)
    test("damage that the scrub finds is mended from a peer's copy",
         first.entry("whole", STEPS).get("durability") == "replicated" and
         first.all_verify() == [], first.said())
    status = first.status()
    links = [peer["links"]["bulk"] for peer in status["nodes"]["peers"]]
    test("what was read there counts as come over that link",
         [link["bytes_in"] > 0 for link in links] == [False, True], links)


def liar(cluster):
    """A node with a valid certificate that makes requests which can lose a checkpoint."""
    first, second, third = cluster.nodes
    manifest = glob.glob(os.path.join(third.store, "whole", f"step-{STEPS:08d}-a*",
                                      "manifest.json"))[0]
    key = os.path.relpath(manifest, third.store)
    folder = os.path.dirname(key)
    shard = os.path.basename(glob.glob(os.path.join(third.store, folder, "shard-*"))[0])
    for name in (f"{folder}/{shard}", key, "whole/attempts/0001"):
        said = refusal(third, first, REMOVE, name)
        test(f"a node cannot remove {os.path.basename(name)} of a committed checkpoint",
             "may not remove" in said, said)
    with open(manifest, "rb") as file:
        said = refusal(second, first, PUBLISH, key, file.read())
    test("a manifest without its shards is refused", "not whole here" in said and
         not os.path.exists(os.path.join(second.store, key)), said)
    for name in ("whole/tombstones/step-00000001-a0001", "../x/attempts/0001", "whole/pins/x"):
        said = refusal(third, first, PUBLISH, name, b"x")
        test(f"nor may a node write {name}", "may not use the key" in said, said)


def lost(folder, cluster):
    """Another node resumes from the newest replicated checkpoint of a lost one."""
    first, second, third = cluster.nodes
    expected = losses(folder, "whole")
    process = train(folder, first, "r", "--debug.pause_at_step", STEPS // 2 + 1)
    wait_until(lambda: first.entry("r", STEPS // 2).get("durability") == "replicated", first.said)
    process.kill()
    process.communicate()
    first.kill()
    first.start("--nodes.replicas", "1")  # its later saves are lost with it
    process = train(folder, first, "r", "--debug.pause_at_step", STEPS // 2 + 3)
    wait_until(lambda: third.entry("r", STEPS // 2 + 2), first.said)
    first.lose()
    process.kill()
    process.communicate()
    wait_until(lambda: "the tier n1 cannot be read" in third.log(), third.said)
    process = train(folder, third, "r")
    said = process.communicate()[1]
    test("a fresh trainer on another node resumes, bit for bit",
         process.returncode == 0 and losses(folder, "r") == expected, said[-2000:])
    test("from the newest checkpoint that was replicated, past those that are lost",
         f"loaded step {STEPS // 2} " in said, said[-3000:])
    wait_until(lambda: third.entry("r", STEPS).get("durability") == "replicated", third.said)
    test("and what it saves is replicated to the node that is left",
         stores_with(cluster, "r", STEPS) == {"n2", "n3"}, stores_with(cluster, "r", STEPS))
    second.kill()
    alone(folder, third)


def alone(folder, third):
    """The settings of n3 name no other node now; the run's last attempt counts on three."""
    third.kill()
    others, third.nodes = third.nodes, [third]
    third.start()
    code, out, err = third.cli("server", "attempt", "r", *third.where)
    test("a node whose settings name no other still counts on those of the last attempt",
         code == 0 and "waits for a majority" in out and "n1,n2,n3" in out, (out, err))
    process = train(folder, third, "r", "--training.steps", STEPS + 1)
    said = process.communicate(timeout=100)[1]
    test("and starts nothing", process.returncode == 75 and "counted on" in said + third.log(),
         (process.returncode, said[-2000:]))
    third.cli("server", "attempt", "r", "--force", "--yes", *third.where)
    codes = []
    for steps in (STEPS + 1, STEPS + 2):
        process = train(folder, third, "r", "--training.steps", steps)
        said = process.communicate(timeout=100)[1]
        codes.append(process.returncode)
    test("an operator's word is for one start, and from then on it counts on itself",
         codes == [0, 0], (codes, said[-2000:]))
    third.nodes = others


def same_behind(told, own):
    return told["behind"]["checkpoints"] == own["behind"]["checkpoints"]


def told(first):
    """n3 is away, and newer checkpoints are on n1 alone: status, its JSON and the numbers."""
    alarm, second = "node n3 has not answered for", first.nodes[1]
    wait_until(lambda: f"n2: {alarm}" in first.cli("status", *first.where)[1], first.said)
    screen = first.cli("status", *first.where)[1]
    status = first.status()
    peers = {peer["name"]: peer for peer in status["nodes"]["peers"]}
    run = [run for run in status["nodes"]["runs"] if run["run"] == first.run][0]
    size = first.entry(first.run, 55)["bytes"]
    test("status tells of a silent node, of what is not replicated, and of the rates",
         re.search(r"ALARM +" + alarm, screen) and
         re.search(r"n3 +b .* silent for", screen) and
         re.search(r"n2 +a .* ms +-$", screen, re.M) and
         f"{run['checkpoints_behind']} checkpoints not replicated" in screen, screen)
    test("so does its JSON, in bytes and seconds",
         [text for text in status["alarms"] if alarm in text] and peers["n3"]["offline"] and
         peers["n2"]["silent_seconds"] == 0 and run["replicated_step"] == 50 and
         run["checkpoints_behind"] > 1 and
         run["bytes_behind"] == run["checkpoints_behind"] * size and run["lag_seconds"] > 0,
         (status["alarms"], peers, run, size))
    def told_and_own():
        peer = first.status()["nodes"]["peers"]
        return (next(one["told"] for one in peer if one["name"] == "n2"), second.status())
    wait_until(lambda: same_behind(*told_and_own()), first.said)  # changes are reported later
    told, own = told_and_own()
    test("the other node's disk, memory, saves, alarms and lag are what it tells itself",
         told["disk"]["bytes_total"] == own["disk"]["bytes_total"] and
         told["disk"]["bytes_left"] > 0 and told["pool"]["bytes"] == own["pool"]["bytes"] and
         told["saves"] == [] and same_behind(told, own) and
         "nodes" not in told and 0 <= told["seconds_ago"] < 60, (told, own))
    test("and what the silent one told last is there with its age, but no alarm of then",
         peers["n3"]["told"]["seconds_ago"] > peers["n3"]["silent_seconds"] and
         peers["n3"]["told"]["pool"]["bytes"] > 0 and "alarms" not in peers["n3"]["told"] and
         "alarms" in peers["n2"]["told"], peers["n3"])
    links = {name: peer["links"] for name, peer in peers.items()}
    test("each plane of a link has a round-trip time, and the bytes that went over it",
         0 < links["n2"]["control"]["rtt_seconds"] < 2 and
         0 < links["n3"]["bulk"]["rtt_seconds"] < 2 and
         links["n2"]["bulk"]["rtt_seconds"] is None and
         links["n3"]["bulk"]["bytes_out"] >= size and links["n3"]["control"]["bytes_out"] == 0 and
         0 < links["n3"]["bulk"]["bytes_per_second_out"] < 1e11, links)

    def numbers():
        with open(first.folder + "/numbers") as file:
            return dict(line.rsplit(" ", 1) for line in file if line[0] != "#")
    wait_until(lambda: float(numbers()['holdfast_node_silent_seconds{node="n3"}']) > 0, first.said)
    lines, label = numbers(), f'{{run="{first.run}"}}'
    test("so do the numbers for Prometheus, by node and by run",
         lines['holdfast_node_lost{node="n2"}'] == "0\n" and int(lines["holdfast_alarms"]) > 0 and
         float(lines[f"holdfast_replication_bytes_behind{label}"]) == run["bytes_behind"] and
         float(lines['holdfast_node_told_disk_bytes_left{node="n2"}']) > 0 and
         int(lines['holdfast_node_told_alarms{node="n2"}']) > 0 and
         float(lines['holdfast_node_links_control_rtt_seconds{node="n2"}']) > 0 and
         float(lines['holdfast_node_links_bulk_bytes_per_second_out{node="n3"}']) > 0 and
         int(lines['holdfast_tier_io_seconds_count{tier="n3",op="write"}']) > 0, lines)


def why_silent(first, third):
    """n3 is away; then it is there, with a certificate of another authority."""
    def alarms():
        return first.cli("status", *first.where)[1]
    wait_until(lambda: "Connection refused" in alarms(), first.said)
    test("the alarm of a silent node says that nobody listens there", "node n3 has not answered" in
         alarms() and "no ckptd answered at " + third.address in alarms(), alarms())
    own, strange = (os.path.join(third.folder, name) for name in ("tls", "strange"))
    certificates("authority", strange + "-authority")
    certificates("issue", strange + "-authority", strange, "holdfast://node/n3", "127.0.0.3")
    os.rename(own, own + "-")
    os.rename(strange, own)
    third.start()
    wait_until(lambda: "is not believed" in alarms(), first.said)
    test("and of one with another authority's certificate that it is not believed",
         "the ckptd at " + third.address + " is not believed" in alarms(), alarms())
    third.kill()
    os.rename(own, strange)
    os.rename(own + "-", own)


def kept(cluster):
    """Retention keeps the last two; the node with the copies is away."""
    first, _, third = cluster.nodes
    first.kill()
    first.start("--retention.keep_last", "2", "--metrics.file", first.folder + "/numbers",
                "--metrics.every_ms", "100", "--nodes.look_ms", "1000")
    first.save_one(50, ranks=2)
    first.run = first.listed(*first.where)[0]["run"]
    wait_until(lambda: first.entry(first.run, 50).get("durability") == "replicated", first.said)
    third.kill()
    saved = int(time.time())  # the lag after it is in whole seconds
    wait_until(lambda: int(time.time()) > saved, "the next second")
    for step in range(51, 56):
        first.save_one(step, ranks=2)
    wait_until(lambda: not first.entry(first.run, 52), first.said)
    test("the newest that is replicated stays while newer ones are on one node alone",
         first.entry(first.run, 50).get("durability") == "replicated",
         first.listed(*first.where))
    told(first)
    why_silent(first, third)
    third.start()


def named(cluster):
    """n2 gets no copy, and polls the others rarely."""
    first, second, _ = cluster.nodes
    second.kill()
    second.start("--tier.look_ms", "3600000")
    second.listed(*second.where)
    first.save_one(60, ranks=2)
    done = subprocess.run([SAVER, "read", second.server, "60", "1000"], timeout=PATIENCE,
                          capture_output=True, text=True)
    test("a load that names a step which another node has just saved finds it",
         done.returncode == 0, done.stderr)


def returned(cluster):
    """n1 trains, is away while n3 continues, and comes back."""
    first, second, third = cluster.nodes
    first.save_one(100, ranks=2)
    run = first.run
    wait_until(lambda: first.entry(run, 100).get("durability") == "replicated", first.said)
    old = first.entry(run, 100)["attempt"]
    first.kill()
    third.save_one(101, ranks=2)
    newer = third.entry(run, 101)["attempt"]
    test("the node that goes on takes a higher number", newer > old, (old, newer))
    wait_until(lambda: third.entry(run, 101).get("durability") == "replicated", third.said)
    third.kill()
    first.start()
    first.save_one(102, ranks=2)
    test("the node that comes back takes one that is higher still",
         first.entry(run, 102)["attempt"] > newer, first.entry(run, 102))
    second.kill()
    third.start()


def main():
    with scratch("no-") as folder:
        lib_train.make_tokens(folder, lib_train.prose())
        with cluster_in(folder, DOMAINS) as cluster:
            kept(cluster)
            named(cluster)
            returned(cluster)
        os.rename(os.path.join(folder, "authority"), os.path.join(folder, "before"))
        with cluster_in(folder, DOMAINS) as cluster:
            levels(folder, cluster)
            mended(cluster)
            liar(cluster)
            lost(folder, cluster)
    end()


main()
