#!/usr/bin/env python3
"""remote - ranks whose node has no ckptd: they save into, and load from, that of another.

Goal: a run over TCP and TLS has the losses and weights of one on shared memory, bit for bit, also
when ranks or ckptd are killed with SIGKILL, when links are cut in mid-stream or stall, when ckptd's
memory holds only a part of an image, and without encryption. ckptd asks its ranks to save and to
stop, and says what they were doing, as on its own node. A client with another run's certificate, or
none, gets nothing. Method: the real trainer and ckptd with certificates of a test
authority. A relay in front of the bulk plane cuts its connections every so many bytes.
"""

import json
import os
import re
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lib_tap  # noqa: E402
import lib_train  # noqa: E402

lib_tap.need_programs("openssl")
from lib_network import Network  # noqa: E402
from lib_relay import Relay  # noqa: E402
from lib_store import PATIENCE, comes  # noqa: E402
from lib_tap import test  # noqa: E402

STEPS = 6
RUN = "far"


def train(world, name, server, *options, identity="trainer", run=RUN):
    return lib_train.Trainer(
        lib_train.command(world.folder, server, run, "--training.steps", STEPS,
                          "--checkpoint.interval", "1", "--checkpoint.when_busy", "wait",
                          "--checkpoint.required", "--comm.ranks", "2",
                          "--metrics.loss_file", os.path.join(world.folder, name + ".loss"),
                          *options), env={**os.environ, "HOLDFAST_TLS": world.path(identity)})


def ends(process, code=0):
    said = process.communicate(timeout=3 * PATIENCE)[1]
    return code is None or process.returncode == code, said


def losses(world, name):
    with open(os.path.join(world.folder, name + ".loss")) as file:
        return {int(line.split()[0]): line for line in file}


def is_the_same(world, name, run=RUN):
    """As the run on shared memory: every loss, and every byte of the last checkpoint."""
    code, out, err = world.cli("diff", *world.where, f"near@{STEPS}", f"{run}@{STEPS}")
    good = losses(world, name) == losses(world, "near") and code == 0
    return good, (out, err, world.log()[-2000:])


def start(world, *options):
    world.start("--tls.listen", world.address, "--tls.bulk", world.bulk, "--tls.directory",
                world.path("node"), "--tls.bulk_advertise", world.relay.address, *options)


def kill_and_restart(world, *options):
    world.process.send_signal(signal.SIGKILL)
    world.process.wait()
    world.relay.go_on()
    start(world, *options)


def whole(world):
    good, said = ends(train(world, "whole", world.address))
    test("a run whose ckptd is on another node trains and saves", good, said)
    test("as one on shared memory, bit for bit", *is_the_same(world, "whole"))


def resumed(world):
    process = train(world, "killed", world.address, "--training.steps", STEPS, run="killed",
                    identity="operator")
    comes(lambda: "run killed, step 2" in world.log())
    process.kill()
    process.communicate()
    good, said = ends(train(world, "killed", world.address, run="killed", identity="operator"))
    test("ranks that are killed resume from what was acknowledged", good, said)
    test("and end as if they had not been", *is_the_same(world, "killed", "killed"))


def cut(world):
    relay = world.relay
    relay.every, relay.times, relay.cuts = 300_000, 12, 0
    good, said = ends(train(world, "cut", world.address, run="cut", identity="operator"))
    test("a run goes on over links that are cut in mid-stream", good and relay.cuts == 12,
         (relay.cuts, said))
    test("and no bit differs", *is_the_same(world, "cut", "cut"))
    relay.every, relay.times, relay.cuts = 200_000, 4, 0
    good, said = ends(train(world, "cut", world.address, "--training.steps", STEPS + 1, run="cut",
                            identity="operator"))
    test("so does a load", good and f"loaded step {STEPS} " in said, said)
    relay.every = None


def other_ckptd(world):
    """ckptd dies in mid-stream, and another comes; then one whose memory is short."""
    passed = world.relay.passed
    process = train(world, "lost", world.address, run="lost", identity="operator")
    comes(lambda: world.relay.passed > passed + 100_000)
    world.relay.hold()
    kill_and_restart(world, "--memory.pool_bytes", "2MiB", "--memory.segment_bytes", "1MiB")
    ends(process, None)
    good, said = ends(train(world, "lost", world.address, run="lost", identity="operator"))
    test("after a ckptd that died in mid-stream, and through windows, a run ends", good, said)
    test("as if nothing had been", *is_the_same(world, "lost", "lost"))


def said_by(process):
    """So far; the process goes on writing where it is."""
    return os.pread(process.said.fileno(), 1 << 20, 0).decode(errors="replace")


LONG = "--training.steps", 1000000, "--checkpoint.interval", 1000000


def asked(world):
    process = train(world, "asked", world.address, *LONG, run="asked", identity="operator")
    assert comes(lambda: "step: 10 " in re.sub(" +", " ", said_by(process))), said_by(process)
    code, out, _ = world.cli("save", "asked", *world.where)
    test("ckpt-cli save asks the ranks of another node", code == 0 and "2 ranks" in out, out)
    test("they save long before their interval is over",
         comes(lambda: " is durable " in said_by(process)), said_by(process))
    kill_and_restart(world, "--limits.hang_ms", "1000")
    test("after a restart of ckptd they are there again before their next save",
         comes(lambda: world.cli("stop", "asked", *world.where)[0] == 0), said_by(process))
    good, said = ends(process, 78)
    test("ckpt-cli stop ends them without a further save before", good, said)
    steps = [int(step) for step in re.findall(r"step (\d+) is durable", said)]
    last = max(losses(world, "asked"))
    test("but for that of the last step", len(steps) == 2 and steps[1] == last, (steps, last))
    test("of ranks that end by themselves none is said to be gone",
         "run asked, attempt 1: rank" not in world.log(), world.log()[-2000:])


def held(world):
    process = train(world, "held", world.address, *LONG, "--debug.pause_at_step", 8, run="held",
                    identity="operator")
    assert comes(lambda: "pauses within step 8" in said_by(process)), said_by(process)
    return process


def hangs(world):
    return comes(lambda: re.search(r"run held hangs: rank [01] of 2 here has done nothing for "
                                   r"\d+ s: step 8, in ", json.dumps(world.status())))


def gone(world, attempt):
    """One rank waits in a call, the other computes: the first that is noticed is named."""
    return comes(lambda: re.search(
        rf"run held, attempt {attempt}: rank [01] is gone: step 8, in ([a-z_ ]+ of [a-z_]+|norm) "
        r"\(lane [a-z]+, operation \d+(, \d+ bytes)?\) for", world.log()))


def doing(world):
    """The same launcher starts again at once, before ckptd gives up the connections of the dead."""
    world.stop()
    start(world, "--limits.hang_ms", "1000")
    os.environ["HOLDFAST_LAUNCH_TOKEN"] = "one"
    asked(world)
    process = held(world)
    test("an alarm names a rank of another node that hangs, and its step", hangs(world),
         world.status())
    process.kill()
    process.communicate()
    process = held(world)
    test("ckptd's log says in which call a killed rank was", gone(world, 1), world.log()[-2000:])
    comes(lambda: '"silent_doing": "step 8, in ' in json.dumps(world.status()))
    process.send_signal(signal.SIGSTOP)
    test("an alarm names a rank that is stopped", hangs(world), world.status())
    process.kill()
    process.communicate()
    test("without another start it is in the log when the rank does not come back", gone(world, 2),
         world.log()[-2000:])
    del os.environ["HOLDFAST_LAUNCH_TOKEN"]


def strangers(world):
    world.issue("other", "holdfast://trainer/other")
    world.issue("reader", "holdfast://reader")
    for name, what in (("other", "another run's trainer"), ("reader", "a reader")):
        process = train(world, name, world.address, "--training.steps", STEPS + 1, identity=name)
        good, said = ends(process, 78)
        test(f"{what} may not save into the run", good and "may" in said, said)
    world.stop()
    world.start("--tls.listen", world.address, "--tls.directory", world.path("node"))
    good, said = ends(train(world, "none", world.address), 78)
    test("without a bulk plane a rank of another node is refused, with what to set",
         good and "tls.bulk" in said and "needs memory that is shared" in said, said)


def plain(world):
    world.stop()
    start(world, "--tls.bulk_plain")
    good, said = ends(train(world, "plain", world.address, run="plain", identity="operator"))
    test("on one machine the bytes may go without TLS", good, said)
    test("with the same bits", *is_the_same(world, "plain", "plain"))


def main():
    world = Network()
    world.relay = Relay(world.bulk)
    try:
        lib_train.make_tokens(world.folder, lib_train.prose())
        world.issue("trainer", f"holdfast://trainer/{RUN}")
        world.issue("operator", "holdfast://operator/anna")
        start(world)
        good, said = ends(train(world, "near", world.server, run="near"))
        assert good, said
        whole(world)
        resumed(world)
        cut(world)
        other_ckptd(world)
        doing(world)
        plain(world)
        strangers(world)
        world.stop()
    finally:
        world.close()
    lib_tap.end()


main()
