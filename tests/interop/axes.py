#!/usr/bin/env python3
"""axes - every axis of the mesh, every mode and both optimizers, each trained as PyTorch trains it.

Goal: 20 steps on each mesh have the losses and gradient norms of PyTorch on one process, which
knows no mesh. Method: a LlamaForCausalLM with random weights; the trainer's sums are cut in
tp_blocks and cp_blocks, so that each axis also brings sums in another order. Tolerances, relative:
in fp32 1e-6 for the first loss, 1e-4 for each loss and gradient norm; in bf16, beside PyTorch's
fp32, 1e-3 for a loss and 1e-2 for a norm (eight bits of mantissa). Other samples fail it.
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
SCHEDULE = "--parallelism.pipeline_parallel_schedule"
RESHARD = "--parallelism.fsdp_reshard_after_forward"
ROTATE = "--parallelism.context_parallel_rotate_method"
OPTION = "--activation_checkpoint.selective_ac_option"
TP_BLOCKS, CP_BLOCKS = "--canonical.tp_blocks", "--canonical.cp_blocks"
WAYS = {
    "one rank": (),
    "FSDP 2": (RANKS, 2, SHARD, 2, RESHARD, "always"),
    "HSDP 2 x 2": (RANKS, 4, REPLICATE, 2, SHARD, 2),
    "TP 2": (RANKS, 2, SHARD, 1, TENSOR, 2, TP_BLOCKS, 2),
    "TP 4, key and value heads on two ranks each": (
        RANKS, 4, SHARD, 1, TENSOR, 4, TP_BLOCKS, 4),
    "CP 2": (RANKS, 2, SHARD, 1, CONTEXT, 2, CP_BLOCKS, 2),
    "CP 4": (RANKS, 4, SHARD, 1, CONTEXT, 4, CP_BLOCKS, 4),
    "CP 4 in a ring": (RANKS, 4, SHARD, 1, CONTEXT, 4, CP_BLOCKS, 4, ROTATE, "alltoall"),
    "PP 2, 1F1B": (RANKS, 2, SHARD, 1, STAGES, 2, SCHEDULE, "1F1B"),
    "PP 2, ZBH1": (RANKS, 2, SHARD, 1, STAGES, 2, SCHEDULE, "ZBH1"),
    "TP 2 x PP 2 x CP 2": (RANKS, 8, SHARD, 1, TENSOR, 2, TP_BLOCKS, 2, STAGES, 2, CONTEXT, 2,
                           CP_BLOCKS, 2),
    "full recomputation": (MODE, "full"),
    "recomputation by operation": (MODE, "selective", OPTION, "op"),
    "Adam": ("--optimizer.name", "Adam"),
}
MADE = {}


def prepare(bed):
    torch.manual_seed(5)
    MADE["folder"] = save_random(bed, transformers.LlamaConfig(
        **TINY, tie_word_embeddings=False, initializer_range=0.1))


def theirs(bed, config):
    """Of PyTorch, once for each optimizer."""
    name = config["optimizer"]["name"]
    if name not in MADE:
        MADE[name] = their_steps(load(MADE["folder"]).train(), bed, config, STEPS)
    return MADE[name]


def train(bed, *options):
    store = bed.fresh("axes.store")
    cli("import", MADE["folder"], "--run", "axes", "--store", store, "--shards", 2)
    return our_steps(bed, store, "axes", MADE["folder"], STEPS, *options)


for way in WAYS:
    def check(bed, way=way):
        ours, config = train(bed, *WAYS[way])
        compare_losses(way, ours, theirs(bed, config), FIRST_LOSS, LOSS)
    check.__name__ = "trained_as_pytorch_trains: " + way
    test(check)


@test
def bf16_follows_fp32(bed):
    ours, config = train(bed, "--training.mixed_precision_param", "bfloat16")
    expected = theirs(bed, config)
    for part, (what, most) in enumerate((("loss", BF16_LOSS), ("gradient norm", BF16_NORM))):
        compare(f"bf16: {what} of {STEPS} steps",
                max(abs(a[part] / b[part] - 1) for a, b in zip(ours, expected)), most)


@test
def other_samples_are_seen(bed):
    ours, config = train(bed, "--debug.seed", "1")
    assert abs(ours[0][0] / theirs(bed, config)[0][0] - 1) > 10 * FIRST_LOSS


if __name__ == "__main__":
    main(prepare)
