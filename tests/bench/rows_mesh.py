"""rows_mesh.py - what the canonical order, its blocks, recomputation and a pipeline cost.

The model is the 110M preset with 16 heads, which eight blocks divide, in leaves of 2,048 tokens.
With --quick it is the main job's model in leaves of 256: does it run?
"""
import collections
import json
import os
import statistics
import subprocess

from measure import Row
from rows_train import LINE, data, data_110m, seconds_since_epoch

SHAPE = ["--model.n_heads", "16", "--model.head_dim", "48"]
PAIRS_MAX = 10


def command(bench, *options):
    sized = data(bench) if bench.quick else data_110m(bench) + SHAPE
    tokens = "256" if bench.quick else "2048"
    return [bench.program("trainer"), "--job.config_file", "deploy/main-job.toml", "--job.run",
            "none", *sized, "--training.seq_len", tokens, "--training.local_batch_size", "1",
            "--training.mixed_precision_param", "bfloat16", "--checkpoint.no_enable", *options]


def step_seconds(bench, *options, steps=3):
    """The median of the steps behind the first."""
    lines = LINE.findall(bench.run(*command(bench, "--training.steps", str(steps), *options)))
    times = [seconds_since_epoch(at) for at, _, _ in lines]
    if len(times) < steps:
        raise RuntimeError(f"the trainer printed {len(times)} steps of {steps}")
    return statistics.median(after - before for before, after in zip(times, times[1:]))


def estimate(bench, *options):
    said = subprocess.run(command(bench, *options, "--estimate", "--json"), check=True,
                          capture_output=True, text=True)
    return json.loads(said.stdout)


# ---- the canonical order ----

def row_order(bench):
    """seconds of a step in the canonical order, beside the fast one: 2 ranks, S/d = 1, 4, 16"""
    for leaves, goal in (1, 1.02), (4, 1.05), (16, 1.05):
        options = ["--comm.ranks", "2", "--kernels.threads", "1",
                   "--canonical.micro_batches", str(2 * leaves)]
        steps = 3 if leaves < 16 else 2
        yield bench.pairs(
            f"order_{leaves}", "s", pairs_max=PAIRS_MAX, direction="lower", goal=goal,
            ours=lambda: step_seconds(bench, *options, steps=steps),
            reference=lambda: step_seconds(bench, *options, "--training.reduction", "fast",
                                           steps=steps),
            note=f"S/d = {leaves}, FSDP")


def blocks(bench, key, num, goal):
    options = ["--canonical.micro_batches", "1", "--kernels.threads", str(os.cpu_count())]
    return bench.pairs(f"{key}_{num}", "s", pairs_max=PAIRS_MAX, direction="lower", goal=goal,
                       ours=lambda: step_seconds(bench, *options, f"--canonical.{key}", str(num)),
                       reference=lambda: step_seconds(bench, *options),
                       note="one rank, beside one block")


def row_tp_blocks(bench):
    """seconds of a step in 2, 4, 8 blocks of tensor parallel on one rank, beside one block"""
    for num, goal in (2, 1.05), (4, 1.10), (8, None):
        yield blocks(bench, "tp_blocks", num, goal)


def row_cp_blocks(bench):
    """seconds of a step in 2, 4, 8 blocks of context parallel on one rank, beside one block"""
    for num in 2, 4, 8:
        yield blocks(bench, "cp_blocks", num, None)


# ---- recomputation ----

RECOMPUTATION = ["--canonical.micro_batches", "1", "--activation_checkpoint.mode"]


def peak_bytes(bench, mode):
    """The most memory that a process of two steps had."""
    process = subprocess.Popen(command(bench, *RECOMPUTATION, mode, "--training.steps", "2"),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"the trainer ended with {process.returncode}")
    return 1024 * usage.ru_maxrss


def row_recomputation(bench):
    """seconds of a step that computes all activations again, beside one that keeps them"""
    options = ["--kernels.threads", str(os.cpu_count()), *RECOMPUTATION]
    yield bench.pairs("recomputation", "s", pairs_max=PAIRS_MAX, direction="lower", goal=1.36,
                      ours=lambda: step_seconds(bench, *options, "full"),
                      reference=lambda: step_seconds(bench, *options, "none"))


def row_recomputation_memory(bench):
    """MB that full recomputation saves a process, beside what the estimates of both differ by"""
    said = {}
    for mode in "none", "full":
        stage = estimate(bench, *RECOMPUTATION, mode)["stages"][0]
        said[mode] = stage["kept"] + stage["shared"]
    row = bench.pairs("recomputation_memory", "MB", pairs_max=PAIRS_MAX, goal=0.95,
                      ours=lambda: (peak_bytes(bench, "none") - peak_bytes(bench, "full")) / 1e6,
                      reference=lambda: (said["none"] - said["full"]) / 1e6)
    yield row
    yield Row("recomputation_memory_most", "MB", row.ours, row.reference, "lower", 1.05,
              "the same pairs: no more than foretold, either")


# ---- the bubble of a pipeline ----

BUSY = ("forward", "recompute", "loss", "backward", "backward_input", "backward_weight")
ENDS = {"receive": ("send", -1), "receive_gradient": ("send_gradient", 1)}


def compute_of_ranks(path):
    """Per rank the operations of its compute lane, in their order: (name, stage, leaf, begin,
    seconds)."""
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    rows = {(e["pid"], e["tid"]) for e in events
            if e["name"] == "thread_name" and e["args"]["name"] == "compute"}
    ranks = collections.defaultdict(list)
    for e in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        if (e["pid"], e["tid"]) in rows and (e["name"] in BUSY or e["name"] in ENDS
                                             or e["name"].startswith("send")):
            ranks[e["pid"]].append((e["name"], e["args"]["stage"], e["args"]["leaf"],
                                    e["ts"] * 1e-6, e["dur"] * 1e-6))
    return ranks


def idle(ranks, begin, end):
    busy = sum(seconds for ops in ranks.values() for name, *_, seconds in ops if name in BUSY)
    return 1 - busy / (len(ranks) * (end - begin))


def replayed_end(ranks):
    """When the last rank would be done, if messages took no time and nobody was late."""
    at, now, sent = dict.fromkeys(ranks, 0), dict.fromkeys(ranks, 0.0), {}
    while any(at[r] < len(ranks[r]) for r in ranks):
        before = dict(at)
        for rank, ops in ranks.items():
            while at[rank] < len(ops):
                name, stage, leaf, _, seconds = ops[at[rank]]
                if name in ENDS:
                    sender, delta = ENDS[name]
                    if (sender, stage + delta, leaf) not in sent:
                        break
                    now[rank] = max(now[rank], sent[sender, stage + delta, leaf])
                elif name in BUSY:
                    now[rank] += seconds
                else:
                    sent[name, stage, leaf] = now[rank]
                at[rank] += 1
        if before == at:
            raise RuntimeError("the drawing has a receive without its send")
    return max(now.values())


def row_bubble(bench):
    """idle part of two stages, beside that of their schedule with the same times of operations"""
    path, found = os.path.join(bench.tmp, "bubble.json"), {}

    def measured():
        bench.run(*command(bench, "--comm.ranks", "2", "--parallelism.pipeline_parallel_degree",
                           "2", "--parallelism.pipeline_parallel_cut", "cost",
                           "--kernels.threads", "1", "--canonical.micro_batches", "8",
                           "--training.steps", "2", "--debug.timeline_file", path))
        ranks = compute_of_ranks(path)
        busy = [op for ops in ranks.values() for op in ops if op[0] in BUSY]
        found["schedule"] = idle(ranks, 0, replayed_end(ranks))
        return idle(ranks, min(op[3] for op in busy), max(op[3] + op[4] for op in busy))

    row = bench.pairs("bubble", "of the time", pairs_max=PAIRS_MAX, direction="lower", goal=1.10,
                      ours=measured, reference=lambda: found["schedule"], kind=Row)
    row.note = "1F1B, 8 leaves, two ranks of a thread, stages by cost"
    yield row
