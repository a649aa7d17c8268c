/* trainer_meshes.c - the same bits on every mesh.
 *
 * Goal: in the canonical order, losses, gradient norms, parameters and moments do not depend on the
 * mesh, the schedule, the threads, on recomputation or repeated gathers, nor on the mesh where a
 * run continues; the fast order agrees to rounding. Method: see parallel_bed.h. Each row is a run,
 * and a mesh with its own settings; a setting that a row leaves open takes all its values. */
#include "tests/unit/parallel_bed.h"

#define NUM_OF(list) (sizeof(list) / sizeof(list[0]))

/* ---- replicas and shards ---- */

/* With two leaves all meshes but the first have ranks without one, some a whole replica of them. */
TEST(test_meshes__every_mesh_of_replicas_and_shards_gives_the_same_bits)
{
    static const char *const runs[][2] = {
        {"", ""},
        {"training.mixed_precision_param=bfloat16 canonical.micro_batches=8", ""},
        {"model.tied_embeddings=true", ""},
        {"marked training.document_mask=true", ""},
        {"masked", ""},
        {"training.batch_ramp=0:2,1:5,2:11", ""},
        {"training.local_batch_size=2", "parallelism.fsdp_reshard_after_forward=never"},
        {"canonical.micro_batches=2", ""},
    };
    for (size_t i = 0; i < NUM_OF(runs); i++)
        want_same_everywhere(places, NUM_PLACES, runs[i][0], runs[i][1]);
}

static void want_other_loss(const char *of, const char *other, double tolerance)
{
    struct outcome *a = outcome_of(alone, 1, of), *b = outcome_of(alone, 1, other);
    assert_true(a->loss[1] != b->loss[1]);
    assert_true(fabs(a->loss[1] / b->loss[1] - 1) < tolerance);
    free_outcomes(a, b);
}

/* Before the first update every token costs about ln V: so does the mean of those that count. */
TEST(test_meshes__documents_and_masks_change_the_loss)
{
    want_other_loss("marked training.document_mask=true", "marked", 1);
    want_other_loss("masked", "marked", 0.05);
}

/* ---- the fast order ---- */

/* One rank adds its leaves in the same order. */
TEST(test_meshes__the_fast_order_is_the_same_alone_and_near_elsewhere)
{
    static const char *const runs[] = {"", "model.tied_embeddings=true",
                                       "canonical.micro_batches=2"};
    for (size_t run = 0; run < NUM_OF(runs); run++) {
        const char *fast = settings("%s training.reduction=fast", runs[run]);
        struct outcome *reference = outcome_of(alone, 3, runs[run]);
        struct outcome *same = outcome_of(alone, 3, fast);
        want_same(reference, same, alone);
        for (size_t i = 0; i < NUM_PLACES; i += place_stride()) {
            struct outcome *near = outcome_of(
                places[i], 3, settings("%s parallelism.zero_stage=%zu", fast, (i + run) % 2));
            want_near(near, reference);
            free_outcomes(near);
        }
        free_outcomes(reference, same);
    }
}

TEST(test_meshes__the_fast_order_is_the_canonical_one_where_sums_are_divided)
{
    static const struct place square = {2, 2, 1, 0, 0, 0};
    want_same_on(square, 2, "canonical.micro_batches=8 parallelism.zero_stage=2",
                 "training.reduction=fast");
    want_same_on(square, 2, "canonical.micro_batches=8 canonical.groups=2",
                 "training.reduction=fast");
}

/* Eleven leaves, each rounded to 8 bits when it is added: in six steps the loss stays within 2e-3
 * of that of float, the norm within 5e-2. A step does not begin with the residue of the step
 * before. */
TEST(test_meshes__sums_of_bf16_are_near_and_a_mesh_repeats_their_bits)
{
    static const struct place meshes[] = {
        {1, 1, 1, 0, 0, 0}, {2, 2, 1, 0, 0, 0}, {1, 1, 2, 2, 2, 0}};
    const char *of = "canonical.cp_blocks=2 model.tied_embeddings=true training.reduction=fast";
    struct outcome *reference = outcome_of(alone, STEPS_MAX, of);
    of = settings("%s training.mixed_precision_reduce=bfloat16", of);
    for (size_t i = 0; i < NUM_OF(meshes); i++) {
        struct outcome *narrow = outcome_of(meshes[i], STEPS_MAX, of);
        struct outcome *resumed = outcome_of(meshes[i], 2, of);
        run_on(resumed, meshes[i], 2, STEPS_MAX, of);
        want_same(narrow, resumed, meshes[i]);
        for (int step = 1; step <= STEPS_MAX; step++) {
            double norm = fabs(narrow->grad_norm[step] / reference->grad_norm[step] - 1);
            assert_true(fabs(narrow->loss[step] / reference->loss[step] - 1) < 2e-3);
            assert_true(norm > 0 && norm < 5e-2);
        }
        free_outcomes(narrow, resumed);
    }
    free_outcomes(reference);
}

/* ---- other axes ---- */

struct row {
    struct place place;
    const char *run, *mesh;
};

static void want_row(const struct row *row, unsigned way)
{
    static const char *const modes[] = {"none", "full", "selective", "memory_budget"};
    const char *run =
        settings("marked training.mixed_precision_param=%s model.tied_embeddings=%s"
                 " training.document_mask=%s %s",
                 way % 2 == 0 ? "bfloat16" : "float32", way % 3 == 0 ? "true" : "false",
                 way % 4 == 1 ? "true" : "false", row->run);
    const char *mesh =
        settings("activation_checkpoint.mode=%s"
                 " activation_checkpoint.selective_ac_option=%s"
                 " parallelism.fsdp_reshard_after_forward=%s"
                 " parallelism.disable_loss_parallel=%s %s",
                 modes[way / 2 % 4], way % 3 == 0 ? "op" : "2", way % 5 == 0 ? "always" : "default",
                 way % 2 == 0 ? "false" : "true", row->mesh);
    want_same_on(row->place, 2, run, mesh);
}

#define SCHEDULE "parallelism.pipeline_parallel_schedule"

#define GROUPS(leaves, groups) "canonical.micro_batches=" leaves " canonical.groups=" groups
#define SHARD_PARTS(number) "parallelism.data_parallel_shard_parts=" number
#define BUCKETS "parallelism.bucket_cap_mb=1"
#define AT_ONCE "parallelism.exchange_behind=0"
#define HEADS(blocks) "canonical.tp_blocks=" blocks
#define CHUNKS(blocks) "canonical.cp_blocks=" blocks
#define ROTATE "parallelism.context_parallel_rotate_method="

/* Pairs of modes on few ranks are in trainer_compositions.c, meshes of all axes at random in
 * trainer_mesh_any.c. Here: ranks that do not divide leaves, stages in turn; more and fewer groups
 * than replicas, and shards that do not divide them; parts of shards that have them; with four
 * heads and two of keys, ranks that share a head of keys; rings and shared heads of two and four
 * ranks. */
TEST(test_meshes__every_axis_gives_the_same_bits)
{
    static const struct row rows[] = {
        {{1, 3, 1, 2, 0, 0}, "", SCHEDULE "=LoopedBFS"},
        {{2, 1, 1, 2, 0, 0}, "", SCHEDULE "=InterleavedZeroBubble"},
        {{1, 1, 2, 4, 0, 0}, "", SCHEDULE "=ZBH1"},
        {{3, 2, 1, 0, 0, 0}, GROUPS("12", "3"), ""},
        {{2, 1, 1, 0, 0, 0}, GROUPS("10", "5") " masked", BUCKETS " parallelism.zero_stage=1"},
        {{1, 2, 2, 0, 0, 0}, GROUPS("9", "3"), AT_ONCE},
        {{3, 1, 1, 0, 0, 0}, GROUPS("4", "2") " masked", BUCKETS},
        {{2, 2, 1, 0, 2, 0}, GROUPS("8", "4") " " CHUNKS("2"), ""},
        {{1, 3, 1, 2, 0, 0}, GROUPS("4", "2"), AT_ONCE},
        {{1, 6, 1, 0, 0, 0}, GROUPS("12", "3"), SHARD_PARTS("3")},
        {{2, 4, 1, 0, 0, 0}, GROUPS("8", "4"), SHARD_PARTS("2") " parallelism.zero_stage=2"},
        {{1, 4, 1, 0, 2, 0}, GROUPS("6", "6") " " CHUNKS("2"), SHARD_PARTS("4") " " BUCKETS},
        {{1, 1, 1, 1, 1, 4}, HEADS("4"), ""},
        {{1, 3, 1, 1, 1, 4}, HEADS("4"), ""},
        {{2, 2, 1, 2, 1, 2}, HEADS("4"), SCHEDULE "=ZBH1"},
        {{1, 1, 1, 1, 4, 1}, CHUNKS("4"), ROTATE "alltoall"},
        {{2, 2, 1, 1, 4, 1}, CHUNKS("4"), ROTATE "allgather"},
        {{1, 2, 1, 2, 2, 2}, CHUNKS("4") " " HEADS("2"), ROTATE "alltoall"},
        {{1, 1, 2, 1, 4, 1}, CHUNKS("4") " " HEADS("4"), ROTATE "ulysses"},
        {{2, 1, 1, 2, 2, 2}, CHUNKS("4") " " HEADS("4"), ROTATE "ulysses"},
        {{1, 1, 3, 1, 2, 1}, CHUNKS("4") " " HEADS("2"), ROTATE "ulysses"},
    };
    for (size_t i = 0; i < NUM_OF(rows); i += place_stride())
        want_row(&rows[i], (unsigned)i);
}

/* A schedule of two stages in which each micro-batch's weights wait for the next one's forward. */
static void write_schedule(const char *path, int leaves)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int stage = 0; stage < 2; stage++) {
        for (int i = 0; i < leaves; i++) {
            fprintf(file, "%dF%d,%dI%d,", stage, i, stage, i);
            if (i > 0)
                fprintf(file, "%dW%d,", stage, i - 1);
        }
        fprintf(file, "%dW%d\n", stage, leaves - 1);
    }
    fclose(file);
}

TEST(test_meshes__a_schedule_from_a_file_gives_the_same_bits)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/schedule", folder);
    write_schedule(path, 11);
    want_same_on((struct place){1, 1, 1, 2, 0, 0}, 2, "",
                 settings("activation_checkpoint.mode=full " SCHEDULE "_csv=%s", path));
    unlink(path);
}

/* State that one leaf keeps for the next: parameters that stay gathered, leaves that all wait for
 * the last one's forward. */
TEST(test_meshes__what_outlives_a_leaf_has_room_of_its_own)
{
    const char *run = "canonical.tp_blocks=4 canonical.cp_blocks=4 training.local_batch_size=2";
    want_same_on((struct place){1, 1, 1, 1, 1, 2}, 2, run,
                 "parallelism.fsdp_reshard_after_forward=never");
    want_same_on(alone, 2, run, SCHEDULE "=GPipe");
}

TEST(test_meshes__groups_may_be_cut_otherwise_by_a_ramp)
{
    static const struct place moves[] = {
        {2, 2, 1, 0, 0, 0}, {4, 1, 1, 0, 0, 0}, {1, 2, 1, 2, 0, 0}};
    const char *run = GROUPS("12", "4") " training.batch_ramp=0:4,1:8,2:12";
    want_same_on(moves[0], 3, run, "");
    want_same_moving(moves, 3, run);
}

#define WIDE(heads) HEADS(heads) " model.n_heads=" heads " training.local_batch_size=2"

/* The text has 300 tokens: eight blocks are of 38, the last of 34; 32 are of 10, and two have none.
 * Without loss parallel, tied, in chunks; shards, pieces and moments of padding alone. */
TEST(test_meshes__a_vocabulary_that_blocks_do_not_divide_gives_the_same_bits)
{
    static const char *const whole = "parallelism.disable_loss_parallel=false";
    const struct row rows[] = {
        {{1, 3, 1, 1, 1, 8},
         WIDE("8") " model.tied_embeddings=true canonical.loss_chunks=2",
         whole},
        {{2, 8, 1, 1, 1, 2},
         WIDE("32") " model.tied_embeddings=true",
         settings("%s parallelism.zero_stage=1", whole)},
        {{1, 2, 1, 2, 1, 4}, WIDE("8") " model.tied_embeddings=true", whole},
        {{2, 2, 1, 1, 1, 4},
         WIDE("32") " model.tied_embeddings=false",
         "parallelism.disable_loss_parallel=true"},
    };
    for (size_t i = 0; i < NUM_OF(rows); i++)
        want_row(&rows[i], (unsigned)i);
}

/* ---- runs that move ---- */

TEST(test_meshes__a_run_that_moves_between_meshes_keeps_its_bits)
{
    static const struct place of_data[] = {{1, 2, 1, 0, 0, 0}, {1, 4, 1, 0, 0, 0},
                                           {3, 1, 1, 0, 0, 0}, {1, 1, 2, 0, 0, 0},
                                           {1, 3, 2, 0, 0, 0}, {1, 8, 1, 0, 0, 0}};
    static const struct place pipelines[] = {
        {1, 1, 1, 4, 0, 0}, {2, 1, 1, 2, 0, 0}, {1, 2, 1, 0, 0, 0}, {1, 2, 1, 4, 0, 0}};
    static const struct place all_axes[] = {{1, 1, 1, 1, 1, 4}, {2, 1, 2, 2, 4, 1},
                                            {1, 3, 1, 1, 2, 2}, {1, 1, 1, 4, 1, 4},
                                            {1, 2, 1, 1, 4, 1}, {1, 2, 1, 2, 2, 2}};
    want_same_moving(of_data, 6, "");
    want_same_moving(pipelines, 4, "training.batch_ramp=0:2,1:5,2:11");
    want_same_moving(all_axes, 6, "canonical.tp_blocks=4 canonical.cp_blocks=4");
}

/* ---- settings of a run that change its bits ---- */

/* The padding of a vocabulary is in no sum. */
TEST(test_meshes__blocks_are_another_order_of_sums)
{
    static const struct {
        const char *of, *blocks;
    } ways[] = {
        {"marked canonical.micro_batches=10", "canonical.groups=2"},
        {"marked", "canonical.tp_blocks=2"},
        {"marked", "canonical.cp_blocks=2"},
        {"marked training.document_mask=true", "canonical.cp_blocks=2"},
        {"model.n_heads=32", "canonical.tp_blocks=32"},
    };
    for (size_t i = 0; i < NUM_OF(ways); i++) {
        struct outcome *one = outcome_of(alone, 3, ways[i].of);
        struct outcome *two = outcome_of(alone, 3, settings("%s %s", ways[i].of, ways[i].blocks));
        want_near(one, two);
        assert_true(one->loss[3] != two->loss[3]);
        free_outcomes(one, two);
    }
}

#define BLOCKS HEADS("2") " " CHUNKS("2")

TEST(test_meshes__moments_of_bf16_are_rounded_alike)
{
    const char *narrow = BLOCKS " optimizer.moments_dtype=bfloat16";
    static const struct place list[] = {
        {1, 2, 2, 1, 1, 1}, {1, 1, 1, 2, 2, 1}, {2, 1, 2, 1, 2, 1}, {1, 2, 2, 1, 1, 1}};
    struct outcome *reference = outcome_of(alone, 3, narrow);
    struct outcome *wide = outcome_of(alone, 3, BLOCKS);
    assert_true(reference->loss[3] != wide->loss[3]);
    for (size_t i = 0; i < 3; i++) {
        struct outcome *outcome = outcome_of(list[i], 1, narrow);
        run_on(outcome, list[i + 1], 1, 3, narrow);
        want_same(reference, outcome, list[i]);
        free_outcomes(outcome);
    }
    free_outcomes(wide, reference);
}

/* ---- float8 ---- */

#define FLOAT8 "model.converters=quantize.linear.float8"
#define FORMAT " quantize.linear.float8.grad_output_dtype=float8_"

/* The configured format reaches the products; the default is e5m2. */
TEST(test_meshes__gradients_of_e4m3_are_others_than_those_of_e5m2)
{
    struct outcome *none = outcome_of(alone, 1, FLOAT8);
    struct outcome *e5m2 = outcome_of(alone, 1, FLOAT8 FORMAT "e5m2");
    struct outcome *e4m3 = outcome_of(alone, 1, FLOAT8 FORMAT "e4m3fn");
    want_same(none, e5m2, alone);
    assert_true(e4m3->loss[1] == e5m2->loss[1]);
    assert_true(e4m3->grad_norm[1] != e5m2->grad_norm[1]);
    free_outcomes(none, e5m2, e4m3);
}

/* One rank rounds the weight that it reads; shards, replicas, stages and places of tensor parallel
 * gather codes, of heads that several ranks hold, too. The run moves between them, in steps
 * that change the scales. */
TEST(test_meshes__gathered_codes_give_the_bits_of_rounded_weights)
{
    static const struct place list[] = {{1, 2, 1, 1, 1, 1}, {1, 4, 2, 1, 1, 1}, {2, 2, 1, 1, 1, 1},
                                        {1, 2, 1, 2, 1, 1}, {1, 2, 1, 1, 1, 2}, {1, 3, 1, 1, 1, 4},
                                        {1, 2, 1, 1, 1, 1}};
    static const char *const types[] = {"bfloat16", "float32"};
    for (size_t type = 0; type < 2; type++) {
        const char *run =
            settings(FLOAT8 " canonical.tp_blocks=4 optimizer.lr=0.05 lr_scheduler.warmup_steps=0"
                            " quantize.linear.float8.filter_fqns=layers.1.attention.wo,w2"
                            " training.mixed_precision_param=%s",
                     types[type]);
        const char *coded =
            settings("%s quantize.linear.float8.enable_fsdp_float8_all_gather=true", run);
        struct outcome *reference = outcome_of(alone, 3, run);
        for (size_t i = 0; i < NUM_OF(list) - 1; i++) {
            struct outcome *outcome = outcome_of(list[i], 2, coded);
            run_on(outcome, list[i + 1], 2, 3, i % 2 == 0 ? coded : run);
            want_same(reference, outcome, list[i]);
            free_outcomes(outcome);
        }
        free_outcomes(reference);
    }
}

TEST(test_meshes__float8_products_give_the_same_bits)
{
    static const struct place list[] = {{1, 2, 1, 1, 1, 2}, {1, 1, 1, 2, 2, 1}, {2, 1, 2, 1, 2, 1}};
    const char *named = BLOCKS " quantize.linear.float8.filter_fqns=layers.1.attention.wo";
    const char *run = settings("%s,w2,layers.0.attention.wq " FLOAT8, named);
    for (size_t i = 0; i < NUM_OF(list); i++)
        want_same_on(list[i], 2, run,
                     i == 0 ? "activation_checkpoint.mode=full"
                            : "activation_checkpoint.mode=none");
    want_other_loss(run, BLOCKS, 0.1);
    want_other_loss(run, settings("%s " FLOAT8, named), 0.1);
}

SUITE(make_tokens, remove_tokens)
