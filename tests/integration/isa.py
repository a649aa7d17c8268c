#!/usr/bin/env python3
"""isa - a run of float32 has the same bits on every CPU with fused multiply-adds.

Goal: losses and the saved state of avx2 are those of the machine's best level and of avx512, also
with other numbers of threads. A run that continues at another level logs no warning of other bits.
A level without the instruction begins with training.numerics = 2; 3 is refused there, with the
setting to use. Method: a tiny Llama in float32; ckpt-cli compares the checkpoints.
unit/kernels_product.c has the definition of a product.
"""

from lib_hf import cli, main, test

STEPS, LONGER = 4, 7
STEADY = "--lr_scheduler.total_steps", LONGER


def levels():
    with open("/proc/cpuinfo") as file:
        return ("auto", "avx512") if " avx512dq " in file.read() else ("auto",)


def prepare(bed):
    bed.losses = bed.train(bed.store, "avx2", STEPS, *STEADY, "--kernels.isa", "avx2")


def same(bed, one, other):
    return cli("diff", one, other, "--store", bed.store)


@test
def every_level_threads_and_ranks_have_the_bits_of_avx2(bed):
    for number, level in enumerate(levels()):
        losses = bed.train(bed.store, level, STEPS, *STEADY, "--kernels.isa", level,
                           "--kernels.threads", number + 2, "--comm.ranks", 2)
        assert losses == bed.losses, level
        same(bed, "avx2", level)


@test
def other_numerics_have_other_bits(bed):
    before = bed.train(bed.store, "before", STEPS, *STEADY, "--training.numerics", 2,
                       "--kernels.isa", "avx2")
    assert before != bed.losses


@test
def a_run_that_goes_on_at_another_level_has_the_bits_of_one_that_stays(bed):
    stays = bed.train(bed.store, "stays", LONGER, "--kernels.isa", "avx2", *STEADY)
    goes = bed.train(bed.store, "avx2", LONGER)  # with the run's setting
    assert goes == stays[STEPS:], (goes, stays)
    same(bed, "avx2", "stays")
    said = bed.train(bed.store, "avx2", LONGER, "--kernels.isa", "sse2", want=78)
    assert "numerics" in said and "bits may differ" not in said, said


@test
def a_level_without_fused_multiply_adds_begins_with_older_numerics(bed):
    bed.train(bed.store, "older", STEPS, *STEADY, "--kernels.isa", "sse2")
    assert '"training.numerics":2' in cli("show", "older", "--store", bed.store).replace(" ", "")
    said = bed.train(bed.store, "none", STEPS, *STEADY, "--kernels.isa", "sse2",
                     "--training.numerics", 3, want=78)
    assert "training.numerics = 3 has no float32 products by sse2" in said, said
    assert "training.numerics = 2" in said, said


main(prepare)
