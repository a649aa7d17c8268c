#!/usr/bin/env python3
"""outage - ckptd starts and serves its node while the bucket does not answer.

Goal: without the bucket a ckptd starts, saves, loads and lists from its own disk, and an alarm
gives the reason why nothing drains. When the bucket answers it is probed before the first byte goes
there, and the queue drains. A start of a run waits, and ends with 75 where attempts lie in the
bucket. A shutdown does not wait for it. Permanent errors (refused keys, no conditional write) end a
start of ckptd, and raise an alarm in one that serves. Method: Ceph's RADOS gateway, shut and opened
again; the strict server of the tests for errors that the gateway does not make.
"""

import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

import lib_rgw  # noqa: E402
import lib_tap  # noqa: E402
import lib_train  # noqa: E402
from lib_server import Fault, Server  # noqa: E402
from lib_store import PATIENCE, SAVER, wait_until  # noqa: E402
from lib_tap import test  # noqa: E402
from tier import alarms, drained, far_has, new_world, tier_of, train  # noqa: E402

OPTIONS = "--tier.quiet", "false", "--tier.retry_ms", "100", "--tier.wait_ms", "1000"
ALONE = *OPTIONS, "--tier.attempts", "local"
STALL_S = 15  # of a request
START_S = 12  # of a start that waits 5 s for the bucket
END_S = 8  # of a shutdown that waits 3 s for it


def loads(world, step):
    done = subprocess.run([SAVER, "read", world.server, str(step), "5000"], capture_output=True,
                          text=True, timeout=PATIENCE)
    return done.returncode == 0


def start(world, *options):
    """How long it took."""
    began = time.monotonic()
    world.start("--tier.store", world.far, *options)
    return time.monotonic() - began


def needs_it(world, gateway):
    """Attempts lie in the bucket."""
    lib_train.make_tokens(world.folder, lib_train.prose())
    gateway.shut()
    took = start(world, *OPTIONS)
    test("a ckptd starts while the bucket cannot be reached", took < START_S, took)
    process = train(world, "waits")
    said = process.communicate(timeout=PATIENCE)[1]
    test("a start of a run ends with 75, and says that it needs the far tier",
         process.returncode == 75 and "the far tier does not answer" in said,
         (process.returncode, said[-2000:]))
    gateway.open()
    code = 75  # until ckptd has looked at the bucket again
    end = time.monotonic() + PATIENCE
    while code == 75 and time.monotonic() < end:
        process = train(world, "waits", "--checkpoint.durability", "bucket")
        said = process.communicate(timeout=PATIENCE)[1]
        code = process.returncode
    test("the next one, with the bucket back, trains and drains, without ckptd started again",
         code == 0 and "is durable (bucket)" in said, said[-2000:])
    world.stop()


def goes_on(world, gateway):
    """No attempts lie in the bucket; saves of the outage drain after it."""
    gateway.shut()
    start(world, *ALONE)
    good, said = world.try_save(1)
    test("with tier.attempts = local a run is saved and loaded meanwhile",
         good and loads(world, 1), said)
    listed = world.listed(*world.where)
    tier, alarm = tier_of(world), alarms(world)
    test("it is listed as local, and an alarm names the reason",
         [entry["durability"] for entry in listed] == ["local"] and len(alarm) == 1 and
         " s: " + tier["offline"] in alarm[0] and tier["storage"] == "not reached yet" and
         tier["drained"] == 0 and tier["waiting"] == 1, (listed, alarm, tier))
    gateway.open()
    run = listed[0]["run"]
    wait_until(lambda: far_has(world, run, 1, 1) and drained(world)(),
               lambda: (tier_of(world), world.log()[-2000:]))
    code, out, err = world.cli("verify", "--store", world.far, run)
    test("when it answers it is probed, the alarm ends, and what was saved drains whole",
         code == 0 and not alarms(world) and "conditional PUT" in tier_of(world)["storage"] and
         "the tier far answers again" in world.log(), (out, err, tier_of(world)))
    tells_no_secret(world, gateway, run)
    world.stop()


def has_word(path, word):
    with open(path, "rb") as file:
        return word in file.read()


def tells_no_secret(world, gateway, run):
    """The server's key is neither in the programs' output nor in their files."""
    key = gateway.secret_key
    said = [world.cli(*words) for words in (
        ("status", "--json", *world.where), ("show", f"{run}@1", "--json", "--store", world.far),
        ("verify", "--store", world.far, run), ("show", f"{run}@9", "--store", world.far))]
    files = [os.path.join(root, name) for root, _, names in os.walk(world.store)
             for name in names] + [f"/proc/{world.process.pid}/environ"]
    holders = [path for path in files if has_word(path, key.encode())]
    test("the key of the bucket is in no log, answer, error or stored file, nor in ckptd's "
         "environment", key in gateway.environment.values() and len(files) > 3 and
         key not in world.log() and key not in str(said) and not holders, (holders, said))


def start_fails(world, *options):
    """The exit code of a ckptd that does not start, and its output."""
    before = len(world.log()) if world.process else 0
    world.spawn("--tier.store", world.far, *options)
    return world.process.wait(PATIENCE), world.log()[before:]


def stays_away(world, say, open_bucket):
    """Refusals while ckptd serves: an alarm, and nothing drains."""
    took = start(world, *ALONE)
    world.save_one(1)
    open_bucket()
    wait_until(lambda: any(say in text for text in alarms(world)),
               lambda: (alarms(world), world.log()[-2000:]))
    good, said = world.try_save(2)
    test(f"which in a ckptd that serves is an alarm ({say}); it saves on its own disk",
         good and loads(world, 2) and tier_of(world)["drained"] == 0 and
         tier_of(world)["storage"] == "not reached yet", (said, tier_of(world)))
    world.stop()
    return took


def wrong_keys(world, gateway):
    os.environ["AWS_SECRET_ACCESS_KEY"] = "another"
    code, said = start_fails(world, *ALONE)
    test("keys that the bucket refuses end the start of ckptd, not to be tried again",
         code == 78 and "SignatureDoesNotMatch" in said, (code, said))
    gateway.shut()
    stays_away(world, "SignatureDoesNotMatch", gateway.open)
    os.environ.update(gateway.environment)


def unconditional():
    server = Server(kind="none")
    os.environ.update(server.environment, HOLDFAST_S3_STALL_S=str(STALL_S))
    world = new_world(far="s3://checkpoints/far")[0]
    code, said = start_fails(world, *ALONE)
    test("so does a bucket that honours no conditional write",
         code == 78 and "honours If-None-Match neither" in said, (code, said))
    server.fault, server.stall_s = Fault(number=1, what="stall", times=1 << 30), 2 * STALL_S

    def answer():
        server.fault = None

    took = stays_away(world, "honours If-None-Match neither", answer)
    test("a start does not wait for a server that takes requests and never answers",
         took < START_S, took)
    test("not a byte is in a bucket that was refused",
         not any("/step-" in key for key in server.objects), list(server.objects))
    server.close()


def ends():
    """A bucket that takes the first request of a drain, and never answers again."""
    server = Server()
    os.environ.update(server.environment, HOLDFAST_S3_STALL_S=str(STALL_S))
    world = new_world(far="s3://checkpoints/far")[0]
    start(world, *ALONE)
    server.fault, server.stall_s = Fault(number=1, what="stall", times=1 << 30), 2 * STALL_S
    world.save_one(1)
    wait_until(lambda: server.fault.done > 0, world.log)
    began = time.monotonic()
    world.process.terminate()
    code = world.process.wait(PATIENCE)
    took = time.monotonic() - began
    test("a bucket that stops answering does not keep a ckptd that shuts down",
         code == 0 and took < END_S, (code, took, world.log()[-2000:]))
    server.fault = None
    start(world, *ALONE)
    run = world.listed(*world.where)[0]["run"]
    wait_until(lambda: far_has(world, run, 1, 1) and drained(world)(), world.log)
    test("and the next one drains what was left, whole",
         world.cli("verify", "--store", world.far, run)[0] == 0, world.log()[-2000:])
    world.stop()
    server.close()


def tell(_, gateway):
    os.environ.update(gateway.environment)
    needs_it(new_world(far="s3://checkpoints/needed")[0], gateway)
    goes_on(new_world(far="s3://checkpoints/alone")[0], gateway)
    wrong_keys(new_world(far="s3://checkpoints/keys")[0], gateway)
    unconditional()
    ends()
    return lib_tap.end()


if __name__ == "__main__":
    sys.exit(lib_rgw.main(tell))
