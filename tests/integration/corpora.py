#!/usr/bin/env python3
"""corpora - what a run reads: mixtures, places in the data, slow disks, damaged blocks.

Goal: whatever a run reads, its losses are the same bits on every mesh dp_replicate x dp_shard and
over a resume on another one; a manifest holds the place in every source, and weights change without
losing it; no step waits for a disk that keeps up on average; a damaged block ends training with 78
and is named. Method: a tiny Llama on corpora of repeated prose; loss files (hexadecimal floats)
compared byte by byte; manifests read from the store; reads delayed by tests/shims/slow_read.c.
"""

import json
import os
import re
import subprocess

import lib_train
from lib_store import PATIENCE, World
from lib_tap import end, test

MESHES = (1, 1), (1, 2), (2, 1), (2, 2)
READ_MS = 5


class Bed:
    """A tokenizer and three corpora below one folder; runs write RUN.log and RUN.loss there."""

    def __init__(self, world):
        self.world, self.folder = world, world.folder
        text = lib_train.prose()
        lib_train.make_tokens(self.folder, text * 12)
        os.rename(self.path("tokens"), self.path("large.tokens"))
        for name, part in ("a", text[:40000]), ("b", text[-9000:]), ("c", text[9000:20000]):
            self.tokenize(name, part)

    def path(self, name):
        return os.path.join(self.folder, name)

    def tokenize(self, name, text):
        with open(self.path(name), "wb") as file:
            file.write(text)
        subprocess.run([os.path.join(lib_train.BUILD, "tokenizer"), "tokens", "--tokenizer",
                        self.path("tok"), "--out", self.path(name + ".tokens"), self.path(name)],
                       check=True, capture_output=True, timeout=PATIENCE)

    def mixture(self, **weights):
        return ",".join(f"{self.path(name)}.tokens:{weight}" for name, weight in weights.items())

    def train(self, run, mesh, steps, *options, env=None):
        """Exit code and what was said; the data are named by the options."""
        replicas, shards = mesh
        done = subprocess.run(lib_train.command(
            self.folder, self.world.server, run, "--training.dataset_path", "",
            "--training.steps", steps, "--lr_scheduler.total_steps", 100, "--metrics.log_freq", 1,
            "--checkpoint.interval", 1000, "--canonical.micro_batches", 3,
            "--parallelism.data_parallel_replicate_degree", replicas,
            "--comm.ranks", replicas * shards, "--metrics.loss_file", self.path(run + ".loss"),
            *options), capture_output=True, text=True, timeout=PATIENCE,
            env=dict(os.environ, **(env or {})))
        return done.returncode, done.stdout + done.stderr

    def losses(self, run):
        with open(self.path(run + ".loss")) as file:
            return file.read()

    def state(self, run, step):
        """The manifest's "state"."""
        folder = os.path.join(self.world.store, run)
        name, = (name for name in os.listdir(folder) if name.startswith(f"step-{step:08}-"))
        with open(os.path.join(folder, name, "manifest.json")) as file:
            return json.load(file)["state"]


def same_on_every_mesh(bed, what, *options, steps=6):
    """Trains on one rank, then elsewhere, then half here and half there."""
    name = re.sub(r"\W+", "-", what)
    code, said = bed.train(name, (1, 1), steps, *options)
    test(f"{what}: a run on one rank ends with 0", code == 0, said)
    for mesh in MESHES[1:]:
        run = "{}-{}x{}".format(name, *mesh)
        code, said = bed.train(run, mesh, steps, *options)
        test(f"{what}: {mesh[0]}x{mesh[1]} has the same bits",
             code == 0 and bed.losses(run) == bed.losses(name), said)
    moved = name + "-moved"
    first, said = bed.train(moved, (2, 2), steps // 2, *options)
    code, more = bed.train(moved, (1, 2), steps, *options)
    test(f"{what}: moved from 2x2 to 1x2 it has the same bits",
         first == code == 0 and bed.losses(moved) == bed.losses(name), said + more)
    return name, said


def mixtures(bed):
    two = "--training.mixture", bed.mixture(a=0.7, b=0.3)
    name, said = same_on_every_mesh(bed, "mixture", *two, steps=10)
    line = re.search(r"step: 10 .*", bed.train(name + "-line", (1, 1), 10, *two)[1]).group(0)
    test("the step line has loss and epoch of each source, tokens and the time for data", re.search(
        r"data: \d\.\d+s +tokens: 1,920 +a: +\d\.\d+ \(epoch 0\.\d+\) +b: ", line), line)
    fields = bed.losses(name).splitlines()[-1].split()
    means = dict(field.split("=") for field in fields[3:])
    test("and so has the loss file", set(means) <= {"loss.a", "loss.b"} and means, fields)
    data = bed.state(name, 10)["data"]
    drawn = {source["name"]: source["draws"] for source in data["sources"]}
    test("the manifest has the place in each source", drawn == {"a": 21, "b": 9} and
         data["next_sample"] == 30 and data["tokens"] == 1920, data)
    # Other weights, and one source more: each goes on where it was.
    three = "--training.mixture", bed.mixture(c=0.5, a=0.25, b=0.25)
    code, said = bed.train(name, (1, 2), 14, *three)
    data = bed.state(name, 14)["data"]
    drawn = {source["name"]: source["draws"] for source in data["sources"]}
    test("other weights at a resume keep the places", code == 0 and data["start"] == 30 and
         drawn == {"a": 24, "b": 12, "c": 6}, (code, data, said))
    one = "--training.mixture", bed.mixture(a=1)
    code, said = bed.train(name, (1, 1), 15, *one)
    places = {source["name"]: source["draws"] for source in bed.state(name, 15)["data"]["sources"]}
    code, said = bed.train(name, (1, 1), 16, *three)
    drawn = {source["name"]: source["draws"] for source in bed.state(name, 16)["data"]["sources"]}
    test("a source that was left out goes on where it was", code == 0 and
         places == {"a": 27, "b": 12, "c": 6} and drawn["b"] >= 12 and sum(drawn.values()) == 48,
         (places, drawn, said))


def repeats(bed):
    few = ("--training.mixture", bed.mixture(b=1), "--training.seq_len", 1024,
           "--canonical.micro_batches", 4)
    code, said = bed.train("few", (1, 1), 2, *few)
    test("a set smaller than a step is warned of", "but a step takes 4 of it" in said, said)
    test("the first repeated epoch is warned of, once", code == 0 and
         said.count("its second epoch begins") == 1, said)


def documented_order(bed):
    """The example that reads trainer/data/README.md alone; unit tests hold the trainer to it."""
    with open("tests/golden/sample_order.txt") as file:
        lines = file.read().splitlines()
    for line in lines:
        arguments, samples = line.split(": ")
        done = subprocess.run(["clients/examples/sample_order.py", *arguments.split()],
                              capture_output=True, text=True, timeout=PATIENCE)
        test(f"the example computes the samples of {arguments}",
             done.stdout.strip() == samples, done.stdout + done.stderr)


def validation(bed):
    options = ("--training.mixture", bed.mixture(a=1), "--validation.enable",
               "--validation.dataset_path", bed.path("b.tokens"), "--validation.freq", 3,
               "--validation.seq_len", 40, "--training.local_batch_size", 2)
    name, _ = same_on_every_mesh(bed, "validation", *options)
    lines = [line.split()[0] for line in bed.losses(name).splitlines() if "validation=" in line]
    test("it comes after the first step and as often as asked for", lines == ["1", "3", "6"], lines)
    code, said = bed.train("unvalidated", (1, 1), 6, *options[:2], *options[-2:])
    trained = [line for line in bed.losses(name).splitlines() if "validation=" not in line]
    test("it changes nothing of the training",
         code == 0 and bed.losses("unvalidated").splitlines() == trained, said)
    code, said = bed.train("part", (1, 1), 1, *options, "--validation.steps", 1,
                           "--validation.local_batch_size", 2)
    whole, part = (float.fromhex(re.search(r"^1 validation=(\S+)", bed.losses(run), re.M).group(1))
                   for run in (name, "part"))
    test("before the second update its mean is about ln 512", 6 < whole < 7.5, whole)
    test("validation.steps reads a part of the set", code == 0 and whole != part and
         abs(whole / part - 1) < 0.1, (whole, part, said))


def other_sizes(bed):
    data = "--training.mixture", bed.mixture(a=1)
    bed.train("sizes", (1, 1), 2, *data)
    code, said = bed.train("sizes", (1, 1), 4, *data, "--canonical.micro_batches", 5)
    test("other sizes of a step are refused, by name and with both values", code == 78 and
         "canonical.micro_batches = 3, this configuration has 5" in said, (code, said))
    sizes = ("--canonical.micro_batches", 5, "--training.local_batch_size", 2,
             "--training.seq_len", 32)
    code, said = bed.train("sizes", (1, 2), 4, *data, *sizes, "--checkpoint.new_order")
    state = bed.state("sizes", 4) if code == 0 else {}
    test("checkpoint.new_order begins a new order, and one line says so", code == 0 and
         said.count("a new order of samples and sums begins after step 2") == 1 and
         [order["step"] for order in state["orders"]] == [0, 2] and
         state["data"]["tokens"] == 2 * 3 * 64 + 2 * 10 * 32 and
         state["data"]["sources"][0]["base"] == 12, (code, state, said))
    code, said = bed.train("sizes", (1, 1), 5, *data, *sizes)
    test("which the run then has", code == 0, said)
    fast = *data, "--training.reduction", "fast"
    bed.train("fast-sizes", (1, 1), 2, *fast)
    code, said = bed.train("fast-sizes", (1, 1), 4, *fast, *sizes)
    test("with the fast reduction sizes change unasked", code == 0 and
         "a new order of samples and sums begins after step 2" in said, (code, said))
    code, said = bed.train("ramp", (1, 1), 2, *data, "--training.batch_ramp", "0:1,1:2,2:3")
    test("a ramp is kept in the manifest", code == 0 and
         bed.state("ramp", 2)["data"]["next_sample"] == 3, said)
    code, said = bed.train("ramp", (1, 1), 4, *data, "--training.batch_ramp", "0:2,2:3")
    test("and is fixed when the run is created", code == 78 and "training.batch_ramp" in said, said)
    longer = *data, "--lr_scheduler.total_steps", -1
    bed.train("longer", (1, 1), 2, *longer)
    code, said = bed.train("longer", (1, 1), 3, *longer)
    test("more steps are said to stretch the curve", code == 0 and
         "stretches the learning-rate curve" in said and "total_steps = 2" in said, said)


def damaged(bed):
    with open(bed.path("c.tokens"), "r+b") as file:
        file.seek(4096 + 3000)
        byte = file.read(1)[0]
        file.seek(4096 + 3000)
        file.write(bytes([byte ^ 1]))
    code, said = bed.train("damaged", (1, 2), 3, "--training.mixture", bed.mixture(c=1))
    test("a damaged block ends training with 78, and is named", code == 78 and
         re.search(r"c\.tokens: block 0 \(tokens 0 to \d+, from byte 4096 on\) is damaged", said),
         (code, said))


def slow_disk(bed):
    options = ("--training.mixture", bed.path("large.tokens"), "--training.seq_len", 1024,
               "--canonical.micro_batches", 2, "--training.local_batch_size", 2)
    shim = os.path.abspath(os.path.join(lib_train.BUILD, "shims", "slow_read.so"))
    code, said = bed.train("slow", (1, 1), 6, *options,
                           env={"LD_PRELOAD": shim, "READ_MS": str(READ_MS)})
    waits = [float(wait) for wait in re.findall(r" data: (\d+\.\d+)s", said)]
    times = [float(time) for time in re.findall(r" time: (\d+\.\d+)s", said)]
    test("the first step waits for the slow disk", code == 0 and waits[0] >= READ_MS / 1000,
         (waits, said))
    test("no other step does", code == 0 and max(waits[1:]) <= READ_MS / 2000, (waits, times))
    code, said = bed.train("fast", (1, 1), 6, *options)
    test("the losses are those of a fast one", code == 0 and
         bed.losses("slow") == bed.losses("fast"), said)


def main():
    world = World()
    try:
        bed = Bed(world)
        world.launch()
        mixtures(bed)
        repeats(bed)
        documented_order(bed)
        validation(bed)
        other_sizes(bed)
        slow_disk(bed)
        damaged(bed)
        world.stop()
    finally:
        world.close()
    end()


main()
