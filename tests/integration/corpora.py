#!/usr/bin/env python3
"""corpora - the data of a run: mixtures, positions in the data, slow disks, damaged blocks.

Goal: for any data a run's losses have the same bits on every mesh dp_replicate x dp_shard and over
a resume on another one. A manifest holds the position in every source, and weights change without
losing it. No step waits for a disk that keeps up on average. A damaged block ends training with 78
and is named. A step that is repeated with other tokens is reported. A file of format 1 is verified
by one rank of each node. The step line's mfu follows its formula. Method: a tiny Llama on corpora
of repeated prose; loss files (hexadecimal floats) compared byte by byte; manifests read from the
store; reads delayed by tests/shims/slow_read.c.
"""

import ctypes
import glob
import json
import os
import re
import shutil
import struct
import subprocess
import time

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

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def tokenize(self, name, text):
        with open(self.path(name), "wb") as file:
            file.write(text)
        subprocess.run([os.path.join(lib_train.BUILD, "tokenizer"), "tokens", "--tokenizer",
                        self.path("tok"), "--out", self.path(name + ".tokens"), self.path(name)],
                       check=True, capture_output=True, timeout=PATIENCE)

    def mixture(self, **weights):
        return ",".join(f"{self.path(name)}.tokens:{weight}" for name, weight in weights.items())

    def train(self, run, mesh, steps, *options, env=None):
        """Exit code and output; options name the data."""
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
        """Of the manifest."""
        path, = glob.glob(os.path.join(self.world.store, run, f"step-{step:08}-*/manifest.json"))
        with open(path) as file:
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
        r"data: \d\.\d+s \(\d+\.\d%\) +saves: \d+\.\d+% +tokens: 1,920 +a: +\d\.\d+ "
        r"\(epoch 0\.\d+\) +b: ", line), line)
    fields = bed.losses(name).splitlines()[-1].split()
    means = dict(field.split("=") for field in fields[3:])
    test("and so has the loss file", set(means) <= {"loss.a", "loss.b"} and means, fields)
    data = bed.state(name, 10)["data"]
    drawn = {source["name"]: source["draws"] for source in data["sources"]}
    test("the manifest has the place in each source", drawn == {"a": 21, "b": 9} and
         data["next_sample"] == 30 and data["tokens"] == 1920, data)
    # Other weights, and one source more: each source continues where it was.
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
    began = [order["step"] for order in bed.state(name, 16)["orders"]]
    test("and from which steps on other samples came is said and kept", began == [0, 10, 14, 15] and
         "from step 16 on" in said, (began, said))


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
    # Shards gather codes, also for the validation after an update; one rank has none.
    trains = ("--training.mixture", bed.mixture(a=1), "--training.local_batch_size", 2,
              "--model.converters", "quantize.linear.float8",
              "--quantize.linear.float8.enable_fsdp_float8_all_gather")
    options = (*trains, "--validation.enable", "--validation.dataset_path", bed.path("b.tokens"),
               "--validation.freq", 3, "--validation.seq_len", 40)
    name, _ = same_on_every_mesh(bed, "validation", *options)
    lines = [line.split()[0] for line in bed.losses(name).splitlines() if "validation=" in line]
    test("it comes after the first step and as often as asked for", lines == ["1", "3", "6"], lines)
    code, said = bed.train("unvalidated", (1, 1), 6, *trains)
    trained = [line for line in bed.losses(name).splitlines() if "validation=" not in line]
    test("it changes nothing of the training",
         code == 0 and bed.losses("unvalidated").splitlines() == trained, said)
    code, said = bed.train("part", (1, 1), 1, *options, "--validation.steps", 1,
                           "--validation.local_batch_size", 2,
                           "--quantize.linear.float8.filter_fqns", "w2,wqq")
    test("a name that takes nothing out of float8 is told",
         "no module's name contains \"wqq\"" in said, said)
    whole, part = (float.fromhex(re.search(r"^1 validation=(\S+)", bed.losses(run), re.M).group(1))
                   for run in (name, "part"))
    test("before the second update its mean is about ln 512", 6 < whole < 7.5, whole)
    test("validation.steps reads a part of the set", code == 0 and whole != part and
         abs(whole / part - 1) < 0.1, (whole, part, said))
    told_validation(bed, options)


def told_validation(bed, options):
    code, said = bed.train("told", (1, 1), 4, *options, "--validation.freq", 1,
                           "--metrics.enable_tensorboard", "--job.dump_folder", bed.path("told"))
    events = read_events(glob.glob(bed.path("told/tb/*/events.out.tfevents.*"))[0])
    board = [(step, s["validation_metrics/loss"]) for step, s in events
             if "validation_metrics/loss" in s and s["validation_metrics/throughput(tps)"] > 0]
    lines = re.findall(r"validate step: +(\d+)  loss: +(\S+) .* tps: \S+  time: (\S+)s", said)
    test("its loss and speed are in the log and in TensorBoard's file", code == 0 and
         [(str(step), f"{loss:.4f}") for step, loss in board] == [line[:2] for line in lines] and
         [step for step, _ in board] == [1, 2, 3, 4], (board, said))
    # From the first step line to the last: each step's own time, and each validation's.
    marks = re.findall(r"T(\d+):(\d+):(\S+)Z info train: step: .* time: (\S+)s", said)
    first, last = (int(hour) * 3600 + int(minute) * 60 + float(second)
                   for hour, minute, second, _ in (marks[0], marks[-1]))
    spent = [float(line[2]) for line in lines[:3]]
    test("its time is no step's", abs((last - first) % 86400 - sum(spent) - sum(
        float(mark[3]) for mark in marks[1:])) < sum(spent) / 2, (marks, spent))


def other_sizes(bed):
    data = "--training.mixture", bed.mixture(a=1)
    bed.train("sizes", (1, 1), 2, *data)
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
    longer = *data, "--lr_scheduler.total_steps", -1
    bed.train("longer", (1, 1), 2, *longer)
    code, said = bed.train("longer", (1, 1), 3, *longer)
    test("more steps are said to stretch the curve", code == 0 and
         "stretches the learning-rate curve" in said and "total_steps = 2" in said, said)


def write_format_1(path, source):
    """The tokens of a file of format 2, in the format before it."""
    with open(source, "rb") as file:
        raw = file.read()
    xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    xxh3.argtypes, xxh3.restype = (ctypes.c_char_p, ctypes.c_size_t), ctypes.c_uint64
    count, block = struct.unpack_from("<Q", raw, 24)[0], 16384 * 2 + 16384 // 8
    tokens = b"".join(raw[at:at + 16384 * 2] for at in range(4096, len(raw), block))[:2 * count]
    header = raw[:8] + struct.pack("<I", 1) + raw[12:104] + bytes(4088 - 104)
    with open(path, "wb") as file:
        file.write(header + struct.pack("<Q", xxh3(header, len(header))) + tokens)


def two_processes():
    return ["mpirun", "--oversubscribe", "--mca", "mpi_yield_when_idle", "0", "-n", "2"] + (
        ["--allow-run-as-root"] if os.getuid() == 0 else [])


def nodes_that_differ(bed):
    """Each rank's own file under one name, which is where it stands."""
    if not shutil.which("mpirun"):
        return
    for rank, name in enumerate("ab"):
        os.mkdir(bed.path(f"node{rank}"))
        shutil.copy(bed.path(name + ".tokens"), bed.path(f"node{rank}", "tokens"))
    command = lib_train.command(
        bed.folder, bed.world.server, "differ", "--training.dataset_path", "tokens",
        "--training.steps", 2, "--checkpoint.no_enable", "--comm.backend", "mpi")
    command[0] = os.path.abspath(command[0])
    done = subprocess.run(
        [*two_processes(), "sh", "-c", 'cd "$0/node$OMPI_COMM_WORLD_RANK" && exec "$@"',
         bed.folder, *command], capture_output=True, text=True, timeout=PATIENCE)
    said = done.stdout + done.stderr
    test("ranks that have other tokens under the same name are refused", done.returncode == 78 and
         said.count("tokens: rank 1 has other tokens than rank 0") == 1, said)


def once_per_node(bed):
    """Of two processes: on one node; and as if each was the first of its own node."""
    told, files = "1 tokens file of format 1 is verified in full", ("a.1", "b.1")
    for name in files:
        write_format_1(bed.path(name), bed.path(name[0] + ".tokens"))
    command = lib_train.command(
        bed.folder, bed.world.server, "node", "--training.dataset_path", bed.path("a.1"),
        "--validation.enable", "--validation.dataset_path", bed.path("b.1"), "--training.steps",
        2, "--debug.pause_at_step", 2, "--checkpoint.no_enable")
    mpi = two_processes()
    ways = [("two threads", [*command, "--comm.ranks", "2"], 2)]
    if shutil.which("mpirun"):
        ways += [("two processes", [*mpi, *command, "--comm.backend", "mpi"], 2),
                 ("two nodes", [*mpi, "env", "OMPI_COMM_WORLD_LOCAL_RANK=0", *command,
                                "--comm.backend", "mpi"], 4)]
    for what, words, want in ways:
        got, said = count_lines(words, told, want)
        test(f"{what} verify training's and validation's file of format 1 {want} times",
             got == want, (got, said))


def count_lines(command, told, want):
    """How often a pausing run reports it, until a moment after it should have ended."""
    with open(os.path.join(os.environ.get("TMPDIR", "/tmp"), "node.log"), "w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        deadline, settled, said = time.monotonic() + PATIENCE, None, ""
        while time.monotonic() < (settled or deadline) and process.poll() is None:
            time.sleep(0.05)
            log.seek(0)
            said = log.read()
            if settled is None and said.count(told) >= want:
                settled = time.monotonic() + 1
        process.terminate()
        process.wait(PATIENCE)
    os.remove(log.name)
    return said.count(told), said


def speed(bed):
    """tps, which is rounded, times the work of a token as metrics.h states it, beside the peak."""
    dim, layers, heads, kv, width, hidden, vocab, seq = 64, 2, 4, 2, 16, 128, 512, 64
    shape = ("--model.dim", dim, "--model.n_layers", layers, "--model.n_heads", heads,
             "--model.n_kv_heads", kv, "--model.hidden_dim", hidden, "--model.vocab_size", vocab)
    layer = 2 * dim * (heads + kv) * width + 3 * dim * hidden + 2 * dim
    work = 6 * (layers * layer + dim + vocab * dim) + 12 * layers * heads * width * seq
    percent = 100 * work / 0.02e12  # of the peak below, for a token per second
    data = "--training.mixture", bed.mixture(a=1), "--checkpoint.no_enable"
    peak = "--metrics.peak_tflops", 0.02
    code, said = bed.train("speed", (1, 2), 6, *data, *shape, *peak)
    lines = [(int(tps.replace(",", "")), float(mfu)) for tps, mfu in
             re.findall(r" tps: ([0-9,]+) .* mfu: ([0-9.]+)%", said)]
    test("mfu is tokens per second and rank x their work / the peak", code == 0 and
         len(lines) == 6 and all(abs(mfu - tps * percent) < 0.006 + percent
                                 for tps, mfu in lines), (percent, lines, said))
    code, said = bed.train("slowly", (1, 2), 2, *data, *shape)
    test("and is not known where no peak is given", code == 0 and
         re.search(r"tflops: [0-9.]+  mfu: n/a  time: ", said) and "hfu" not in said, said)
    # Of two layers one is computed again: a third of its work.
    code, said = bed.train("again", (1, 1), 3, *data, *shape, *peak, "--activation_checkpoint.mode",
                           "selective", "--metrics.enable_tensorboard", "--job.dump_folder",
                           bed.path("out"))
    more = (2 * layer + 4 * heads * width * seq) / work
    events = read_events(glob.glob(bed.path("out/tb/*/events.out.tfevents.*"))[0])
    steps = {step: scalars for step, scalars in events if scalars}
    test("hfu is mfu and what is computed again", code == 0 and "hfu: " in said and
         all(abs(s["hfu(%)"] / s["mfu(%)"] - 1 - more) < 1e-5 for s in steps.values()),
         (more, steps, said))
    # Updates 0 to 2 of a curve that rises in two and falls in 98.
    rates = [0.0004, 0.0008, 0.0008]
    lines = [[float.fromhex(word) for word in line.split()[1:3]]
             for line in bed.losses("again").splitlines()]
    test("TensorBoard's file has each line's numbers by torchtitan's names", list(steps) ==
         [1, 2, 3] and [step for step, scalars in events if not scalars] == [0, 1] and
         all(abs(s["loss_metrics/global_avg_loss"] - loss) < 1e-6 * loss and
             abs(s["grad_norm"] - norm) < 1e-6 * norm and
             loss * 1.0001 < s["loss_metrics/global_max_loss"] < loss * 1.2 and
             abs(s["lr"] - rate) < 1e-6 and s["n_tokens_seen"] == 3 * seq * step
             for (step, s), (loss, norm), rate in zip(steps.items(), lines, rates)),
         (steps, lines))


def masked_crc(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    crc ^= 0xffffffff
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def fields_of(message):
    """Of protocol buffers: (number, value as bytes or number)."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        yield key >> 3, message[at:at + size]
        at += size


def read_events(path):
    """[(step, {tag: value})] of a file for TensorBoard, whose checksums have to fit."""
    with open(path, "rb") as file:
        raw = file.read()
    events, at = [], 0
    while at < len(raw):
        length, crc = struct.unpack_from("<QI", raw, at)
        body = raw[at + 12:at + 12 + length]
        assert crc == masked_crc(raw[at:at + 8]), at
        assert struct.unpack_from("<I", raw, at + 12 + length)[0] == masked_crc(body), at
        event = dict(fields_of(body))
        scalars = {}
        for _, value in fields_of(event.get(5, b"")):
            of = dict(fields_of(value))
            scalars[of[1].decode()] = struct.unpack("<f", of[2])[0]
        assert abs(struct.unpack("<d", event[1])[0] - time.time()) < 3600, event
        started = dict(fields_of(event.get(7, b"")))
        is_start = started in ({1: 1, 3: b"attempt 0"}, {1: 1, 3: b"attempt 1"})
        assert scalars or is_start or event.get(3) == b"brain.Event:2", event
        events.append((event.get(2, 0), scalars))
        at += 16 + length
    return events


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


def told_digests(path):
    with open(path) as file:
        lines = [json.loads(line) for line in file]
    return [(line["attempt"], line["step"], line["first_sample"], line["tokens_digest"],
             line.get("tokens_differ_from")) for line in lines if "tokens_digest" in line]


def changed_tokens(bed):
    """Between a start that ends as by a kill, after an unsaved step, and the next start."""
    text, lines = lib_train.prose(), {}
    for run in "kept", "changed":
        bed.tokenize("d", text[:30000])
        options = ("--training.mixture", bed.mixture(d=1), "--checkpoint.interval", 2,
                   "--metrics.jsonl_file", bed.path(run + ".jsonl"))
        code, said = bed.train(run, (1, 2), 6, *options, "--debug.stop_after_step", 5)
        assert code == 0, said
        if run == "changed":
            bed.tokenize("d", text[9000:39000])
        code, said = bed.train(run, (2, 2), 6, *options)
        lines[run] = told_digests(bed.path(run + ".jsonl"))
        assert code == 0 and len(lines[run]) == 7, (lines, said)
        found = re.findall(r"warn data: (step \d+: samples \d+ to \d+) have other tokens than "
                           r"attempt 1 had", said)
        test(f"a step that is made again of {run} tokens is {'not ' * (run == 'kept')}told",
             found == [] if run == "kept" else found == ["step 5: samples 12 to 14"], said)
    kept, changed = lines["kept"], lines["changed"]
    test("on another mesh the same tokens have the same digest, and each step another",
         kept[4][3] == kept[5][3] and len({line[3] for line in kept}) == 6 and
         not any(line[4] for line in kept), kept)
    test("others have others, which the line of JSON says", changed[:5] == kept[:5] and
         changed[5][:3] == kept[5][:3] and changed[5][3] != kept[5][3] and
         [line[4] for line in changed] == [None] * 5 + [1, None], (kept, changed))
    bed.tokenize("d", text[:30000])
    code, said = bed.train("changed", (1, 1), 6, *options, "--replay", 6)
    test("a replay with others says so", code == 1 and re.search(
        r"error replay: step 6 had other tokens: digest [0-9a-f]{16} then", said), (code, said))


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
        once_per_node(bed)
        nodes_that_differ(bed)
        speed(bed)
        changed_tokens(bed)
        slow_disk(bed)
        damaged(bed)
        world.stop()
    finally:
        world.close()
    end()


main()
