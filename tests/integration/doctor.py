#!/usr/bin/env python3
"""doctor - ckpt-cli finds the causes by which a node loses time or checkpoints, or will.

Goal: a healthy node gives 0. Each finding has its verdict and its remedy; 1 when one is bad; 69
without a ckptd, with all findings of the machine. Method: the real programs, and every finding
caused: limits by prlimit, certificates of three days, a wrong clock (build/shims/clock.so), a
seccomp filter (build/shims/no_uring), an absent node, one of another version (a patched program),
a far tier that may take 1 MiB a second, file systems of a mount namespace.
"""

import collections
import json
import os
import shutil
import subprocess
import tempfile

from lib_hosts import Disk, Refused, own_mounts, run
from lib_network import Network, free_port
from lib_nodes import Cluster, scratch
from lib_store import BUILD, CLI, PATIENCE, ClockOf, World, comes, make_tier
from lib_tap import end, skip, test
from lib_train import command, make_tokens, prose

REFUSE_RINGS = os.path.join(BUILD, "shims/no_uring")
HOST = {"memory", "memlock", "nofile", "/dev/shm", "huge pages", "io_uring", "kernel", "cores"}
SERVER = {"server", "version", "clock", "saving", "alarm", "disk room", "storage"}


class Found:
    """The output of doctor; `rows`: by check, each {verdict, found, advice}."""

    def __init__(self, where, *options, before=(), **env):
        done = subprocess.run([*before, CLI, "doctor", *where, "--json", *options], text=True,
                              capture_output=True, timeout=PATIENCE, env={**os.environ, **env})
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.rows = collections.defaultdict(list)
        self.document = json.loads(done.stdout)
        for row in self.document["checks"]:
            self.rows[row["check"]].append(row)

    def is_told(self, check, verdict, *parts):
        """True when there is such a row, with these texts in `found`."""
        return any(row["verdict"] == verdict and all(part in row["found"] for part in parts) and
                   (row["advice"] == "") == (verdict == "ok") for row in self.rows[check])

    def bad(self):
        return {check for check, rows in self.rows.items()
                if any(row["verdict"] == "bad" for row in rows)}


def fine(world):
    world.launch()
    world.save([1])
    found = Found(world.where, "--write", world.folder)
    test("a fine node is 0, all is looked at, and nothing is bad", found.code == 0 and
         not found.bad() and HOST | SERVER | {"file system", "write"} <= set(found.rows) and
         found.document["verdict"] in ("ok", "warn"), found.out)
    ours = world.cli("--version")[1].split()[-1]
    version = "ok" if world.status()["version"] == ours else "warn"
    test("what is fine is told as such", found.is_told("version", version, f"ckpt-cli {ours}; ") and
         found.is_told("clock", "ok") and found.is_told("alarm", "ok", "none") and
         found.is_told("memory", "ok", "ckptd's pool, 64.00 MiB"), found.out)
    test("--write measures beside what the last save needed, and leaves nothing",
         any("MiB written and synced at" in row["found"] and "; the last save: " in row["found"] and
             "; a save of " in row["found"] for row in found.rows["write"]) and
         not [name for name in os.listdir(world.folder) if "bench" in name], found.rows["write"])
    code, out, _ = world.cli("doctor", *world.where)
    said = [line.split(None, 1) for line in out.splitlines() if " -> " not in line]
    test("for people it is a table of the same rows, without a write", code == 0 and
         [verdict for verdict, _ in said] == [row["verdict"] for rows in found.rows.values()
                                              for row in rows if row["check"] != "write"] and
         out.count(" -> ") == sum(verdict != "ok" for verdict, _ in said), out)


def short_of_limits(world):
    cpu = str(min(os.sched_getaffinity(0)))
    before = ["prlimit", "--memlock=65536:65536", "--nofile=256:256", "taskset", "-c", cpu]
    if os.geteuid() == 0:
        before += ["setpriv", "--bounding-set=-ipc_lock"]
    found = Found(world.where, before=[*before, REFUSE_RINGS])
    test("little locked memory, few files, one core and no io_uring are warnings", found.code == 0
         and found.is_told("memlock", "warn", "65536 bytes may be locked", "64.00 MiB") and
         found.is_told("nofile", "warn", "256 files") and found.is_told("cores", "warn", "1 of ")
         and found.is_told("io_uring", "warn", "refused: Operation not permitted"), found.out)


def nobody_there(world):
    found = Found(("--server", f"unix:{world.folder}/nobody"))
    test("a ckptd that is not there is 69, and this machine is looked at", found.code == 69 and
         found.is_told("server", "bad", "no ckptd answered") and HOST < set(found.rows) and
         not SERVER - {"server"} & set(found.rows) and
         found.is_told("memory", found.rows["memory"][0]["verdict"], "the default pool") and
         json.loads(found.err)["exit_code"] == 69, (found.out, found.err))


def wrong_clock(world):
    """And a ckptd that has no io_uring."""
    clock = ClockOf(os.path.join(world.folder, "clock"))
    world.launch(before=(REFUSE_RINGS,), env={**os.environ, **clock.environment})
    found = Found(world.where)
    test("a ckptd that writes by threads is a warning", found.code == 0 and
         found.is_told("storage", "warn", "io_uring"), found.out)
    for seconds, verdict, code, way in ((-20, "warn", 0, "behind"), (90, "bad", 1, "ahead of")):
        clock.set(0, seconds)
        found = Found(world.where)
        test(f"a clock {abs(seconds)} s {way} ours is {verdict}", found.code == code and
             found.is_told("clock", verdict, f" s {way} ours") and abs(abs(seconds) - float(
                 found.rows["clock"][0]["found"].split()[2])) < 1, found.out)
    world.stop()


def network():
    world = Network()
    try:
        world.issue("node", "holdfast://node/n1", "127.0.0.1", DAYS="3")
        world.issue("anna", "holdfast://operator/anna", DAYS="3")
        world.serve("--nodes.name", "n1", "--nodes.domain", "a", "--nodes.peers",
                    f"n2@b=127.0.0.1:{free_port()}", "--nodes.silent_ms", "1000",
                    "--nodes.lost_ms", "1000", "--nodes.look_ms", "100")
        comes(lambda: world.status()["nodes"]["peers"][0]["lost"])
        found = Found(("--server", world.address), HOLDFAST_TLS=world.path("anna"))
        test("certificates of three days are bad, this user's and ckptd's", found.code == 1 and
             found.is_told("certificate", "bad", "holdfast://operator/anna", "for 3.0 days") and
             found.is_told("certificate", "bad", "ckptd's", "for 3.0 days") and
             found.is_told("alarm", "bad", "ends in 3.0 days"), found.out)
        test("and so is a node that is lost", found.is_told("node n2", "bad", "lost, silent for ")
             and found.is_told("alarm", "bad", "node n2 is lost"), found.out)
        test("of a ckptd that may be elsewhere no disk is looked at here",
             "file system" not in found.rows and found.is_told("server", "ok"), found.out)
        os.remove(world.path("anna", "key.pem"))
        found = Found(("--server", world.address), HOLDFAST_TLS=world.path("anna"))
        test("a certificate without its key is bad, and names it", found.code == 66 and
             found.is_told("certificate", "bad", "key.pem"), found.out)
    finally:
        world.close()


def other_version(node):
    """A program of the same code that reports another version."""
    ours = subprocess.run([node.ckptd, "--version"], capture_output=True, check=True).stdout.split()
    with open(node.ckptd, "rb") as file:
        program = file.read()
    node.ckptd = os.path.join(node.folder, "ckptd")
    other = b"9.9-other".ljust(len(ours[-1]), b"r")[:len(ours[-1])]
    with open(node.ckptd, "wb") as file:
        file.write(program.replace(ours[-1] + b"\0", other + b"\0"))
    os.chmod(node.ckptd, 0o755)
    return other.decode()


def nodes_apart(folder):
    """Another node has another version, and then another clock."""
    cluster = Cluster(folder, ("a", "b"))
    one, two = cluster.nodes
    clock, other = ClockOf(os.path.join(folder, "clock")), other_version(two)

    def peer():
        return one.status()["nodes"]["peers"][0]

    def set_clock(seconds):
        clock.set(0, seconds)
        return comes(lambda: abs((peer()["clock_ahead_seconds"] or 0) - seconds) < 3)

    try:
        one.spawn("--nodes.look_ms", "100")
        two.spawn("--nodes.look_ms", "100", env={**os.environ, **clock.environment})
        for node in cluster.nodes:
            node.wait_until_it_answers()
        one.wait_until_it_reaches(two)
        known = comes(lambda: peer()["clock_ahead_seconds"] is not None)
        one.save([1])
        comes(lambda: peer()["links"]["bulk"]["bytes_out"] > 0 and peer()["waiting"] == 0)
        found = Found(one.where)
        rows = [row["verdict"] for row in found.rows["node n2"]]
        test("a node of another version is a warning, and its clock is right", known and
             found.is_told("node n2", "warn", f"its ckptd is {other}, and this one is ") and
             "a call takes " in found.rows["node n2"][0]["found"] and len(rows) == 2, found.out)
        test("its link has its rates", found.is_told(
            "link n2", "ok", "iB/s out, ", "/s in during transfers"), found.out)
        for seconds, verdict, way in ((600, "bad", "ahead of"), (-10, "warn", "behind")):
            comes_so = set_clock(seconds)
            found = Found(one.where)
            alarms = [alarm for alarm in one.status()["alarms"] if "the clock of node n2" in alarm]
            test(f"a node whose clock is {abs(seconds)} s {way} ours is {verdict}", comes_so and
                 found.is_told("node n2", verdict, "its clock is ", f" s {way} that of this ckptd")
                 and (verdict == "bad") == (len(alarms) == 1),
                 (two.said()[-1500:], found.out, alarms))
    finally:
        cluster.close()


def slow_tier(world):
    far = os.path.join(world.folder, "far")
    make_tier(world.folder, far)
    make_tokens(world.folder, prose())
    world.launch("--tier.store", f"dir:{far}", "--tier.rate", "1MiB", "--tier.quiet", "false")
    done = subprocess.run(command(world.folder, world.server, "slow", "--training.steps", 8,
                                  "--checkpoint.interval", 1, "--checkpoint.when_busy", "wait",
                                  "--model.n_layers", 8),
                          capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    sent = comes(lambda: world.status()["tier"]["drained"] >= 1)
    run, = (run for run in world.status()["runs"] if run["run"] == "slow")
    found = Found(world.where, "--write", world.folder)
    need = "; saves here need "
    test("the disk is compared with what saves need, by their bytes and interval",
         run["newest_bytes_here"] == run["newest_bytes"] > 0 and
         any(need in row["found"] for row in found.rows["write"]), (run, found.rows["write"]))
    test("a far tier that takes less than saves make is a warning, with what they need",
         sent and found.is_told("far tier", "warn", "slowest requests: ", ", median ",
                                "0 errors since", need), (run, found.out))
    world.stop()


def disks():
    folder = tempfile.mkdtemp(prefix="dr-")
    disk = Disk(folder, 96, 400)
    world = World(os.path.join(disk.path, "store"))
    try:
        world.launch("--storage.usable_fraction", "1")
        world.save([1])
        found = Found(world.where)
        test("a disk with room is ok", found.code == 0 and found.is_told("disk room", "ok") and
             found.is_told("file system", "ok", "is ext4"), found.out)
        disk.fill()
        found = Found(world.where)
        test("a disk that is nearly full is bad", found.code == 1 and
             found.is_told("disk room", "bad", " left for saves, of which the last had ") and
             found.is_told("saving", "bad", "the next save would fail") and
             "alarm" in found.bad(), found.out)
        world.stop()
    finally:
        world.close()
        disk.close()
        shutil.rmtree(folder, ignore_errors=True)


def in_memory():
    world = World()
    try:
        os.mkdir(world.store)
        run("mount", "-t", "tmpfs", "none", world.store)
        run("mount", "-t", "tmpfs", "-o", "size=32m", "none", "/dev/shm")
        world.launch()
        found = Found(world.where)
        test("a store in memory is bad, and a small /dev/shm a warning", found.code == 1 and
             found.bad() == {"file system"} and found.is_told("file system", "bad", "is tmpfs") and
             found.is_told("/dev/shm", "warn", "32.00 MiB"), found.out)
        found = Found(world.where, "--write", world.folder)
        test("a write beside another disk than the store's says so",
             found.is_told("write", "warn", "is not on the store's disk"), found.out)
        found = Found(world.where, "--write", world.folder + "/none")
        test("a folder that does not exist is not said to be on another disk",
             found.code == 1 and [row["verdict"] for row in found.rows["write"]] == ["bad"],
             found.out)
        world.stop()
    finally:
        run("umount", "/dev/shm")
        run("umount", world.store)
        world.close()


def main():
    refusal = ""
    try:
        own_mounts()  # before any program that waits for its arguments has come into the old ones
    except Refused as reason:
        refusal = str(reason)
    world = World()
    try:
        fine(world)
        short_of_limits(world)
        nobody_there(world)
        world.stop()
        wrong_clock(world)
        slow_tier(world)
    finally:
        world.close()
    network()
    with scratch("dr-") as folder:
        nodes_apart(folder)
    if refusal:
        skip(["a disk that is nearly full is bad", "a store in memory is bad"], refusal)
    else:
        disks()
        in_memory()
    end()


main()
