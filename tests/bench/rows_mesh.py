"""rows_mesh.py - what the canonical order, its blocks, recomputation and a pipeline cost.

The model has layers of the 110M preset, but 16 heads, which eight blocks divide, and leaves of
2,048 tokens. It has one layer, and one for each stage of a pipeline: every layer costs the same.
Beside recomputation, which is of layers alone, it has two, and its memory four: with one layer
there is nothing to save. The vocabulary of 4,096 keeps the output's share near that of the whole
preset: 30 % of the parameters that multiply with one layer, 18 % with two, 22 % with its twelve
and 32,000. With --quick it is the tiny model in leaves of 256: does it run?

Costs of a few percent are less than what others on a machine do to the time of a step. So both
sides are in one process (steps.c), where their steps alternate, each with a thread a rank, and the
figure is CPU seconds: waiting for a core is not in them. On a machine whose cores are all busy,
which training is, they are the time of a step. They do not show how well waiting is hidden, which
unit/trainer_overlap.c does. Blocks and recomputation change what is computed: a sample is a step.

The order of sums changes nothing of that. Its cost is in the other CPU seconds (packing, messages,
folds, gathers, norm), which the clocks of threads tell apart. So a sample of order_* is a leaf: its
exchange and folds, its part of what a step has once, and for either side the same compute, the mean
of both. What a noisy machine does to equal computing is then no cost of the order.
"""
import collections
import json
import os
import subprocess

from measure import Program, Row
from rows_train import data

SHAPE = ["--model.flavor", "110M", "--model.n_heads", "16", "--model.head_dim", "48"]
PAIRS_MAX = 16  # a sample of a leaf of either side takes 6 s


def options_of(bench, layers):
    shape = ["--model.flavor", "tiny", "--model.n_heads", "8", "--model.n_kv_heads", "8"]
    return [*(shape if bench.quick else SHAPE), "--model.vocab_size", "4096",
            "--model.n_layers", str(layers), "--training.seq_len", "256" if bench.quick else "2048",
            "--training.local_batch_size", "1", "--training.mixed_precision_param", "bfloat16",
            "--kernels.threads", "1", "--checkpoint.no_enable", "--job.run", "none"]


def command(bench, *options, layers=1):
    return [bench.program("trainer"), *data(bench), *options_of(bench, layers), *options]


class Turns:
    """Steps of two configurations in turns, as samples for Bench.pairs()."""

    def __init__(self, bench, ours, reference, samples_of, layers):
        options = [*options_of(bench, layers), "--training.dataset_path", "none"]
        self.program = Program(bench.program("bench/steps"), *options, *ours, "--", *options,
                               *reference)
        self.program.ask("step")  # touches all memory for the first time
        self.samples_of, self.samples = samples_of, []

    def ours(self):
        if not self.samples:
            self.samples = self.samples_of(self.program.ask("step"))
        return self.samples[0][0]

    def reference(self):
        return self.samples.pop(0)[1]


def by_step(step):
    return [(step["a"]["cpu"], step["b"]["cpu"])]


def by_leaf(step):
    """CPU seconds of each leaf on all ranks, with the same compute."""
    leaves = len(step["a"]["leaves"])
    compute = (step["a"]["compute"] + step["b"]["compute"]) / 2 / leaves
    sides = []
    for side in step["a"], step["b"]:
        rest = (side["cpu"] - side["compute"] - sum(side["leaves"])) / leaves
        sides.append([compute + rest + own for own in side["leaves"]])
    return list(zip(*sides))


def turns(bench, name, ours, reference, samples_of=by_step, layers=1, **row):
    sides = Turns(bench, ours, reference, samples_of, layers)
    row = bench.pairs(name, "CPU s", pairs_max=PAIRS_MAX, direction="lower", ours=sides.ours,
                      reference=sides.reference, **row)
    sides.program.close()
    return row


def estimate(bench, *options, layers=1):
    said = subprocess.run(command(bench, *options, "--estimate", "--json", layers=layers),
                          check=True, capture_output=True, text=True)
    return json.loads(said.stdout)


# ---- the canonical order ----

def row_order(bench):
    """CPU seconds of a leaf in the canonical order, beside the fast one: 2 ranks, S/d = 1, 4, 16"""
    for leaves, goal in (1, 1.02), (4, 1.05), (16, 1.05):
        options = ["--comm.ranks", "2", "--training.batch_ramp", f"0:2,1:{2 * leaves}"]
        yield turns(bench, f"order_{leaves}", options,
                    [*options, "--training.reduction", "fast"], by_leaf, pairs_min=8, goal=goal,
                    note=f"S/d = {leaves}, FSDP")


def blocks(bench, key, num, goal):
    options = ["--canonical.micro_batches", "1"]
    return turns(bench, f"{key}_{num}", [*options, f"--canonical.{key}", str(num)], options,
                 goal=goal, note="one rank, beside one block")


def row_tp_blocks(bench):
    """CPU seconds of a step in 2, 4, 8 blocks of tensor parallel on one rank, beside one block"""
    for num, goal in (2, 1.05), (4, 1.10), (8, None):
        yield blocks(bench, "tp_blocks", num, goal)


def row_cp_blocks(bench):
    """CPU seconds of a step in 2, 4, 8 blocks of context parallel on one rank, beside one block"""
    for num in 2, 4, 8:
        yield blocks(bench, "cp_blocks", num, None)


# ---- recomputation ----

RECOMPUTATION = ["--canonical.micro_batches", "1", "--activation_checkpoint.mode"]


def peak_bytes(bench, mode):
    """The most memory that a process of one step had."""
    step = command(bench, *RECOMPUTATION, mode, "--training.steps", "1", layers=4)
    process = subprocess.Popen(step, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"the trainer ended with {process.returncode}")
    return 1024 * usage.ru_maxrss


def row_recomputation(bench):
    """CPU seconds of a step that computes all activations again, beside one that keeps them"""
    yield turns(bench, "recomputation", [*RECOMPUTATION, "full"], [*RECOMPUTATION, "none"],
                goal=1.36, layers=2)


def row_recomputation_memory(bench):
    """MB that full recomputation saves a process, beside what the estimates of both differ by"""
    said = {}
    for mode in "none", "full":
        stage = estimate(bench, *RECOMPUTATION, mode, layers=4)["stages"][0]
        said[mode] = stage["kept"] + stage["shared"]
    row = bench.pairs("recomputation_memory", "MB", pairs_max=8, goal=0.95,
                      ours=lambda: (peak_bytes(bench, "none") - peak_bytes(bench, "full")) / 1e6,
                      reference=lambda: (said["none"] - said["full"]) / 1e6)
    yield row
    yield Row("recomputation_memory_most", "MB", row.ours, row.reference, "lower", 1.05,
              "the same pairs: no more than foretold, either")


# ---- the bubble of a pipeline ----

BUSY = ("forward", "recompute", "loss", "backward", "backward_input", "backward_weight")
FROM = {"forward": -1, "backward": 1, "backward_input": 1}  # the stage whose result it waits for


def compute_of_ranks(path):
    """Per rank what it computed, in that order: (name, stage, leaf, begin, seconds)."""
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    rows = {(e["pid"], e["tid"]) for e in events
            if e["name"] == "thread_name" and e["args"]["name"] == "compute"}
    ranks = collections.defaultdict(list)
    for e in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        if (e["pid"], e["tid"]) in rows and e["name"] in BUSY:
            ranks[e["pid"]].append((e["name"], e["args"]["stage"], e["args"]["leaf"],
                                    e["ts"] * 1e-6, e["dur"] * 1e-6))
    return ranks


def idle(ranks, begin, end):
    busy = sum(op[4] for ops in ranks.values() for op in ops)
    return 1 - busy / (len(ranks) * (end - begin))


def replayed_end(ranks):
    """When the last rank would be done, if messages took no time and nobody was late."""
    left = collections.Counter(op[:3] for ops in ranks.values() for op in ops)
    at, now, ended = dict.fromkeys(ranks, 0), dict.fromkeys(ranks, 0.0), {}
    while any(at[r] < len(ranks[r]) for r in ranks):
        before = dict(at)
        for rank, ops in ranks.items():
            while at[rank] < len(ops):
                name, stage, leaf, _, seconds = ops[at[rank]]
                source = name, stage + FROM.get(name, 0), leaf
                if source[1] != stage and left[source] > 0:
                    break
                now[rank] = max(now[rank], ended.get(source, 0.0)) + seconds
                left[name, stage, leaf] -= 1
                ended[name, stage, leaf] = now[rank]
                at[rank] += 1
        if before == at:
            raise RuntimeError("the drawing has stages that wait for each other")
    return max(now.values())


def row_bubble(bench):
    """idle part of two stages, beside that of their schedule with the same times of operations"""
    path, found = os.path.join(bench.tmp, "bubble.json"), {}

    def measured():
        bench.run(*command(bench, "--comm.ranks", "2", "--parallelism.pipeline_parallel_degree",
                           "2", "--parallelism.pipeline_parallel_cut", "cost",
                           "--canonical.micro_batches", "4", "--training.steps", "1",
                           "--debug.timeline_step", "1", "--debug.timeline_file", path, layers=2))
        ranks = compute_of_ranks(path)
        ops = [op for of_rank in ranks.values() for op in of_rank]
        found["schedule"] = idle(ranks, 0, replayed_end(ranks))
        return idle(ranks, min(op[3] for op in ops), max(op[3] + op[4] for op in ops))

    row = bench.pairs("bubble", "of the time", pairs_max=8, direction="lower", goal=1.10,
                      ours=measured, reference=lambda: found["schedule"], kind=Row)
    row.note = "1F1B, 4 leaves, two ranks of a thread, stages by cost"
    yield row
