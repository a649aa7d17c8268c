#!/usr/bin/env python3
"""health - the answers of list, health, status and the metrics when saves fail and when all is
damaged.

Goal: an operator's script learns by an exit code that ckptd cannot save, and that a run has no
whole checkpoint left. The age of the newest checkpoint and the failures in a row are reported by
run. A watchdog distinguishes a run that trains from one that hangs, waits in a queue, or is gone.
Health reports a save that fails in the trainer. Method: the real programs; a store that is full by
limits.checkpoints, damaged manifests, a stopped trainer, one without address space.
"""

import glob
import json
import os
import re
import resource
import signal
import subprocess
import time

import lib_train
from lib_store import PATIENCE, World, change, comes_to, is_sanitized
from lib_tap import end, test


def metric(path, name):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            with open(path) as file:
                lines = dict(line.rsplit(" ", 1) for line in file if line[0] != "#")
            return {key: float(value) for key, value in lines.items()}[name]
        except (OSError, KeyError):
            time.sleep(0.02)
    return None


def read(path):
    with open(path, errors="replace") as file:
        return file.read()


def full(world):
    numbers = os.path.join(world.folder, "metrics")
    world.launch("--limits.checkpoints", "2", "--limits.look_ms", "20", "--metrics.file", numbers,
                 "--metrics.every_ms", "100")
    empty = world.cli("health", *world.where)
    test("an empty store is healthy", empty[:2] == (0, "serving: true\nsaving: true\n"), empty)
    fits = world.cli("health", *world.where, "--expect", "1MiB")
    not_so = world.cli("health", *world.where, "--expect", "1000TiB", "--json")
    said = json.loads(not_so[1])
    test("with --expect health also says whether a save of that size fits", fits[:2] ==
         (0, "serving: true\nsaving: true\nexpected fits: true\n") and not_so[0] == 69 and
         said["saving"] and not said["expected"]["fits"] and
         "a save of 1000.00 TiB do not fit" in not_so[2] and "disk: " in not_so[2] and
         "memory: " in not_so[2], (fits, not_so))
    world.save([1, 2])
    code, out, _ = world.cli("health", *world.where)
    test("health tells the newest checkpoint of a run and its age", code == 0 and
         f"run {world.run}: newest checkpoint step 2, " in out and
         out.endswith("s old, failed saves in a row: 0\n"), out)
    refused = [world.try_save(step)[0] for step in (3, 4)]
    code, out, err = world.cli("health", *world.where, "--json")
    said = json.loads(out)
    test("after saves that were refused health is 69, with the reason and how many",
         refused == [False, False] and code == 69 and said["saving"] is False and
         "the store holds 2 checkpoints already" in said["reason"] and
         "the store holds 2 checkpoints already" in err and
         said["runs"][0]["failures_in_row"] == 2, (refused, code, out, err))
    test("the log tells of the first of them alone", world.log().count("warn commit: ") == 1,
         world.log())
    label = f'holdfast_run_failures_in_row{{run="{world.run}"}}'
    test("the metrics tell failures and age with the run as a label",
         comes_to(lambda: metric(numbers, label), 2) and
         metric(numbers, f'holdfast_run_newest_age_seconds{{run="{world.run}"}}') < PATIENCE and
         metric(numbers, "holdfast_health_saving") == 0)
    world.stop()
    test("at its end ckptd says which step of the run is safe, and where", re.search(
        rf"run {world.run}: step 2, attempt \d+ is safe \(local\)\n.*\bended\n$", world.log()),
         world.log())


def damaged(world):
    for manifest in glob.glob(os.path.join(world.store, world.run, "step-*", "manifest.json")):
        os.chmod(manifest, 0o600)
        change(manifest, 20)
        test("list is 1 when a checkpoint is damaged",
             world.cli("list", "--store", world.store)[0] == 1)
    world.launch()
    test("through a ckptd too", world.cli("list", *world.where)[0] == 1)
    code, out, _ = world.cli("health", *world.where)
    test("and so is health", code == 1 and "every checkpoint is damaged" in out, (code, out))
    world.stop()


def large(world):
    """Its private memory, above its limit and below it."""
    world.launch("--limits.private_bytes", "1MiB")
    status = world.status()
    process, pool = status["process"], status["pool"]["bytes_ready"]
    test("a ckptd that takes more memory of its own than it should says so, with the numbers",
         any("limits.private_bytes is 1048576" in text for text in status["alarms"]), status)
    # io_uring maps all of it; otherwise a page of 4 KiB is mapped once it was touched.
    mapped = pool if status["storage"].startswith("io_uring") else 0
    test("the pool is not of its own, and all parts make the whole",
         mapped <= process["bytes_shared"] and 0 < process["bytes_private"] < 64 << 20 and
         process["bytes_private"] + process["bytes_shared"] + process["bytes_files"] ==
         process["bytes_resident"] and process["jobs_waiting"] >= 0, process)
    world.stop()
    world.launch("--limits.private_bytes", "1GiB")
    test("within the limit there is no alarm", "limits.private_bytes" not in
         world.cli("status", *world.where)[1])
    world.stop()


def watched(world):
    """A trainer that steps, stands still, and is killed."""
    note = os.path.join(world.folder, "note")
    watch = ("watchdog", "w", *world.where, "--silent", "2", "--on-alarm",
             f'echo "$HOLDFAST_ALARM" >{note}')
    code, out, _ = world.cli(*watch)
    test("a watchdog hears that ckptd is gone, and passes it on",
         code == 1 and "no ckptd answered" in out and open(note).read() == out, (code, out))
    world.launch("--limits.hang_ms", "2000")
    lib_train.make_tokens(world.folder, lib_train.prose())
    trainer = subprocess.Popen(lib_train.command(world.folder, world.server, "w",
                                                 "--training.steps", "1000000", "--comm.ranks", "2",
                                                 "--checkpoint.interval", "1000000"),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seen, until = [], time.monotonic() + PATIENCE
    while time.monotonic() < until and not seen:
        seen = [said for said in [world.cli(*watch)] if said[0] == 0]
    until = time.monotonic() + 2.5  # longer than --silent
    while time.monotonic() < until:
        seen.append(world.cli(*watch))
    test("a run that trains is fine, also long after its last save",
         set(seen) == {(0, "trains\n", "")}, seen[-3:])
    trainer.send_signal(signal.SIGSTOP)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and "hangs" not in seen[-1][1]:
        seen.append(world.cli(*watch))
    alarms = world.status()["alarms"]
    test("ranks that are connected and do nothing are an alarm, here and in status",
         seen[-1][0] == 1 and "run w hangs: a rank has done nothing for " in seen[-1][1] and
         any(text.startswith("run w hangs: rank ") and "of 2 here" in text for text in alarms),
         (seen[-1], alarms))
    trainer.kill()
    trainer.wait()
    gone, queued = world.cli(*watch, "--json"), world.cli(*watch, "--queued", "echo PD")
    test("a run without ranks is an alarm, unless it waits to be started",
         gone[0] == 1 and json.loads(gone[1])["alarm"] == "run w: no rank is connected" and
         queued[:2] == (0, "queued\n") and world.cli(*watch, "--queued", ":")[0] == 1,
         (gone, queued))
    world.stop()


def cramped(world):
    """A trainer that cannot map the memory of a restarted ckptd: its address space is limited."""
    world.launch()
    log = os.path.join(world.folder, "cramped.log")
    with open(log, "wb") as out:
        trainer = subprocess.Popen(lib_train.command(world.folder, world.server, "cramped",
                                                     "--debug.pause_at_step", 3),
                                   stdout=out, stderr=out)
    assert comes_to(lambda: "pauses within step 3" in read(log), True), read(log)
    world.process.kill()
    world.process.wait()
    world.launch()
    resource.prlimit(trainer.pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    trainer.send_signal(signal.SIGTERM)
    told = "save{} in a row failed at the client: could not reserve addresses for shared memory"
    alarm = f"alarm: run cramped: 1 {told.format('s')}\n"
    test("a save that fails in the trainer is told by health", comes_to(
        lambda: alarm in world.cli("health", *world.where)[1], True), read(log))
    code, _, err = world.cli("health", *world.where)
    test("which is 69 for it", code == 69 and f"run cramped: 1 {told.format('')} (" in err, err)
    trainer.kill()
    trainer.wait()
    world.stop()


def main():
    world = World()
    try:
        full(world)
        damaged(world)
        large(world)
        watched(world)
        if not is_sanitized("trainer"):  # a sanitizer needs additional address space
            cramped(world)
    finally:
        world.close()
    end()


main()
