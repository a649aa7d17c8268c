#!/usr/bin/env python3
"""axes - training with each order of sums that a mesh's axes cause, compared with PyTorch.

Goal: 20 steps in each, and with both optimizers, have the losses and gradient norms of PyTorch on
one process, which knows no mesh. Method: a LlamaForCausalLM with random weights, and one whose
output is its embedding; the trainer's sums are cut in tp_blocks and cp_blocks. Tolerances,
relative: in fp32 1e-6 for the first loss, 1e-4 for each loss and gradient norm; in bf16, compared
with PyTorch's fp32, 1e-3 for a loss and 1e-2 for a norm (eight bits of mantissa). Other samples
exceed them.
"""
from lib_llama import TINY, compare, compare_losses, load, our_steps, save_random, their_steps
from lib_llama import torch, transformers
from lib_hf import cli, main, test

STEPS, FIRST_LOSS, LOSS, BF16_LOSS, BF16_NORM = 20, 1e-6, 1e-4, 1e-3, 1e-2
RANKS, MODE = "--comm.ranks", "--activation_checkpoint.mode"
SHARD = "--parallelism.data_parallel_shard_degree"
REPLICATE = "--parallelism.data_parallel_replicate_degree"
TENSOR, CONTEXT = "--parallelism.tensor_parallel_degree", "--parallelism.context_parallel_degree"
STAGES = "--parallelism.pipeline_parallel_degree"
ROTATE = "--parallelism.context_parallel_rotate_method"
OPTION = "--activation_checkpoint.selective_ac_option"
TP_BLOCKS, CP_BLOCKS = "--canonical.tp_blocks", "--canonical.cp_blocks"
LEAVES, GROUPS = "--canonical.micro_batches", "--canonical.groups"
# Each order of sums, and each recomputation. Every other mesh and mode has the bits of one of
# these: tests/unit/trainer_meshes.c.
WAYS = {
    "one rank": (),
    "HSDP 2 x 2, leaves in two groups": (
        RANKS, 4, REPLICATE, 2, SHARD, 2, LEAVES, 4, GROUPS, 2),
    "HSDP 2 x 2, fast reduction": (
        RANKS, 4, REPLICATE, 2, SHARD, 2, "--training.reduction", "fast"),
    "TP 4, key and value heads on two ranks each": (
        RANKS, 4, SHARD, 1, TENSOR, 4, TP_BLOCKS, 4),
    "CP 4 in a ring": (RANKS, 4, SHARD, 1, CONTEXT, 4, CP_BLOCKS, 4, ROTATE, "alltoall"),
    "CP 4, heads shared": (
        RANKS, 4, SHARD, 1, CONTEXT, 4, CP_BLOCKS, 4, TP_BLOCKS, 4, ROTATE, "ulysses"),
    "TP 2 x PP 2 x CP 2": (RANKS, 8, SHARD, 1, TENSOR, 2, TP_BLOCKS, 2, STAGES, 2, CONTEXT, 2,
                           CP_BLOCKS, 2),
    "full recomputation": (MODE, "full"),
    "recomputation by operation": (MODE, "selective", OPTION, "op"),
    "Adam": ("--optimizer.name", "Adam"),
}
BF16_WAYS = ("one rank", "HSDP 2 x 2, leaves in two groups", "HSDP 2 x 2, fast reduction",
             "TP 4, key and value heads on two ranks each", "CP 4 in a ring",
             "TP 2 x PP 2 x CP 2", "full recomputation", "recomputation by operation")
TIED = {
    "tied, one rank": (),
    "tied, TP 2 x PP 2": (RANKS, 4, SHARD, 1, TENSOR, 2, TP_BLOCKS, 2, STAGES, 2),
}
MADE = {}


def prepare(bed):
    torch.manual_seed(5)
    for name, is_tied in (("apart", False), ("tied", True)):
        MADE[name] = save_random(bed, transformers.LlamaConfig(
            **TINY, tie_word_embeddings=is_tied, initializer_range=0.1), name)


def theirs(bed, config, model="apart"):
    """Of PyTorch, once for each model, optimizer and number of samples."""
    key = model, config["optimizer"]["name"], config["canonical"]["micro_batches"]
    if key not in MADE:
        MADE[key] = their_steps(load(MADE[model]).train(), bed, config, STEPS)
    return MADE[key]


def train(bed, *options, model="apart"):
    store = bed.fresh("axes.store")
    cli("import", MADE[model], "--run", "axes", "--store", store, "--shards", 2)
    return our_steps(bed, store, "axes", MADE[model], STEPS, *options)


for way, settings in {**WAYS, **TIED}.items():
    def check(bed, way=way, settings=settings):
        model = "tied" if way in TIED else "apart"
        ours, config = train(bed, *settings, model=model)
        compare_losses(way, ours, theirs(bed, config, model), FIRST_LOSS, LOSS)
    check.__name__ = "trained_as_pytorch_trains: " + way
    test(check)


@test
def bf16_follows_fp32(bed):
    for way in BF16_WAYS:
        ours, config = train(bed, "--training.mixed_precision_param", "bfloat16", *WAYS[way])
        expected = theirs(bed, config)
        for part, (what, most) in enumerate((("loss", BF16_LOSS), ("gradient norm", BF16_NORM))):
            compare(f"bf16, {way}: {what} of {STEPS} steps",
                    max(abs(a[part] / b[part] - 1) for a, b in zip(ours, expected)), most)


@test
def other_samples_are_seen(bed):
    ours, config = train(bed, "--debug.seed", "1")
    assert abs(ours[0][0] / theirs(bed, config)[0][0] - 1) > 10 * FIRST_LOSS


if __name__ == "__main__":
    main(prepare)
