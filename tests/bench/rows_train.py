"""rows_train.py - the trainer: the cost of a save and of a restart; its rate."""
import datetime
import glob
import itertools
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import time

from measure import ROOT, Program, Row, Share
from rows_persist import CpuCost

MODEL = {"dim": 256, "hidden": 768, "kv": 64, "layers": 10, "vocab": 4096}  # debugmodel
SEQ, LEAVES = 256, 12  # of deploy/main-job.toml
STAMP = r"^(\S+)Z (?:\S+:\d+ )?\w+ \w+: "  # a rank of several says whose line it is
LINE = re.compile(STAMP + r"step:\s*(\d+) .* tps: ([\d,]+) ", re.M)
START = re.compile(STAMP + r"start: init ([\d.]+) s, attempt ([\d.]+) s, load ([\d.]+) s .*"
                   r"weights ([\d.]+) s, first step \((\d+)\) ([\d.]+) s: ([\d.]+) s since", re.M)
ACCEPTED = re.compile(STAMP + r"step (\d+) is accepted .* copied in ([\d.]+) ms, "
                      r"training waited ([\d.]+) ms", re.M)
COMMITTED = re.compile(STAMP + r"run \S+, step (\d+), attempt \d+ committed: (\d+) bytes in "
                       r"([\d.]+) s", re.M)


def text(bench):
    """The main job's text, tokenizer and tokens, made once; their folder."""
    folder = bench.program("run")
    if not os.path.exists(os.path.join(folder, "text.tokens")):
        bench.run("deploy/main-job", "--data")
    return folder


def data(bench):
    folder = text(bench)
    return ["--training.dataset_path", os.path.join(folder, "text.tokens"),
            "--model.hf_assets_path", os.path.join(folder, "tokenizer.model")]


def data_110m(bench):
    """The same text with the vocabulary of the 110M preset, made once."""
    folder, base = text(bench), bench.program("bench-110m")
    tokenizer, tokens = base + ".model", base + ".tokens"
    program, source = bench.program("tokenizer"), os.path.join(folder, "text.txt")
    if not os.path.exists(tokens):
        bench.run(program, "train", "--vocab", "32000", "--out", tokenizer, source)
        bench.run(program, "tokens", "--tokenizer", tokenizer, "--out", tokens, source)
    return ["--model.flavor", "110M", "--training.dataset_path", tokens,
            "--model.hf_assets_path", tokenizer]


def seconds_since_epoch(stamp):
    return datetime.datetime.fromisoformat(stamp).replace(tzinfo=datetime.timezone.utc).timestamp()


def train(bench, run, *options):
    """Runs the main job's model in one process; median seconds of a step after the first."""
    output = bench.run(bench.program("trainer"), "--job.config_file", "deploy/main-job.toml",
                       "--job.run", run, *data(bench), *options)
    times = [seconds_since_epoch(time) for time, _, _ in LINE.findall(output)]
    if len(times) < 3:
        raise RuntimeError("the trainer printed no steps: " + output[-300:])
    return statistics.median(after - before for before, after in zip(times, times[1:]))


# ---- lost_save, lost_save_full ----

# One step of the 110M preset: 32 micro-batches of 256 tokens, bf16. A run in earnest has far more
# tokens a step (GPT-2's had 500,000), so a save is a smaller share of its step than here.
# The state is 3 x 4 bytes x 110.5 M = 1.33 GB; ckptd has memory for two images of it.
#
# A machine's speed varies by more than the cost of a save. So the compared times are short: the
# micro-steps that a save overlaps, from the end of the step before to the first one that ends after
# the commit, and the same ones of the next step, which no save overlaps. To measure the drift
# between the two, LOST_BEHIND times as many micro-steps after them are compared, too. The update's
# wait for the copy is added.
LOST_MICRO_STEPS = 32
LOST = ["--training.seq_len", "256", "--training.local_batch_size", "1",
        "--canonical.micro_batches", str(LOST_MICRO_STEPS),
        "--training.mixed_precision_param", "bfloat16",
        "--comm.ranks", "1", "--checkpoint.async_mode", "async_with_pinned_mem",
        "--checkpoint.interval", "2", "--lr_scheduler.warmup_steps", "1000"]
LOST_POOL = ["--memory.pool_bytes", "3GiB"]
LOST_WARM_UP = 2  # steps: the first touches of memory, of both images too
LOST_BEHIND = 3
LOST_FULL_COSTS = 7  # samples of persist_cpu on each side of it
LOST_PAIRS = 24  # micro-steps differ by more than a save costs
MICRO_STEP = re.compile(STAMP + r"micro-step \d+ of \d+ of step (\d+) is done")


def cpu_seconds(path):
    """Of a process or a thread, from its stat file."""
    with open(path) as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def copier_stat(pid):
    """stat file of the trainer's copy thread (COPIER_THREAD_NAME)."""
    tasks = f"/proc/{pid}/task"
    for task in os.listdir(tasks):
        with open(f"{tasks}/{task}/comm") as file:
            if file.read().strip() == "copier":
                return f"{tasks}/{task}/stat"
    raise RuntimeError("the trainer has no thread with the name of the copy thread")


class SavedSteps:
    """One training process that saves after every second step. marks[step]: seconds since the epoch
    when the step before it ended and when each of its micro-steps did; ends[step]: when it did;
    cpu[step]: CPU seconds of ckptd and of the copy thread until then."""

    def __init__(self, bench, threads, pairs):
        ckptd, server, store = bench.start_ckptd(f"lost{threads}", *LOST_POOL)
        command = [bench.program("trainer"), "--job.config_file", "deploy/main-job.toml",
                   "--job.run", "lost", *data_110m(bench), *LOST, "--kernels.threads",
                   str(threads), "--training.steps", str(LOST_WARM_UP + 2 * pairs + 1),
                   "--ckptd.address", server]
        self.marks, self.ends, self.cpu, self.log = {}, {}, {}, ""
        trainer = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   env={**os.environ, "HOLDFAST_LOG": "train"})
        bench.started.append(trainer)
        self.follow(trainer, ckptd.pid, LOST_WARM_UP + 2 * pairs)
        if trainer.wait() not in (0, 75):
            raise RuntimeError("the trainer failed: " + self.log[-300:])
        bench.end(ckptd)
        shutil.rmtree(store)
        with open(os.path.join(bench.tmp, f"lost{threads}.log")) as file:
            self.commits = {int(step): (seconds_since_epoch(at), int(size), float(time))
                            for at, step, size, time in COMMITTED.findall(file.read())}
        self.copies = {int(step): (float(copy) / 1e3, float(waited) / 1e3)
                       for _, step, copy, waited in ACCEPTED.findall(self.log)}

    def follow(self, trainer, ckptd, last):
        copier = None
        for line in trainer.stdout:
            self.log += line
            if found := MICRO_STEP.match(line):
                self.marks.setdefault(int(found[2]), []).append(seconds_since_epoch(found[1]))
            if found := LINE.match(line):
                step, at = int(found[2]), seconds_since_epoch(found[1])
                copier = copier or copier_stat(trainer.pid)
                self.cpu[step] = cpu_seconds(f"/proc/{ckptd}/stat") + cpu_seconds(copier)
                self.ends[step], self.marks[step + 1] = at, [at]
                if step == last:
                    trainer.terminate()  # the last step's save is no part of it

    def seconds(self, step):
        return self.ends[step] - self.marks[step][0]

    def overlapped(self, step):
        """How many micro-steps the save of the step before overlaps."""
        return sum(1 for mark in self.marks[step] if mark < self.commits[step - 1][0])

    def lost(self, step):
        """Seconds that the save at the beginning of `step` cost, compared with the step after
        it."""
        saved = self.overlapped(step)
        behind = min(LOST_BEHIND * saved, LOST_MICRO_STEPS - saved)
        if behind < 1:
            raise RuntimeError(f"the save beside step {step} took all of it")

        def excess(step):
            marks = self.marks[step]
            beside = marks[saved + behind] - marks[saved]
            return marks[saved] - marks[0] - beside * saved / behind

        return excess(step) - excess(step + 1) + self.copies[step - 1][1]


def lost_pairs(bench, threads):
    """(seconds lost, seconds of a step without a save, CPU seconds of both) per save; the bytes of
    a save; and a note."""
    pairs = 3 if bench.quick else LOST_PAIRS
    run = SavedSteps(bench, threads, pairs)
    with_save = range(LOST_WARM_UP + 1, LOST_WARM_UP + 2 * pairs, 2)
    found = [(run.lost(step), run.ends[step + 1] - run.ends[step],
              run.cpu[step + 1] - run.cpu[step - 1]) for step in with_save]
    middle = lambda values: statistics.median(list(values))
    overlapped = middle(run.overlapped(step) for step in with_save)
    whole = middle(run.seconds(step) - run.seconds(step + 1) for step in with_save)
    size = run.commits[with_save[0] - 1][1]
    note = (f"110M, 8192 tokens a step, {threads} of {os.cpu_count()} cores train; "
            f"{size / 1e9:.2f} GB a save, "
            f"copied in {middle(run.copies[s - 1][0] for s in with_save) * 1e3:.0f} ms, "
            f"training waited {middle(run.copies[s - 1][1] for s in with_save) * 1e3:.1f} ms, "
            f"durable in {middle(run.commits[s - 1][2] for s in with_save):.2f} s; "
            f"lost {middle(f[0] for f in found) * 1e3:.0f} ms, "
            f"measured over {overlapped:.0f} of {LOST_MICRO_STEPS} micro-steps; whole steps with a "
            f"save take {whole * 1e3:+.0f} ms; "
            f"CPU {middle(f[2] for f in found):.3f} s (ckptd and copy thread, in both steps)")
    return found, size, note


def row_lost_save(bench):
    """lost time per save (slowed step and stall) as a share of one step; a core is free"""
    found, _, note = lost_pairs(bench, os.cpu_count() - 1)
    yield Share("lost_save", "s", [lost for lost, _, _ in found], [step for _, step, _ in found],
                direction="lower", goal=0.01, note=note)


def row_lost_save_full(bench):
    """the same where every core trains, beside the CPU seconds of as many bytes in persist_cpu"""
    cost = CpuCost(bench, "lost_cpu")
    per_gb = [sum(cost.sample()) for _ in range(LOST_FULL_COSTS)]
    found, size, note = lost_pairs(bench, os.cpu_count())
    per_gb += [sum(cost.sample()) for _ in range(LOST_FULL_COSTS)]
    cost.close()
    asked = statistics.median(per_gb) * size / 1e9
    share = statistics.median(lost / step for lost, step, _ in found)
    yield Share("lost_save_full", "s", [lost for lost, _, _ in found], [asked] * len(found),
                direction="lower", goal=1.0,
                note=f"{note}; {share:.4f} of a step; the reference is the median of persist_cpu's "
                     f"{min(per_gb):.3f} to {max(per_gb):.3f} s/GB, before and after")


# ---- restart ----

# Steps are short here (128 tokens), so that starting counts for more of it, and the machine has
# less time to change its speed within a pair.
RESTART = ["--training.seq_len", "32", "--canonical.micro_batches", "4",
           "--lr_scheduler.warmup_steps", "1000"]
# The arguments of deploy/launch for mpirun.
MPIRUN = ["mpirun", "-q", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle",
          "0", "--mca", "pml", "ob1", "--mca", "btl", "self,vader", "--mca",
          "btl_vader_single_copy_mechanism", "none", "--mca", "plm", "isolated"]
PARTS = ("ended", "pause", "mpirun", "init", "attempt", "load", "weights", "first_step")
# A sample is the median of so many: single starts wander more than 40 pairs even out.
STARTS = 3


def row_restart(bench):
    """kill -9 of all 4 ranks to the end of the first step on 2, beside a fresh start of 2 ranks"""
    parts = {name: [] for name in PARTS}
    count = iter(range(1000))

    def ours():
        with Restarts(bench, f"restart{next(count)}") as run:
            samples = [run.kill_and_resume() for _ in range(STARTS)]
        for name, *values in zip(PARTS, *(values for _, values in samples)):
            parts[name] += values
        return statistics.median(whole for whole, _ in samples)

    def reference():
        return statistics.median(fresh_start(bench) for _ in range(STARTS))

    yield bench.pairs("restart", "s", ours, reference, direction="lower", goal=1.5,
                      note=f"110M, 128 tokens a step, medians of {STARTS}; the reference has no "
                           "initial weights to draw: that time is taken off; each kill is "
                           "the first after a healthy stretch (launch --healthy 0); ckptd survives "
                           "it, so the load comes from its memory")
    for name, values in parts.items():
        yield Row(f"restart_{name}", "s", values, direction="lower")


def fresh_start(bench):
    """From the start of mpirun to the end of step 1, without the drawing of initial weights."""
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    began = time.time()
    output = bench.run(*MPIRUN, *root, "-n", "2", bench.program("trainer"), "--job.config_file",
                       "deploy/main-job.toml", "--comm.backend", "mpi", *data_110m(bench), *RESTART,
                       "--training.steps", "1", "--checkpoint.no_enable")
    at, _, _, _, weights, _, _, _ = START.search(output).groups()
    return seconds_since_epoch(at) - began - float(weights)


class Restarts:
    """A run of 4 ranks with one checkpoint, that of its first step. `with Restarts(...)`; leaving
    it ends all and removes the store."""

    def __init__(self, bench, run):
        self.bench, self.run, self.starts = bench, run, 1
        self.ckptd, server, self.store = bench.start_ckptd(
            run, "--memory.pool_bytes", "6GiB", "--memory.segment_bytes", "64MiB")
        self.folder, self.log, self.ranks = (os.path.join(bench.tmp, run + end)
                                             for end in (".dir", ".out", ".ranks"))
        os.environ["HOLDFAST_BIN"] = bench.build
        write(self.ranks, "4")
        # --healthy 0: each kill represents the first one of a healthy run. The launcher waits only
        # after successive failures, which these kills do not represent.
        command = ["deploy/launch", "--config", "deploy/main-job.toml", "--ranks-file", self.ranks,
                   "--server", server, "--healthy", "0", "--dir", self.folder, "--", "--job.run",
                   run, *data_110m(bench), *RESTART, "--training.steps", "1000",
                   "--checkpoint.enable_first_step_checkpoint", "--checkpoint.interval", "1000",
                   "--checkpoint.async_mode", "async_with_pinned_mem"]
        with open(self.log, "w") as output:  # a separate group: no process of it can be left
            self.launcher = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL,
                                             stdout=output, stderr=subprocess.STDOUT,
                                             start_new_session=True)

    def __enter__(self):
        wait_for(os.path.join(self.bench.tmp, self.run + ".log"), COMMITTED.pattern, self.launcher)
        return self

    def __exit__(self, *unused):
        kill_ranks(f"{self.folder}/start-*", self.run)
        os.killpg(self.launcher.pid, signal.SIGKILL)
        self.launcher.wait()
        self.bench.end(self.ckptd)
        shutil.rmtree(self.store)
        os.sync()  # no work of this row is left while the next is measured

    def resume_on(self, ranks):
        """When all ranks were killed, and the trainer's output about the start after it."""
        write(self.ranks, str(ranks))
        killed = time.time()
        kill_ranks(f"{self.folder}/start-{self.starts}", self.run)
        wait_for(self.log, START.pattern, self.launcher, self.starts + 1)
        self.starts += 1
        with open(self.log) as file:
            return killed, START.findall(file.read())[self.starts - 1]

    def kill_and_resume(self):
        """Seconds from the kill of 4 ranks to the end of the first new step on 2, and the parts."""
        if self.starts > 1:
            self.resume_on(4)
        killed, line = self.resume_on(2)
        at, init, attempt, load, weights, step, first, lived = line
        if step == "1":
            raise RuntimeError("the ranks started anew instead of from a checkpoint")
        with open(os.path.join(self.folder, "events")) as file:
            events = {tuple(line.split()[1:3]): float(line.split()[0]) for line in file}
        at, ended = seconds_since_epoch(at), events["ended", str(self.starts - 1)]
        began = events["start", str(self.starts)]
        return at - killed, [ended - killed, began - ended, at - began - float(lived)] + [
            float(part) for part in (init, attempt, load, weights, first)]


def kill_ranks(notes, run):
    """SIGKILL to every rank that left a note and is still one of the run."""
    for note in glob.glob(notes + "/rank-*.pid"):
        with open(note) as file:
            pid = int(file.read())
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                if f"\0{run}\0" in file.read():
                    os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass


def write(path, value):
    with open(path, "w") as file:
        file.write(value + "\n")


def wait_for(log, pattern, process, count=1):
    deadline, pattern = time.monotonic() + 120, re.compile(pattern, re.M)
    while len(pattern.findall(open(log).read())) < count:
        if time.monotonic() > deadline or process.poll() is not None:
            raise RuntimeError(f"no line with {pattern.pattern} in {log}: "
                               + open(log).read()[-300:])
        time.sleep(0.02)


# ---- rate ----


def row_rate(bench):
    """GFLOP/s of whole training steps in fp32, beside the library's products of the same shapes"""
    model = MODEL
    products = Program(bench.program("bench/kernels_products"))
    dim, hidden, layers = model["dim"], model["hidden"], model["layers"]
    shapes = {(dim, dim): 2 * layers, (dim, model["kv"]): 2 * layers, (dim, hidden): 2 * layers,
              (hidden, dim): layers, (dim, model["vocab"]): 1}  # how many of each
    flop = 6 * SEQ * LEAVES * sum(a * b * count for (a, b), count in shapes.items())
    options = ["--kernels.threads", "2", "--training.steps", "6", "--checkpoint.no_enable",
               "--training.mixed_precision_param", "float32"]

    def reference():
        """Of every product of a step; the library needs as long for each of three kinds."""
        needed = [a * b * count / products.ask(f"library {kind} f32 2 {SEQ} {a} {b}")["gflops"]
                  for kind in ("forward", "input", "weight") for (a, b), count in shapes.items()]
        return 3 * sum(a * b * count for (a, b), count in shapes.items()) / sum(needed)

    row = bench.pairs("rate", "GFLOP/s", pairs_max=12,
                      ours=lambda: flop / train(bench, "none", *options) / 1e9, reference=reference)
    tokens = statistics.median(row.ours) * 1e9 / flop * SEQ * LEAVES
    row.note = f"{tokens:.0f} tokens/s, fp32, one rank of two threads; linear layers only"
    yield row
    products.close()


# ---- observation ----

# Its cost depends on the calls of a step, not on its numbers: so it is measured where a step is as
# short as the layers of the main job allow, and divided by the main job's step. What settings
# can switch off is compared with a run without it. No setting switches off the flight recorder,
# which keeps one call even with comm.trace_buf_size = 0, its notes for ckptd, signs of life and the
# digests of tokens: perf samples them.
SMALL = ["--model.flavor", "tiny", "--model.n_layers", str(MODEL["layers"]), "--model.vocab_size",
         str(MODEL["vocab"]), "--training.seq_len", "32"]
UNOBSERVED = ["--metrics.straggler_percent", "0", "--metrics.spike_deviations", "0",
              "--metrics.data_wait_max_percent", "0", "--metrics.log_freq", "1000000",
              "--checkpoint.no_compare_replicas", "--checkpoint.no_compare_copies"]
ALWAYS = r"(?!flight_ring|flight_beat)flight_\w+|take_signals|XXH3_64bits_withSeed\w*"
ALWAYS_SAMPLES = 6
COMPARES = r"digest_(?:avx512|avx2|sse2)"
COPIES = ["--parallelism.data_parallel_replicate_degree", "2",
          "--parallelism.data_parallel_shard_degree", "1", "--checkpoint.interval", "1"]


def two_ranks(bench, steps, *options):
    return (bench.program("trainer"), "--job.config_file", "deploy/main-job.toml", "--job.run",
            "none", *data(bench), "--comm.ranks", "2", "--metrics.log_freq", "10",
            "--training.steps", str(steps), *options)


def cpu_of_a_step(bench, steps, *options):
    """CPU seconds of a step of two ranks, with its part of the start and of a last save."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    bench.run(*two_ranks(bench, steps, *options))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / steps


def sampled(bench, functions, steps, *options):
    """CPU seconds of a step of two ranks in functions of such names, and in what they call."""
    samples = os.path.join(bench.tmp, "perf.data")
    bench.run("perf", "record", "-q", "-F", "997", "-e", "cpu-clock", "--call-graph", "dwarf,4096",
              "-o", samples, "--", *two_ranks(bench, steps, *options))
    report = bench.run("perf", "report", "-i", samples, "--stdio", "--children", "-g", "none",
                       "--no-inline", "--percent-limit", "0", "--sort", "symbol")
    seconds = 1e-9 * int(re.search(r"^# Event count \(approx\.\): (\d+)", report, re.M)[1])
    shares = re.findall(rf"^ +([\d.]+)% +[\d.]+% +\[\.\] (?:{functions})\b", report, re.M)
    if not shares:
        raise RuntimeError(f"perf found no function like {functions}")
    return seconds * sum(map(float, shares)) / 100 / steps


def row_observation(bench):
    """what observes a run by default: stragglers, spikes, step lines; what is always on"""
    steps = 20 if bench.quick else 300
    whole = cpu_of_a_step(bench, 5 if bench.quick else 40, "--checkpoint.no_enable")
    ckptd, server, _ = bench.start_ckptd("observed", *LOST_POOL)
    runs = itertools.count()

    def saving(*options):
        return "--ckptd.address", server, "--job.run", f"run{next(runs)}", *options

    def small(*options):
        return cpu_of_a_step(bench, steps, *SMALL,
                             *saving("--checkpoint.interval", "1000000", *options))

    def share(kind, name, costs, **options):
        return kind(name, "CPU s", costs, [whole] * len(costs), direction="lower", **options)

    pairs = bench.pairs("observation", "s", ours=small, reference=lambda: small(*UNOBSERVED))
    costs = [ours - without for ours, without in zip(pairs.ours, pairs.reference)]
    yield share(Share, "observation", costs, goal=0.005,
                note="beside a step of the main job on two ranks; without flight recorder, its "
                     "notes for ckptd, signs of life and digests of tokens, which are always on")
    if shutil.which("perf"):
        times = range(2 if bench.quick else ALWAYS_SAMPLES)
        costs = [sampled(bench, ALWAYS, steps, *SMALL, *saving("--checkpoint.interval", "1000000"))
                 for _ in times]
        yield share(Share, "always_on", costs, goal=0.005,
                    note="these, by samples of perf; the digests are of an eighth of its tokens")
        costs = [sampled(bench, COMPARES, 8, *saving(*COPIES)) for _ in times]
        yield share(Row, "compare_replicas", costs,
                    note="a save's, where the state has two copies; above it has one")
    bench.end(ckptd)


# ---- blame ----

# The main job's 12 samples of a step in 3 micro-batches of 4, so that samples of a micro-batch are
# compared, too. A replay loads step BLAME_SAVED; the step before the last one warms up.
BLAME_SAVED, BLAME_STEP = 2, 4
BLAME = ["--training.local_batch_size", "4", "--canonical.micro_batches", "3",
         "--comm.ranks", "1", "--kernels.threads", "2", "--checkpoint.interval", str(BLAME_SAVED),
         "--lr_scheduler.total_steps", "1000"]


def row_blame(bench):
    """a replayed step with --blame, beside the same replay without"""
    ckptd, server, _ = bench.start_ckptd("blamed", *LOST_POOL)

    def step(*options):
        output = bench.run(bench.program("trainer"), "--job.config_file", "deploy/main-job.toml",
                           "--job.run", "blamed", "--ckptd.address", server, *data(bench), *BLAME,
                           *options)
        times = {step: seconds_since_epoch(time) for time, step, _ in LINE.findall(output)}
        return times[str(BLAME_STEP)] - times[str(BLAME_STEP - 1)]

    step("--training.steps", str(BLAME_STEP), "--checkpoint.keep_latest_k", "0")
    replay = ("--replay", str(BLAME_STEP), "--checkpoint.load_step", str(BLAME_SAVED))
    yield bench.pairs("blame", "s", ours=lambda: step(*replay, "--blame"),
                      reference=lambda: step(*replay), repeat=2, direction="lower",
                      goal=2.0, note="3 micro-batches of 4 samples, one rank of two threads")
    bench.end(ckptd)
