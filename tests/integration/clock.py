#!/usr/bin/env python3
"""clock - the wall clock jumps by years, forwards and backwards, under the real programs.

Goal: a jump stops nothing, changes no order, and can only delay actions by age: saves, the list,
gc's rule for temporary files, the schedule of the scrub (ckptd's shutdown: stuck_disk.py; rules of
retention: proto_retain). Method: build/shims/clock.so between the programs and the system, whose
offset this script writes while they run; the times of files stay those of the system. The monotonic
clock is moved by a time namespace where one is permitted.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import time

import lib_train
from lib_store import PATIENCE, YEAR, Clock, World, comes
from lib_tap import end, skip, test


def year_of(entry):
    return int(entry["time"][:4])


def saves(world, clock):
    now = time.gmtime().tm_year
    for step, jump in ((1, 0), (2, 0), (3, 30), (4, 30), (5, -20), (6, 10), (7, 0), (8, 0)):
        clock.set(jump)
        world.save([step])
    entries = world.listed()
    years = {entry["step"]: year_of(entry) - now for entry in entries}
    test("what is saved bears the date of the clock that jumped",
         29 <= years[3] <= 31 and -21 <= years[5] <= -19 and years[8] in (0, 1), years)
    test("the newest is the highest attempt's, whatever its date",
         [entry["step"] for entry in entries] == list(range(8, 0, -1)), entries)
    test("ckptd has the same order", [entry["step"] for entry in world.listed(
        "--server", world.server)] == list(range(8, 0, -1)))
    shown = json.loads(world.cli("show", world.run, "--server", world.server, "--json")[1])
    test("the newest is what a load would take", shown["step"] == 8, shown)
    bad = world.all_verify()
    test("each of them is whole", not bad, bad)


def at_work(path):
    """Makes the file and locks it, as its writer does; closing it ends the lock."""
    file = open(path, "w")
    fcntl.fcntl(file, 37, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))  # F_OFD_SETLK
    return file


def tools(world, clock):
    run = os.path.join(world.store, world.run)
    held = os.path.join(run, ".holdfast.tmp.0123456789abcdef")
    fresh = os.path.join(run, ".holdfast.tmp.0123456789abcdee")
    writer = at_work(held)
    open(fresh, "w").close()
    clock.set(-1)
    code, _, err = world.cli("gc", "--store", world.store)
    test("with the clock back gc leaves temporary files alone",
         code == 0 and os.path.exists(held) and os.path.exists(fresh), err)
    clock.set(1)
    code, _, err = world.cli("gc", "--store", world.store)
    test("with the clock ahead it leaves those of who is at work",
         code == 0 and os.path.exists(held) and not os.path.exists(fresh), err)
    writer.close()
    code, _, err = world.cli("gc", "--store", world.store)
    test("when he is gone it removes them", code == 0 and not os.path.exists(held), err)


def scrub(world, clock):
    def passes():
        return world.status()["scrub"]["passes"]
    world.launch("--scrub.rate", "1GiB", "--scrub.period_s", "2", "--scrub.start_ms", "0")
    test("the scrub goes round", comes(lambda: passes() >= 1))
    for jump in (30, -30, 0):
        clock.set(jump)
        before = passes()
        test(f"and again with the clock {jump} years off",
             comes(lambda: passes() >= before + 2))
    world.stop()


def filling(world, clock):
    clock.set(0)
    world.launch(env={**os.environ, "CLOCK_PASSES": "1"})
    world.save([100, 101])
    code, out, err = world.cli("status", "--server", world.server)
    test("without a rate nobody guesses when the disk is full",
         re.search("^full +unknown: ", out, re.M) and
         "disk are left; the time until it is full is unknown" in world.log(),
         (code, out, err, world.log()))
    clock.set(0, 90)  # of less than a minute the rate says nothing
    code, out, err = world.cli("status", "--server", world.server)
    test("status says in how many hours the disk is full, and which key ends that",
         re.search(r"^full +in \d+(\.\d)? h, unless retention.keep_last removes older", out, re.M),
         (code, out, err))
    lib_train.make_tokens(world.folder, lib_train.prose())
    said = subprocess.run(lib_train.command(world.folder, world.server, "filling",
                                            "--training.steps", 1), capture_output=True, text=True,
                          timeout=PATIENCE).stderr
    test("a run hears it when it starts, and the log has it",
         re.search(r"ckptd's disk is full in \d+\.\d hours at the rate of its last saves", said) and
         re.search(r"run filling begins attempt 1: \d+ bytes of the disk are left; it is full in "
                   r"\d+\.\d hours", world.log()), (said, world.log()))
    world.all_verify()  # the verified ones stay below
    world.stop()
    shutil.rmtree(os.path.join(world.store, "filling"))


def monotonic(world):
    """Some clock readings mean "never": the first seconds of a system are not among them."""
    with open("/proc/uptime") as file:
        up = int(float(file.read().split()[0]))
    name = "ckptd works {} its system started"
    for seconds, when in ((-up, "in the second in which"), (20 * YEAR, "twenty years after")):
        spaced = ["unshare", "--time", "--fork", "--kill-child", "--monotonic", str(seconds),
                  "--boottime", str(seconds)]
        if not shutil.which("unshare") or subprocess.run([*spaced, "true"],
                                                         capture_output=True).returncode != 0:
            skip([name.format(when)], "a time namespace cannot be had here")
            continue
        world.launch("--scrub.rate", "0", before=spaced)
        read_back = world.steps()[-2:]  # by the scrub, by verify in the round before: they stay
        step = read_back[-1] + 1
        world.save([step, step + 1])
        pruned = comes(lambda: world.cli("prune", world.run, "--server", world.server,
                                         "--keep-last", 2, "--most")[0] == 0)
        # The child is ckptd: its end is that of unshare.
        parent = world.process.pid
        with open(f"/proc/{parent}/task/{parent}/children") as children:
            os.kill(int(children.read()), signal.SIGTERM)
        code = world.process.wait(30)
        test(name.format(when), pruned and code == 0 and not world.all_verify() and
             world.steps() == [*read_back, step, step + 1],
             (pruned, code, world.steps(), world.log()))


def main():
    world = World()
    clock = Clock(world.folder)
    try:
        world.launch()
        saves(world, clock)
        world.stop()
        tools(world, clock)
        scrub(world, clock)
        filling(world, clock)
        os.environ.pop("LD_PRELOAD")
        monotonic(world)
    finally:
        world.close()
    end()


if __name__ == "__main__":
    main()
