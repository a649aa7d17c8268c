/* trainer_mesh_any.c - random meshes of all five axes, and runs that move between them.
 *
 * Goal: on any mesh, and wherever it continues, a run has the bits of one rank. Method: a run is
 * drawn at random (blocks of both axes, groups of leaves, type, tied or not, mask, batch, leaves)
 * and made on one rank. Then its three steps are made on three random meshes of up to 16 ranks,
 * each with its own schedule, stages, activations, reshard policy, rotation and threads. SEED is
 * printed and repeats a series; RUNS says how many runs (RUNS=34 are 102 meshes and 68 moves). */
#include "tests/unit/parallel_bed.h"
#include "tests/unit/random.h"
#include "tests/unit/suite.h"

#define RANKS_MAX 16
#define STEPS 3

/* 1, 2, 4 .. most, each as likely; most is a power of two. */
static uint32_t power_below(uint32_t most)
{
    uint32_t powers = 1;
    while (1u << powers <= most)
        powers++;
    return 1u << next_random(powers);
}

static uint32_t divisor_of(int number)
{
    uint32_t divisor = 1 + (uint32_t)next_random((uint64_t)number);
    while ((uint32_t)number % divisor != 0)
        divisor--;
    return divisor;
}

static const char *one_of(const char *const *list, uint32_t num)
{
    return list[next_random(num)];
}
#define ONE_OF(...)                            \
    one_of((const char *const[]){__VA_ARGS__}, \
           sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

/* ---- random choices ---- */

struct any_run {
    uint32_t tp_blocks, cp_blocks;
    const char *settings;
};

/* The settings of a run, the same on every mesh. */
static struct any_run draw_run(void)
{
    uint32_t tp_blocks = power_below(4), cp_blocks = power_below(4);
    uint32_t leaves = 1 + (uint32_t)next_random(7), groups = divisor_of((int)leaves);
    const char *batch = ONE_OF("1", "2"), *type = ONE_OF("float32", "bfloat16");
    const char *tied = ONE_OF("true", "false"), *text = ONE_OF("marked", "masked");
    const char *mask = ONE_OF("true", "false"), *chunks = ONE_OF("1", "2");
    return (struct any_run){
        tp_blocks, cp_blocks,
        settings("canonical.tp_blocks=%u canonical.cp_blocks=%u canonical.micro_batches=%u"
                 " canonical.groups=%u training.local_batch_size=%s"
                 " training.mixed_precision_param=%s model.tied_embeddings=%s %s"
                 " training.document_mask=%s canonical.loss_chunks=%s"
                 " parallelism.context_parallel_load_balancer=%s",
                 tp_blocks, cp_blocks, leaves, groups, batch, type, tied, text, mask, chunks,
                 ONE_OF("headtail", "none"))};
}

static struct place draw_place(const struct any_run *run)
{
    struct place place = {.tp = (int)power_below(run->tp_blocks),
                          .cp = (int)power_below(run->cp_blocks),
                          .threads = 1 + (int)next_random(3)};
    int left = RANKS_MAX / (place.tp * place.cp);
    place.pp = 1 << next_random(left >= 4 ? 3 : left >= 2 ? 2 : 1);
    if (run->tp_blocks > 1 && run->cp_blocks > 1 && next_random(2) == 0) {
        place.tp = place.cp = place.pp = 2; /* four axes on all ranks, which chance seldom draws */
        left = 4;
    }
    left /= place.pp;
    place.shards = 1 + (int)next_random((uint64_t)left);
    place.replicas = 1 + (int)next_random((uint64_t)(left / place.shards));
    if (place.shards * place.replicas < left && place.tp * place.cp * place.pp == 8)
        place.shards = left;
    return place;
}

static const char *draw_mesh(struct place place, const struct any_run *run)
{
    bool is_named = place.pp == 2 && next_random(3) == 0;
    bool shares_heads = (int)run->tp_blocks / place.tp % place.cp == 0;
    const char *mode = ONE_OF("none", "full", "selective"), *option = ONE_OF("op", "2");
    const char *reshard = ONE_OF("default", "always", "never");
    const char *schedule =
        /* Four stages are as many as two layers make. */
        place.pp == 2 && !is_named ? ONE_OF("GPipe", "LoopedBFS", "1F1B", "Interleaved1F1B", "ZBH1",
                                            "InterleavedZeroBubble")
                                   : ONE_OF("GPipe", "1F1B", "ZBH1");
    const char *cut = ONE_OF("layers", "cost");
    const char *names = !is_named ? ""
                                  : ONE_OF("tok_embeddings;layers.0,layers.1,norm,output",
                                           "tok_embeddings,layers.0,layers.1;norm,output");
    const char *rotate =
        shares_heads ? ONE_OF("allgather", "alltoall", "ulysses") : ONE_OF("allgather", "alltoall");
    const char *zero = ONE_OF("0", "1", "2"), *bucket = ONE_OF("0", "1");
    uint32_t parts = divisor_of(place.shards);
    return settings("activation_checkpoint.mode=%s activation_checkpoint.selective_ac_option=%s"
                    " parallelism.fsdp_reshard_after_forward=%s"
                    " parallelism.pipeline_parallel_schedule=%s"
                    " parallelism.pipeline_parallel_cut=%s"
                    " parallelism.module_fqns_per_model_part=%s"
                    " parallelism.context_parallel_rotate_method=%s parallelism.zero_stage=%s"
                    " parallelism.bucket_cap_mb=%s parallelism.disable_loss_parallel=%s"
                    " parallelism.data_parallel_shard_parts=%u",
                    mode, option, reshard, schedule, cut, names, rotate, zero, bucket,
                    ONE_OF("false", "true"), parts);
}

/* ---- the test ---- */

static void want_same_on_any_mesh(void)
{
    struct any_run run = draw_run();
    struct outcome *reference = outcome_of(alone, STEPS, run.settings), *moving = new_outcome();
    for (int64_t step = 0; step < STEPS; step++) {
        struct place place = draw_place(&run);
        const char *of = settings("%s %s", run.settings, draw_mesh(place, &run));
        printf("# %s\n", settings_on(place, settings("dp_shard %d: %s", place.shards, of)));
        fflush(stdout); /* it is known when a check ends the test */
        run_on(moving, place, step, step + 1, of);
    }
    want_same(reference, moving, alone);
    free_outcomes(moving, reference);
}

TEST(test_mesh_any__a_run_has_the_same_bits_wherever_it_goes)
{
    seed_random();
    for (uint64_t i = 0; i < random_rounds("RUNS", wants_plain_kernels() ? 2 : 6); i++)
        want_same_on_any_mesh();
}

SUITE(make_tokens, remove_tokens)
