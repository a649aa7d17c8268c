#!/usr/bin/env python3
"""space - ckpt-cli du, gc, status (--watch): used space, rubbish, activity.

Goal: du's sums are those of the files, by run, checkpoint and kind of tensor; gc removes a crash's
remains and nothing else, and not while another process has the store (clients_cli_power cuts it at
each call). watch shows saves and rates, and continues when ckptd comes back; on a directory it and
status show its files. Method: a real ckptd and real saves (lib_cli.py). A crash's remains are made
by hand in copies of the store, byte counts are taken with os.walk.
"""

import fcntl
import json
import os
import re
import shutil
import struct
import subprocess
import threading
import time

from lib_cli import BYTES, CLI, MODEL, cli, main, test
from lib_store import change, uncommit

SOFT_HOUR = 3600
STEP = "step-00000001-a0001"


def tree(folder):
    return {os.path.relpath(os.path.join(root, name), folder): os.path.getsize(
        os.path.join(root, name)) for root, _, files in os.walk(folder) for name in files
        if name != ".holdfast.lock"}


def steps_bytes(store):
    return sum(size for name, size in tree(store).items() if "/step-" in name)


@test
def du_gives_the_sums_of_the_files_by_run_checkpoint_and_kind(bed):
    report = json.loads(cli("du", "--store", bed.store, "--json"))
    assert report["bytes"] == steps_bytes(bed.store) and report["rubbish"] == 0
    (run,) = report["runs"]
    assert run["run"] == "trip" and run["bytes"] == report["bytes"] and run["shared"] == 0
    listed = json.loads(cli("list", "--store", bed.store, "--json"))
    assert len(run["checkpoints"]) == len(listed)
    kinds = {}
    for name, dtype, shape in MODEL:
        kind = "weights" if not name.startswith("optimizer.") else name.split(".tok")[0]
        kind = "optimizer" if kind == "optimizer.step" else kind
        size = BYTES[dtype]
        for extent in shape:
            size *= extent
        kinds[kind] = kinds.get(kind, 0) + size
    for checkpoint in run["checkpoints"]:
        found = dict(checkpoint["kinds"])
        found.pop("headers, checksums, manifest")
        assert found == kinds, (found, kinds)
        assert sum(checkpoint["kinds"].values()) == checkpoint["bytes"]
        step, attempt = checkpoint["checkpoint"].split("@")[1].split("-a")
        assert checkpoint["bytes"] == sum(tree(bed.step_folder(int(step), int(attempt))).values())
    one = json.loads(cli("du", "trip@1-a1", "--store", bed.store, "--json"))
    assert [c["checkpoint"] for c in one["runs"][0]["checkpoints"]] == ["trip@1-a1"]
    text = cli("du", "trip@1-a1", "--store", bed.store)
    assert "weights" in text and "optimizer.exp_avg" in text
    assert "trip@2-a2" in cli("du", "--store", bed.store)


@test
def du_and_gc_keep_to_the_order_of_list(bed):
    store = bed.copy("order")
    runs = ["zulu", "alpha", "b10", "b9", "mike", "Upper", "trip"]
    for run in runs[:-1]:  # whose manifests are another's: damaged, and listed all the same
        shutil.copytree(os.path.join(store, "trip"), os.path.join(store, run))
        os.mkdir(os.path.join(store, run, "pins"))
        with open(os.path.join(store, run, "pins", "step-00000077-a0001"), "w"):
            pass
    listed = [f"{one['run']}@{one['step']}-a{one['attempt']}"
              for one in json.loads(cli("list", "--store", store, "--json"))]
    report = json.loads(cli("du", "--store", store, "--json"))
    assert [run["run"] for run in report["runs"]] == sorted(runs), report
    assert [c["checkpoint"] for run in report["runs"] for c in run["checkpoints"]] == listed
    found = [one["name"] for one in
             json.loads(cli("gc", "--store", store, "--dry-run", "--json"))["rubbish"]]
    assert len(found) == 6 and found == sorted(found), found


@test
def du_tells_what_is_shared_foreign_rubbish_or_damaged(bed):
    store = bed.copy("du")
    shard = bed.shards(1, 1)[0].replace(bed.store, store)
    os.link(shard, os.path.join(bed.folder, "elsewhere"))
    with open(os.path.join(os.path.dirname(shard), "notes.txt"), "w") as file:
        file.write("mine")
    shutil.copytree(os.path.dirname(bed.shards(2, 2)[0]),
                    os.path.join(store, "trip", "step-00000007-a0002"))
    uncommit(os.path.join(store, "trip", "step-00000007-a0002"))
    change(os.path.join(store, "trip", "step-00000001-a0003", "manifest.json"), 5000)
    report = json.loads(cli("du", "--store", store, "--json"))
    assert report["shared"] == os.path.getsize(shard) and report["other"] == 4
    assert report["rubbish"] == sum(os.path.getsize(path) for path in bed.shards(2, 2))
    damaged = [c["checkpoint"] for c in report["runs"][0]["checkpoints"] if c["damage"]]
    assert damaged == ["trip@1-a3"], report
    assert report["bytes"] == steps_bytes(store)


def old(path):
    then = time.time() - SOFT_HOUR
    os.utime(path, (then, then))


def litter(bed, name):
    """A copy of the store with all remains of a crash, and the names of the files that stay."""
    store = bed.copy(name)
    run = os.path.join(store, "trip")
    good = tree(store)

    def put(path, content=b"x"):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def unfinished(step):
        shutil.copytree(os.path.join(run, STEP), os.path.join(run, step))
        uncommit(os.path.join(run, step))

    unfinished("step-00000008-a0003")
    unfinished("step-00000009-a0003")
    put(os.path.join(run, "tombstones", "step-00000009-a0003"), b"")
    put(os.path.join(run, "tombstones", "step-00000002-a0002"), b"")  # cut before anything went
    put(os.path.join(run, "pins", "step-00000077-a0001"))
    pin = put(os.path.join(run, "pins", STEP))
    put(os.path.join(run, "leases", STEP + ".0123456789abcdef"))
    for folder in (store, run, os.path.join(run, STEP), os.path.join(run, "pins")):
        old(put(os.path.join(folder, ".holdfast.tmp.0123456789abcdef")))
    young = put(os.path.join(run, ".holdfast.tmp.00000000000000aa"))
    unfinished("step-00000010-a0003")
    mine = put(os.path.join(run, "step-00000010-a0003", "mine.txt"))
    good.update({os.path.relpath(path, store): 1 for path in (pin, young, mine)})
    return store, good


@test
def gc_removes_what_a_crash_leaves_and_nothing_else(bed):
    store, stays = litter(bed, "gc")
    before = tree(store)
    plan = json.loads(cli("gc", "--store", store, "--dry-run", "--json"))
    assert plan["dry_run"] and not plan["served"] and tree(store) == before
    done = json.loads(cli("gc", "--store", store, "--json"))
    assert done["rubbish"] == plan["rubbish"], (plan, done)
    assert done["bytes"] == plan["bytes"], (plan, done)
    kinds = {entry["what"] for entry in done["rubbish"]}
    assert len(kinds) == 4, kinds
    assert tree(store) == stays, set(tree(store)) ^ set(stays)
    assert not os.path.exists(os.path.join(store, "trip", "step-00000008-a0003"))
    for entry in json.loads(cli("list", "--store", store, "--json")):
        cli("verify", f"trip@{entry['step']}-a{entry['attempt']}", "--store", store)
    assert json.loads(cli("gc", "--store", store, "--json"))["bytes"] <= 1
    assert "removed" in cli("gc", "--store", store)


@test
def gc_names_what_it_cannot_look_into_and_ends_with_74(bed):
    store, _ = litter(bed, "unread")
    manifest = os.path.join(store, "trip", STEP, "manifest.json")
    os.rename(manifest, manifest + ".moved")
    os.symlink("manifest.json.moved", manifest)  # which storage does not follow
    for options in (["--dry-run"], []):
        done = subprocess.run([CLI, "gc", "--store", store, "--json", *options],
                              capture_output=True)
        unknown = [entry["name"] for entry in json.loads(done.stdout)["rubbish"] if entry["error"]]
        assert done.returncode == 74 and b"/manifest.json" in done.stderr, done
        assert unknown == ["trip/" + STEP], done
    assert "kept: " in cli("gc", "--store", store, want=74)


@test
def gc_leaves_a_served_store_and_a_lease_that_is_held_alone(bed):
    assert json.loads(cli("gc", "--store", bed.store, "--dry-run", "--json"))["served"]
    store = bed.copy("leased")
    path = os.path.join(store, "trip", "leases", STEP + ".0123456789abcdef")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        whole = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(file, 37, whole)  # F_OFD_SETLK
        cli("gc", "--store", store)
        assert os.path.exists(path)
    cli("gc", "--store", store)
    assert not os.path.exists(path)


class Watch:
    """A watch whose lines are collected while it runs."""

    def __init__(self, *words):
        self.seen, self.arrived = [], threading.Condition()
        self.process = subprocess.Popen([CLI, "status", "--watch", "--json", "--interval", "0.05",
                                         *words],
                                        stdout=subprocess.PIPE, text=True)
        self.thread = threading.Thread(target=self.collect)
        self.thread.start()

    def collect(self):
        for line in self.process.stdout:
            with self.arrived:
                self.seen.append(json.loads(line))
                self.arrived.notify()

    def wait_for(self, what, start=0):
        with self.arrived:
            assert self.arrived.wait_for(lambda: any(map(what, self.seen[start:])), 30), \
                self.seen[-3:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.thread.join()


@test
def watch_tells_commits_and_rates_and_goes_on_after_a_restart(bed):
    lines = cli("status", "--watch", "--server", bed.server, "--count", 2, "--interval",
                0.1).splitlines()
    assert len(lines) == 2 and all("newest: trip@" in line for line in lines), lines
    with Watch("--server", bed.server) as watch:
        watch.wait_for(lambda line: "saves" in line)
        bed.save_one(50, ranks=2, seed=50)
        watch.wait_for(lambda line: line["last_commit"]["step"] == 50)
        watch.wait_for(lambda line: line["committed_bytes_per_second"] > 0)
        bed.stop()
        watch.wait_for(lambda line: "unavailable" in line)
        bed.launch()
        watch.wait_for(lambda line: "saves" in line, len(watch.seen))
    assert all(set(line) >= {"time", "saves", "last_commit", "since_start"}
               for line in watch.seen if "unavailable" not in line)


@test
def watch_on_a_directory_tells_what_is_committed_in_it(bed):
    with Watch("--store", bed.store) as watch:
        watch.wait_for(lambda line: line["since_start"]["commits"] == 0)
        bed.save_one(60, ranks=2, seed=60)
        watch.wait_for(lambda line: line["last_commit"]["step"] == 60)
        watch.wait_for(lambda line: line["committed_bytes_per_second"] > 0)
    (saved,) = (e for e in json.loads(cli("list", "--store", bed.store, "--json"))
                if e["step"] == 60)
    assert watch.seen[-1]["since_start"] == {"commits": 1, "bytes_committed": saved["bytes"]}
    assert not any("read_bytes_per_second" in line for line in watch.seen)
    (line,) = cli("status", "--watch", "--store", bed.store, "--count", 1).splitlines()
    assert f"newest: trip@60-a{saved['attempt']} of {saved['time']}  0 saves" in line, line


@test
def status_of_a_directory_tells_what_its_files_do(bed):
    store = bed.copy("looked-at")
    listed = json.loads(cli("list", "--store", store, "--json"))
    status = json.loads(cli("status", "--store", store, "--json"))
    newest = max(listed, key=lambda entry: entry["time"])
    assert {key: newest[key] for key in ("run", "step", "attempt", "bytes", "time", "durability")} \
        == status["last_commit"], (newest, status)
    assert status["catalog"] == {
        "runs": 1, "checkpoints": len(listed), "damaged": 0, "unreadable": [],
        "bytes": sum(entry["bytes"] for entry in listed)}, status
    assert status["store"] == store and status["saves"] == [], status
    assert [json.loads(cli("status", "--store", where, "--json"))["in_use"]
            for where in (store, bed.store)] == [False, True], status
    disk, system = status["disk"], os.statvfs(store)
    assert disk["bytes_used"] + disk["bytes_free"] == disk["bytes_total"], disk
    assert abs(disk["bytes_free"] - system.f_bavail * system.f_frsize) < 1 << 30, disk
    assert re.search(rf"^catalog.checkpoints +{len(listed)}$",
                     cli("status", "--store", store, "--all"), re.M)
    screen = cli("status", "--store", store)
    assert f"checkpoints  {len(listed)} checkpoints in 1 run" in screen, screen
    assert len(screen.splitlines()) <= 24, screen
    # One that is not committed, one that is damaged.
    uncommit(os.path.join(store, "trip", STEP))
    shards = [size for name, size in tree(store).items() if f"/{STEP}/shard" in name]
    change(os.path.join(store, "trip", "step-00000002-a0002", "manifest.json"), 20)
    status = json.loads(cli("status", "--store", store, "--json"))
    assert status["saves"] == [{"run": "trip", "step": 1, "attempt": 1, "bytes": sum(shards),
                                "files": len(shards), "durability": "accepted"}], status
    assert status["catalog"]["damaged"] == 1, status
    assert status["catalog"]["checkpoints"] == len(listed) - 1, status
    text = cli("status", "--watch", "--store", store, "--count", 1)
    assert "  unfinished trip@1-a1  " in text and f" in {len(shards)} files\n" in text, text


@test
def a_run_that_cannot_be_read_is_named_and_the_others_are_told(bed):
    store = bed.copy("unreadable")
    shutil.copytree(os.path.join(store, "trip"), os.path.join(store, "trap"))
    os.makedirs(os.path.join(store, "trap", "elsewhere"))
    shutil.rmtree(os.path.join(store, "trap", "quarantine"), ignore_errors=True)
    os.symlink("elsewhere", os.path.join(store, "trap", "quarantine"))  # no link is followed
    before = json.loads(cli("list", "trip", "--store", store, "--json"))
    bad, *good = json.loads(cli("list", "--store", store, "--json", want=1))
    assert bad["run"] == "trap" and bad["attempt"] == 0 and good == before, (bad, good)
    assert bad["damage"].startswith("the run could not be read: "), bad
    lines = cli("list", "--store", store, want=1).splitlines()
    assert lines[1].startswith("trap ") and "UNREADABLE: the run could" in lines[1], lines
    assert len(lines) == 2 + len(before), lines
    catalog = json.loads(cli("status", "--store", store, "--json"))["catalog"]
    assert [run["run"] for run in catalog["unreadable"]] == ["trap"], catalog
    assert (catalog["runs"], catalog["checkpoints"]) == (2, len(before)), catalog
    cli("list", "trap", "--store", store, want=74)


def unreadable(path):
    """In place of a folder a link, which nothing follows; `path` is put back by os.rename."""
    os.makedirs(path, exist_ok=True)
    os.rename(path, path + ".away")
    os.symlink(os.path.basename(path) + ".away", path)
    return path


def readable(path):
    os.unlink(path)
    os.rename(path + ".away", path)


@test
def pins_that_cannot_be_read_hide_no_checkpoint_and_make_no_plan(bed):
    store = bed.copy("pinned")
    before = json.loads(cli("list", "--store", store, "--json"))
    pins = unreadable(os.path.join(store, "trip", "pins"))
    for entry in before:
        entry.update(pinned=True, pin_note="its note could not be read")
    entries = json.loads(cli("list", "--store", store, "--json"))
    assert entries == before, entries
    assert json.loads(cli("show", "trip", "--store", store, "--json"))["pinned"]
    said = cli("prune", "trip", "--keep-last", 1, "--dry-run", "--store", store, want=74)
    assert "pins" in said and "goes" not in said, said
    readable(pins)
    said = cli("prune", "trip", "--keep-last", 1, "--dry-run", "--store", store)
    assert "nothing was touched" in said, said
    # One whose manifest is lost is no unfinished save, and its run is readable.
    cli("pin", "trip@1-a1", "--store", store)
    os.unlink(os.path.join(store, "trip", STEP, "manifest.json"))
    status = json.loads(cli("status", "--store", store, "--json"))
    assert status["saves"] == [] and status["catalog"]["unreadable"] == [], status


@test
def a_damaged_checkpoint_that_is_named_whole_is_pinned_from_both_sides(bed):
    store = bed.copy("damaged-pin")
    change(os.path.join(store, "trip", STEP, "manifest.json"), 20)
    cli("pin", "trip@1-a1", "--store", store)
    cli("pin", "trip@1-a9", "--store", store, want=66)
    assert os.path.exists(os.path.join(store, "trip", "pins", STEP))


@test
def a_look_that_fails_makes_no_commits(bed):
    store = bed.copy("looked")
    quarantine = os.path.join(store, "trip", "quarantine")
    with Watch("--store", store) as watch:
        watch.wait_for(lambda line: line["last_commit"] is not None)
        unreadable(quarantine)
        watch.wait_for(lambda line: line["last_commit"] is None)
        readable(quarantine)
        watch.wait_for(lambda line: line["last_commit"] is not None, len(watch.seen))
    assert all(line["since_start"]["commits"] == 0 for line in watch.seen), watch.seen[-3:]


if __name__ == "__main__":
    main()
