#!/usr/bin/env python3
"""afar - ckpt-cli reads from a ckptd on another node, over TLS.

Goal: each command that reads checkpoints answers with --server HOST:PORT what it answers on the
directory: text, exit code, files that it writes, byte for byte. It reports damage at the same
places. A user who may load may read, only his run where the certificate names one, and change
nothing. A checkpoint that is read is leased. Cut connections do not change the result; a ckptd that
dies is not reported as damage. Method: a real ckptd on loopback with its bulk plane behind a relay
that cuts; certificates by deploy/certificates; the same commands with --store beside them.
"""

import glob
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys

import lib_tap

lib_tap.need("grpc")
lib_tap.need_programs("openssl")
import grpc  # noqa: E402
from lib_network import Network  # noqa: E402
from lib_nodes import field  # noqa: E402
from lib_relay import Relay  # noqa: E402
from lib_store import CLI, PATIENCE, change, comes  # noqa: E402
from lib_tap import test  # noqa: E402

LIST, READS, NUM_OPERATIONS = 9, {1, 2, 4, 8, 9, 11, 12}, 13  # PeerOp of ckpt.proto


class Afar(Network):
    def __init__(self):
        super().__init__()
        self.output = os.path.join(self.folder, "output")
        self.relay = Relay(self.bulk)
        self.serve("--tls.bulk_advertise", self.relay.address)
        self.save((1, 2))
        self.one, self.two = (f"{self.run}@{step}-a{attempt}" for step, attempt in
                              sorted((e["step"], e["attempt"]) for e in self.listed()))
        for uri in ("reader", f"reader/{self.run}", "reader/other", "pruner", "node/n2",
                    "operator/anna", f"trainer/{self.run}"):
            self.issue(uri.replace("/", "-"), "holdfast://" + uri)

    def begin(self, *words, identity="reader"):
        return subprocess.Popen([CLI, *words, "--server", self.address], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={**os.environ, "HOLDFAST_TLS": self.path(identity)})

    def both(self, *words):
        """Per side: exit code, stdout, stderr, and the files that it left at self.output."""
        output = self.output
        for place in ("here", "afar"):
            if place == "here":
                code, out, err = self.cli(*words, "--store", self.store)
            else:
                process = self.begin(*words)
                out, err = process.communicate(timeout=PATIENCE)
                code = process.returncode
            files = {os.path.relpath(name, output): data_of(name)
                     for name in glob.glob(output + "/**", recursive=True) + [output]
                     if name.endswith(".safetensors") or name == output and os.path.isfile(name)}
            if os.path.isfile(output):
                os.remove(output)
            shutil.rmtree(output, ignore_errors=True)
            yield code, plain(out), plain(err), files


def plain(text):
    """Removes the parts that differ between two runs of a command."""
    text = re.sub(r"\d+ \w+ ago", "lately", text)
    return re.sub(r'"(nonce|time|seconds)": *("[^"]*"|[0-9.]+)', r'"\1": 0', text)


def data_of(path):
    """A file's bytes; of a shard only those of its tensors, as its header has a separate nonce."""
    with open(path, "rb") as file:
        data = file.read()
    if "shard-" not in path:
        return data
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name[:2] != "__"]
    return data[8 + size:8 + size + max(ends)]


def same_answers(world):
    output = world.output
    names = {world.run: "RUN", world.one: "CHECKPOINT", world.two: "ANOTHER", output: "PATH"}
    for words in (["verify", world.one], ["verify", world.one, "--quick"],
                  ["verify", world.one, "--sample", "50%", "--seed", "7"],
                  ["verify", "--all"], ["diff", world.one, world.two],
                  ["diff", world.one, world.one], ["du"], ["du", world.run], ["du", world.one],
                  ["show", world.one], ["verify", f"{world.run}@77"],
                  ["export", world.one, "--output", output],
                  ["export", world.one, "--output", output, "--dtype", "bf16", "--only", "tok*"],
                  ["convert", world.one, "--output", output, "--dtype", "bf16"],
                  ["convert", world.one, "--output", output, "--shards", "3"]):
        for form in ([], ["--json"]):
            here, afar = world.both(*words, *form)
            said = " ".join(names.get(word, word) for word in words + form)
            test(f"{said} is the same from afar", here == afar and bool(here[3]) ==
                 ("--output" in words) and here[0] == (66 if "@77" in said else "ANOTHER" in said),
                 (here[:3], afar[:3]))


def cuts(world):
    world.relay.every, world.relay.times = 300000, 8
    here, afar = world.both("verify", world.one, "--json")
    test("connections that are cut change nothing of it", here == afar and world.relay.cuts == 8,
         (here, afar, world.relay.cuts))
    world.relay.every = None


def damage(world):
    step = glob.glob(os.path.join(world.store, world.run, "step-00000001-a*", "shard-00002*"))[0]
    change(step, os.path.getsize(step) // 2)
    here, afar = world.both("verify", world.one, "--json")
    test("damage is found at the same place, exit code 1", here[:2] == afar[:2] and
         here[0] == 1 and len(json.loads(here[1])["damage"]) > 0, (here, afar))
    test("ckptd hears of it from operators alone, and a reader is told so",
         "ckptd was not notified" in afar[2] and "ckpt-cli server scrub" in afar[2], afar)
    change(step, os.path.getsize(step) // 2)
    test("and none when it is gone", world.ask("reader", "verify", world.one)[0] == 0)


def keeps(world):
    """A verify leaves its result beside the checkpoint when its identity may."""
    (note,) = glob.glob(os.path.join(world.store, world.run, "step-00000001-a*", "verified.json"))
    os.remove(note)

    def known():
        return [e["verified"] for e in world.listed() if e["step"] == 1 and "verified" in e]
    code, said = world.ask("reader", "verify", world.one)
    test("the result of a reader's verify is not kept, and nothing says that it is",
         code == 0 and known() == [] and "kept" not in said and "told" not in said, said)
    code, said = world.ask("operator-anna", "verify", world.one)
    test("that of an operator's is", code == 0 and [note["known"] for note in known()] == ["whole"],
         (said, world.log()))
    code, said = world.ask("operator-anna", "verify", world.one, "--sample", "50%", "--seed", "7")
    test("a part in which no damage is found leaves what was known", code == 0 and
         [(note["known"], note["percent"], note["seed"]) for note in known()] == [("whole", 50, 7)],
         (said, known()))


def operation(channel, number, key="", handle=0):
    """The error of the call; "": it succeeded."""
    try:
        channel.unary_unary("/holdfast.v1.Checkpoint/Peer")(
            bytes([8, number]) + field(2, key.encode()) + (bytes([24, handle]) if handle else b""),
            timeout=PATIENCE)
    except grpc.RpcError as error:
        return error.code().name + ": " + error.details()
    return ""


def rights(world):
    """Each operation on the files of the run by each identity."""
    directory = os.path.relpath(glob.glob(os.path.join(world.store, world.run, "step-*"))[0],
                                world.store)
    shard = "shard-00001-of-00002.safetensors"
    keys = {0: f"{directory}/{shard}", 1: f"{directory}/{shard}", 6: directory,
            7: f"{world.run}/attempts/77", 8: f"{directory}/manifest.json", 9: world.run,
            10: f"{directory}/{shard}", 11: f"{world.run}/leases/x"}
    may = {"reader": READS, f"reader-{world.run}": READS, "reader-other": {2, 4, 12},
           "pruner": set(), "operator-anna": READS, f"trainer-{world.run}": READS}
    for identity, allowed in may.items():
        with world.channel(identity) as channel:
            got = {number for number in range(NUM_OPERATIONS)
                   if not operation(channel, number, keys.get(number, ""), 5).startswith(
                       "PERMISSION_DENIED")}
            test(f"{identity.replace(world.run, 'RUN')} reads what it may, and changes nothing",
                 got == allowed, (got - allowed, allowed - got))
            whole = operation(channel, LIST)
            test("and the whole store only without a run" if "-" in identity else
                 "and the whole store", (whole == "") == (identity in ("reader", "operator-anna")),
                 whole)
            outside = operation(channel, 8, "../" + directory + "/manifest.json")
            test("and nothing outside it", outside != "", outside)
    code, said = world.ask(f"reader-{world.run}", "verify", world.one)
    test("a reader of one run verifies it", code == 0, said)
    code, said = world.ask("reader-other", "verify", world.one)
    test("a reader of another does not, exit code 74", code == 74, said)


def leases(world):
    """The relay holds the bytes, so the export runs until the relay releases them."""
    world.relay.hold("back")
    process = world.begin("export", world.one, "--output", world.output, "--force")
    leased = comes(lambda: glob.glob(os.path.join(world.store, world.run, "leases", "step-*")))
    code, said, err = world.cli("rm", world.one, "--yes", *world.where)
    test("what is read from afar is leased: it cannot be removed", leased and code == 74 and
         "lease" in err + said, (code, said, err))
    world.relay.go_on()
    _, err = process.communicate(timeout=PATIENCE)
    test("and the reading ends well", process.returncode == 0, err)
    test("the lease goes with it",
         comes(lambda: not glob.glob(os.path.join(world.store, world.run, "leases", "step-*"))))


def gone(world):
    """Once its headers and tables have come: while blocks are on their way."""
    world.relay.room = 1 << 20
    process = world.begin("verify", world.one)
    stands = comes(lambda: world.relay.held)
    world.process.send_signal(signal.SIGKILL)
    world.process.wait()
    world.relay.resets = 1.0  # data in the kernel's buffers is lost too, as with its machine
    world.relay.go_on()
    out, err = process.communicate(timeout=2 * PATIENCE)
    test("a ckptd that goes while it is read is no damage: exit code 69", stands and
         process.returncode == 69 and "DAMAGED" not in out + err, (process.returncode, out, err))
    code, said = world.ask("reader", "verify", world.one)
    test("and one that is not there likewise", code == 69 and "no ckptd answered" in said,
         (code, said))


world = Afar()
try:
    for part in (same_answers, cuts, damage, keeps, rights, leases, gone):
        part(world)
finally:
    world.close()
sys.exit(0 if lib_tap.end() else 1)
