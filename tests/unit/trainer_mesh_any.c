/* trainer_mesh_any.c - random meshes of all five axes, and runs that move between them.
 *
 * Goal: whatever mesh a run is on, and wherever it goes on, it has the bits of one rank. Method: a
 * run is drawn (blocks of both axes, groups of leaves, type, tied or not, mask, batch, leaves) and
 * made on one rank; then its three steps are made on three meshes of up to 16 ranks that are drawn,
 * too, each with its own schedule, stages, activations, reshard policy, rotation and threads. SEED
 * is printed and repeats a series; RUNS says how many runs (RUNS=34 are 102 meshes and 68 moves).
 */
#include "tests/unit/parallel_bed.h"
#include "tests/unit/random.h"
#include "tests/unit/suite.h"

#define RANKS_MAX 16
#define STEPS 3
#define NUM_OF_RUN 22
#define NUM_OF_MESH 20

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

/* ---- what is drawn ---- */

struct any_run {
    uint32_t tp_blocks, cp_blocks;
    char numbers[4][12];
    const char *settings[NUM_OF_RUN];
};

/* What belongs to a run, on whatever mesh. */
static void draw_run(struct any_run *out)
{
    out->tp_blocks = power_below(4);
    out->cp_blocks = power_below(4);
    snprintf(out->numbers[0], sizeof(out->numbers[0]), "%u", out->tp_blocks);
    snprintf(out->numbers[1], sizeof(out->numbers[1]), "%u", out->cp_blocks);
    snprintf(out->numbers[2], sizeof(out->numbers[2]), "%u", 1 + (uint32_t)next_random(7));
    snprintf(out->numbers[3], sizeof(out->numbers[3]), "%u", divisor_of(atoi(out->numbers[2])));
    const char *settings[NUM_OF_RUN] = {
        "--canonical.tp_blocks",
        out->numbers[0],
        "--canonical.cp_blocks",
        out->numbers[1],
        "--canonical.micro_batches",
        out->numbers[2],
        "--canonical.groups",
        out->numbers[3],
        "--training.local_batch_size",
        ONE_OF("1", "2"),
        "--training.mixed_precision_param",
        ONE_OF("float32", "bfloat16"),
        "--model.tied_embeddings",
        ONE_OF("true", "false"),
        "--training.dataset_path",
        next_random(2) == 0 ? marked_path : masked_path,
        "--training.document_mask",
        ONE_OF("true", "false"),
        "--canonical.loss_chunks",
        ONE_OF("1", "2"),
        "--parallelism.context_parallel_load_balancer",
        ONE_OF("headtail", "none"),
    };
    memcpy(out->settings, settings, sizeof(settings));
}

struct any_mesh {
    struct place place;
    const char *settings[NUM_OF_MESH];
};

static void draw_mesh(struct any_mesh *out, const struct any_run *run)
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
    bool is_named = place.pp == 2 && next_random(3) == 0;
    bool shares_heads = (int)run->tp_blocks / place.tp % place.cp == 0;
    const char *settings[NUM_OF_MESH] = {
        "--activation_checkpoint.mode",
        ONE_OF("none", "full", "selective"),
        "--activation_checkpoint.selective_ac_option",
        ONE_OF("op", "2"),
        "--parallelism.fsdp_reshard_after_forward",
        ONE_OF("default", "always", "never"),
        "--parallelism.pipeline_parallel_schedule",
        /* Four stages are as many as two layers make. */
        place.pp == 2 && !is_named ? ONE_OF("GPipe", "LoopedBFS", "1F1B", "Interleaved1F1B", "ZBH1",
                                            "InterleavedZeroBubble")
                                   : ONE_OF("GPipe", "1F1B", "ZBH1"),
        "--parallelism.pipeline_parallel_cut",
        ONE_OF("layers", "cost"),
        "--parallelism.module_fqns_per_model_part",
        !is_named ? ""
                  : ONE_OF("tok_embeddings;layers.0,layers.1,norm,output",
                           "tok_embeddings,layers.0,layers.1;norm,output"),
        "--parallelism.context_parallel_rotate_method",
        shares_heads ? ONE_OF("allgather", "alltoall", "ulysses") : ONE_OF("allgather", "alltoall"),
        "--parallelism.zero_stage",
        ONE_OF("0", "1", "2"),
        "--parallelism.bucket_cap_mb",
        ONE_OF("0", "1"),
        "--parallelism.disable_loss_parallel",
        ONE_OF("false", "true"),
    };
    out->place = place;
    memcpy(out->settings, settings, sizeof(settings));
}

/* ---- the test ---- */

static void say(const char *const *settings, int num, struct place place)
{
    printf("# pp %d x dp_replicate %d x dp_shard %d x cp %d x tp %d, %d threads:", place.pp,
           place.replicas, place.shards, place.cp, place.tp, place.threads);
    for (int i = 1; i < num; i += 2)
        printf(" %s", settings[i]);
    printf("\n");
    fflush(stdout); /* it is known when a check ends the test */
}

static void want_same_on_any_mesh(void)
{
    struct any_run run;
    const char *settings[NUM_OF_RUN + NUM_OF_MESH];
    struct outcome *reference = new_outcome(), *moving = new_outcome();
    draw_run(&run);
    memcpy(settings, run.settings, sizeof(run.settings));
    run_on(reference, alone, 0, STEPS, settings, NUM_OF_RUN);
    for (int64_t step = 0; step < STEPS; step++) {
        struct any_mesh mesh;
        draw_mesh(&mesh, &run);
        memcpy(settings + NUM_OF_RUN, mesh.settings, sizeof(mesh.settings));
        say(settings, NUM_OF_RUN + NUM_OF_MESH, mesh.place);
        run_on(moving, mesh.place, step, step + 1, settings, NUM_OF_RUN + NUM_OF_MESH);
    }
    want_same(reference, moving, alone);
    free_outcome(moving);
    free_outcome(reference);
}

TEST(test_mesh_any__a_run_has_the_same_bits_wherever_it_goes)
{
    seed_random();
    for (uint64_t i = 0; i < random_rounds("RUNS", wants_plain_kernels() ? 2 : 6); i++)
        want_same_on_any_mesh();
}

SUITE(make_tokens, remove_tokens)
