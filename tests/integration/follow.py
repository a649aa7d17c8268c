#!/usr/bin/env python3
"""follow - ckpt-cli follow: the weights of each checkpoint of a run, as it is committed.

Goal: a follower gives the saved bits, whole or in the requested slices and types. They are ordered
by attempt, then step, and never go back. A restarted follower continues where it was. A stopped one
prevents no commit, and continues with the newest. Method: a real ckptd, a run that saves meanwhile,
followers that are stopped (SIGSTOP) and killed, and the stock library reads their files.
"""

import json
import os
import signal
import subprocess
import sys
import threading

import lib_cli
import lib_tap
from lib_cli import BYTES, MODEL, UNSIGNED, Bed, bits_of, cli, rounded, test
from lib_store import CLI, change

lib_tap.need("numpy", "safetensors")
import numpy  # noqa: E402
import safetensors  # noqa: E402

WEIGHTS = [entry for entry in MODEL if not entry[0].startswith("optimizer.")]
PATIENCE = 60


class Follower:
    """A `ckpt-cli follow trip --json` that runs; next() is its next line."""

    def __init__(self, *options):
        self.process = subprocess.Popen([CLI, "follow", "trip", "--json", *map(str, options)],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.alarm = threading.Timer(PATIENCE, self.process.kill)
        self.alarm.start()

    def next(self):
        line = self.process.stdout.readline()
        assert line, ("the follower ended", self.process.wait(), self.process.stderr.read())
        return json.loads(line)

    def end(self, number=signal.SIGKILL):
        self.alarm.cancel()
        self.process.send_signal(number)
        self.process.wait(PATIENCE)
        return self.process.stderr.read()


def order(version):
    return version["attempt"], version["step"]


def held(path):
    """{name: (dtype, bits)} of a file, by the stock library."""
    with open(path, "rb") as file:
        found = safetensors.deserialize(file.read())
    return {name: (tensor["dtype"],
                   numpy.frombuffer(tensor["data"], UNSIGNED[BYTES[tensor["dtype"]]]).reshape(
                       tensor["shape"])) for name, tensor in found}


def check_whole(path, step):
    found = held(path)
    assert set(found) == {name for name, *_ in WEIGHTS}, set(found)
    for index, (name, dtype, _) in enumerate(MODEL):
        if name in found:
            assert found[name][0] == dtype, name
            assert numpy.array_equal(found[name][1], bits_of(index, step)), (name, step)


def folder_of(bed, name):
    path = os.path.join(bed.folder, name)
    os.makedirs(path, exist_ok=True)
    return path


@test
def the_newest_comes_first_with_the_digests_of_its_manifest(bed):
    follower = Follower(*bed.where, "--count", 1)
    version = follower.next()
    assert follower.process.wait(PATIENCE) == 0
    follower.end()
    assert order(version) == (3, 1), version
    shown = [line.split() for line in cli("show", "trip@1-a3", *bed.where).splitlines()]
    wanted = {line[0]: line[-1] for line in shown if line and len(line[-1]) == 32}
    assert {t["name"]: t["digest"] for t in version["tensors"]} == {
        name: wanted[name] for name, *_ in WEIGHTS}
    assert version["bytes_from_memory"] > 0, version
    text = cli("follow", "trip", *bed.where, "--count", 1)
    assert text.startswith("trip@1-a3  ") and wanted["experts"] in text, text


@test
def files_hold_the_bits_that_were_saved(bed):
    folder = folder_of(bed, "whole")
    said = json.loads(cli("follow", "trip", *bed.where, "--json", "--output", folder, "--count", 1))
    assert os.listdir(folder) == ["trip-step-00000001-a0003.safetensors"]
    assert said["file"] == os.path.join(folder, os.listdir(folder)[0])
    check_whole(said["file"], 1)
    again = folder_of(bed, "offline")
    cli("follow", "trip", "--store", bed.store, "--output", again, "--count", 1)
    check_whole(os.path.join(again, os.listdir(again)[0]), 1)


@test
def slices_and_types_are_those_that_were_asked_for(bed):
    folder = folder_of(bed, "slices")
    cli("follow", "trip", *bed.where, "--output", folder, "--count", 1, "--dtype", "bf16",
        "--only", "tok*,experts,tiny,layers.0.attention.wq.weight", "--except", "tiny=keep",
        "--slice", "tok_*=3:9,:100;experts=2:,:,1:3,:;*.wq.weight=:,810:")
    found = held(os.path.join(folder, os.listdir(folder)[0]))
    boxes = {0: numpy.s_[3:9, :100], 1: numpy.s_[:, 810:], 4: numpy.s_[2:, :, 1:3, :],
             7: numpy.s_[:]}
    assert set(found) == {MODEL[index][0] for index in boxes}
    for index, box in boxes.items():
        name, stored, _ = MODEL[index]
        bits = bits_of(index, 1)[box]
        if stored in ("F32", "F16"):
            dtype, values = rounded(bits, stored, "bf16")
            given = lib_cli.as_double(found[name][1], "BF16")
            assert found[name][0] == dtype
            assert numpy.array_equal(given, values, equal_nan=True), name
        else:
            assert found[name][0] == stored and numpy.array_equal(found[name][1], bits), name


@test
def a_slice_that_does_not_fit_is_one_line(bed):
    for bad in ("tok_embeddings.weight=0:518,:", "tok_embeddings.weight=0:1", "tiny=1:1",
                "tiny=a:b", "tiny", "tiny=0:1,:"):
        said = cli("follow", "trip", *bed.where, "--count", 1, "--slice", bad, want=2)
        assert bad.split("=")[0] in said and said.count("\n") == 1, said


@test
def a_follower_that_is_started_again_goes_on_behind_what_it_left(bed):
    folder = folder_of(bed, "again")
    stale = ".trip-step-00000009-a0002.safetensors.part"
    for name in (stale, "other.txt", ".trip.part"):
        with open(os.path.join(folder, name), "w"):
            pass
    cli("follow", "trip", *bed.where, "--output", folder, "--count", 1)
    assert stale not in os.listdir(folder)
    assert {"other.txt", ".trip.part"} < set(os.listdir(folder))
    follower = Follower(*bed.where, "--output", folder)
    bed.save_one(7)
    version = follower.next()
    assert order(version) == (4, 7), version
    said = cli("follow", "trip", *bed.where, "--output", folder, want=74)
    assert "another" in said, said
    check_whole(version["file"], 7)
    follower.end()


@test
def versions_of_a_running_writer_are_ordered_and_whole(bed):
    """Steps up and down: each save is a separate attempt."""
    folder = folder_of(bed, "running")
    follower = Follower(*bed.where, "--output", folder, "--keep-last", 2)
    steps = [8, 9, 3, 4, 5, 10, 2]
    writer = threading.Thread(target=lambda: [bed.save_one(step) for step in steps])
    writer.start()
    seen = [follower.next()]
    while order(seen[-1]) != (11, 2):
        seen.append(follower.next())
        assert len([n for n in os.listdir(folder) if n.endswith(".safetensors")]) <= 3
    writer.join()
    follower.end()
    assert [order(v) for v in seen] == sorted({order(v) for v in seen}), seen
    for name in sorted(os.listdir(folder)):
        check_whole(os.path.join(folder, name), int(name[10:18]))
    assert sorted(os.listdir(folder))[0] == "trip-step-00000002-a0011.safetensors"
    assert len(os.listdir(folder)) == 2


@test
def one_that_stands_still_keeps_nobody_from_saving_and_skips(bed):
    follower = Follower(*bed.where)
    first = follower.next()
    follower.process.send_signal(signal.SIGSTOP)
    for step in (20, 21, 22, 23):
        bed.save_one(step)
    follower.process.send_signal(signal.SIGCONT)
    later = [follower.next()]
    while later[-1]["step"] != 23:
        later.append(follower.next())
    follower.end()
    assert len(later) <= 2 and order(first) < order(later[0]), later


@test
def a_ckptd_that_is_restarted_is_waited_for(bed):
    follower = Follower(*bed.where)
    follower.next()
    bed.stop()
    bed.launch()
    bed.save_one(30)
    assert follower.next()["step"] == 30
    said = follower.end()
    assert said == "", said


@test
def a_damaged_version_is_told_and_passed_over(bed):
    store = bed.copy("damaged")
    bed.save_one(31)
    newest = max((name for name in os.listdir(os.path.join(store, "trip"))
                  if name.startswith("step-")), key=lambda name: name[-4:])
    folder = os.path.join(store, "trip", newest)
    shard = min(name for name in os.listdir(folder) if name.startswith("shard-"))
    path = os.path.join(folder, shard)
    for at in range(1 << 20, os.path.getsize(path) - (1 << 20), 1 << 18):
        change(path, at)
    follower = Follower("--store", store)
    line = follower.process.stderr.readline()
    assert "30" in line and "checksum" in line, line
    follower.end()


if __name__ == "__main__":
    lib_cli.main()
