"""rows_mesh.py - the cost of the canonical order, of its blocks and of recomputation.

The model has one layer of the 110M preset, but 16 heads, which eight blocks divide, and leaves of
2,048 tokens: every layer costs the same. For recomputation, which affects only layers, it has two.
The vocabulary of 4,096 keeps the output's share near that of the whole preset: 30 % of the
parameters that multiply with one layer, 18 % with two, 22 % with its twelve and 32,000. With
--quick it is the tiny model in leaves of 256: does it run?

Costs of a few percent are less than the disturbance of a step by other processes. So both sides are
in one process (steps.c), where their steps alternate, each with one thread per rank. The figure is
CPU seconds, without waits for a core. When all cores are busy, as in training, they are the time of
a step. They do not show how well waiting is hidden; unit/trainer_overlap.c tests that. Blocks and
recomputation change the computation: a sample is a step.

The order of sums does not change the computation. Its cost is in the other CPU seconds (packing,
messages, folds, gathers, norm), which the clocks of threads measure separately. So a sample of
order_* is a leaf: its exchange and folds, its part of the work that a step does once, and for
either side the same compute, the mean of both. Noise in equal computing is then no cost of the
order.
"""
from measure import Program

SHAPE = ["--model.flavor", "110M", "--model.n_heads", "16", "--model.head_dim", "48"]
PAIRS_MAX = 16  # a sample of a leaf of either side takes 6 s


def options_of(bench, layers):
    shape = ["--model.flavor", "tiny", "--model.n_heads", "8", "--model.n_kv_heads", "8"]
    return [*(shape if bench.quick else SHAPE), "--model.vocab_size", "4096",
            "--model.n_layers", str(layers), "--training.seq_len", "256" if bench.quick else "2048",
            "--training.local_batch_size", "1", "--training.mixed_precision_param", "bfloat16",
            "--kernels.threads", "1", "--checkpoint.no_enable", "--job.run", "none"]


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


def row_recomputation(bench):
    """CPU seconds of a step that computes all activations again, beside one that keeps them"""
    yield turns(bench, "recomputation", [*RECOMPUTATION, "full"], [*RECOMPUTATION, "none"],
                goal=1.36, layers=2)
