/* trainer_meshes.c - pipelines and other axes than those of data: the same bits on every mesh.
 *
 * Goal: losses, gradient norms, parameters and moments do not depend on the number of stages, on
 * the schedule, on what is computed again, nor on where a run goes on. Method: see parallel_bed.h.
 */
#include "tests/unit/parallel_bed.h"
#include "tests/unit/suite.h"

/* ---- pipelines ---- */

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

static void want_same_in_pipelines(const char *schedule, const char *value, struct place place,
                                   int way)
{
    static const char *const modes[] = {"none", "full", "selective", "memory_budget"};
    const char *extra[] = {"--activation_checkpoint.mode",
                           "none",
                           "--training.mixed_precision_param",
                           way % 2 == 0 ? "float32" : "bfloat16",
                           "--model.tied_embeddings",
                           way % 3 == 0 ? "true" : "false",
                           "--activation_checkpoint.selective_ac_option",
                           way % 2 == 0 ? "op" : "2",
                           "--parallelism.fsdp_reshard_after_forward",
                           way % 5 == 0 ? "always" : "default",
                           schedule,
                           value};
    struct outcome *reference = new_outcome(), *outcome = new_outcome();
    run_on(reference, alone, 0, 2, extra, 10);
    extra[1] = modes[way % 4];
    run_on(outcome, place, 0, 2, extra, 12);
    want_same(reference, outcome, place);
    free_outcome(outcome);
    free_outcome(reference);
}

TEST(test_meshes__every_pipeline_gives_the_same_bits)
{
    static const char *const names[] = {
        "GPipe", "1F1B", "ZBH1", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble"};
    static const struct place pipes[] = {{1, 1, 1, 2, 0, 0}, {1, 1, 2, 4, 0, 0},
                                         {1, 2, 1, 2, 0, 0}, {2, 1, 1, 2, 0, 0},
                                         {1, 3, 1, 2, 0, 0}, {2, 2, 1, 2, 0, 0}};
    const char *key = "--parallelism.pipeline_parallel_schedule";
    int way = 0;
    for (size_t i = 0; i < sizeof(pipes) / sizeof(pipes[0]); i += place_stride())
        for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++)
            if (n < 3 || pipes[i].pp == 2) /* four stages are as many as two layers make */
                want_same_in_pipelines(key, names[n], pipes[i], way++);
}

TEST(test_meshes__a_schedule_from_a_file_gives_the_same_bits)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/schedule", folder);
    write_schedule(path, 11);
    want_same_in_pipelines("--parallelism.pipeline_parallel_schedule_csv", path,
                           (struct place){1, 1, 1, 2, 0, 0}, 1);
    unlink(path);
}

TEST(test_meshes__a_run_moves_between_pipelines_on_a_ramp)
{
    const char *extra[] = {"--training.batch_ramp", "0:2,1:5,2:11"};
    static const struct place moves[] = {
        {1, 1, 1, 4, 0, 0}, {2, 1, 1, 2, 0, 0}, {1, 2, 1, 0, 0, 0}, {1, 2, 1, 4, 0, 0}};
    struct outcome *reference = new_outcome(), *moving = new_outcome();
    run_on(reference, alone, 0, 4, extra, 2);
    for (int64_t step = 0; step < 4; step++)
        run_on(moving, moves[step], step, step + 1, extra, 2);
    want_same(reference, moving, alone);
    free_outcome(reference);
    free_outcome(moving);
}

/* What one leaf leaves for the next: parameters that stay gathered, leaves that all wait for the
 * last one's forward. */
TEST(test_meshes__what_outlives_a_leaf_has_room_of_its_own)
{
    static const struct place two = {1, 1, 1, 1, 1, 2};
    const char *extra[] = {"--canonical.tp_blocks",
                           "4",
                           "--canonical.cp_blocks",
                           "4",
                           "--training.local_batch_size",
                           "2",
                           "",
                           ""};
    struct outcome *reference = new_outcome(), *outcome = new_outcome();
    run_on(reference, alone, 0, 2, extra, 6);
    extra[6] = "--parallelism.fsdp_reshard_after_forward";
    extra[7] = "never";
    run_on(outcome, two, 0, 2, extra, 8);
    want_same(reference, outcome, two);
    extra[6] = "--parallelism.pipeline_parallel_schedule";
    extra[7] = "GPipe";
    run_on(outcome, alone, 0, 2, extra, 8);
    want_same(reference, outcome, alone);
    free_outcome(outcome);
    free_outcome(reference);
}

/* ---- groups of leaves ---- */

static void want_same_with_groups(const char *leaves, const char *groups, struct place place,
                                  int way)
{
    const char *extra[] = {"--canonical.micro_batches",
                           leaves,
                           "--canonical.groups",
                           groups,
                           "--canonical.cp_blocks",
                           place.cp > 1 ? "2" : "1",
                           "--training.dataset_path",
                           way % 2 == 0 ? marked_path : masked_path,
                           "--model.tied_embeddings",
                           way % 3 == 0 ? "true" : "false",
                           "--parallelism.bucket_cap_mb",
                           way % 2 == 0 ? "0" : "1",
                           "--parallelism.zero_stage",
                           way % 4 == 1 ? "1" : "0",
                           "--parallelism.exchange_behind",
                           way % 4 == 2 ? "0" : "2"};
    struct outcome *reference = new_outcome(), *outcome = new_outcome();
    run_on(reference, alone, 0, 2, extra, 10);
    run_on(outcome, place, 0, 2, extra, 16);
    want_same(reference, outcome, place);
    free_outcome(outcome);
    free_outcome(reference);
}

/* As many groups as replicas, more, fewer, and not a multiple; groups that shards do not divide. */
TEST(test_meshes__replicas_sum_their_groups_first_and_have_the_same_bits)
{
    static const struct {
        const char *leaves, *groups;
        struct place place;
    } list[] = {
        {"12", "3", {3, 2, 1, 0, 0, 0}}, {"10", "5", {2, 1, 1, 0, 0, 0}},
        {"9", "3", {1, 2, 2, 0, 0, 0}},  {"4", "2", {3, 1, 1, 0, 0, 0}},
        {"8", "4", {2, 2, 1, 0, 2, 0}},  {"6", "6", {2, 1, 1, 2, 0, 0}},
        {"4", "2", {1, 3, 1, 2, 0, 0}},
    };
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i += place_stride())
        want_same_with_groups(list[i].leaves, list[i].groups, list[i].place, (int)i);
}

TEST(test_meshes__groups_may_be_cut_otherwise_by_a_ramp)
{
    const char *extra[] = {"--canonical.micro_batches", "12",
                           "--training.batch_ramp",     "0:4,1:8,2:12",
                           "--canonical.groups",        "4"};
    static const struct place moves[] = {
        {2, 2, 1, 0, 0, 0}, {4, 1, 1, 0, 0, 0}, {1, 2, 1, 2, 0, 0}};
    struct outcome *reference = new_outcome(), *outcome = new_outcome();
    run_on(reference, alone, 0, 3, extra, 6);
    run_on(outcome, moves[0], 0, 3, extra, 6);
    want_same(reference, outcome, moves[0]);
    for (int64_t step = 0; step < 3; step++)
        run_on(outcome, moves[step], step, step + 1, extra, 6);
    want_same(reference, outcome, alone);
    free_outcome(outcome);
    free_outcome(reference);
}

/* ---- tensor parallel ---- */

/* The first `common` settings are one rank's, too; extra[1] is the activation checkpoint's mode. */
static void want_same_in_modes(struct place place, const char **extra, int common, int all, int way)
{
    static const char *const modes[] = {"none", "selective", "full"};
    struct outcome *reference = new_outcome(), *outcome = new_outcome();
    run_on(reference, alone, 0, 2, extra, common);
    extra[1] = modes[way % 3];
    run_on(outcome, place, 0, 2, extra, all);
    want_same(reference, outcome, place);
    free_outcome(outcome);
    free_outcome(reference);
}

/* The blocks belong to the run; one rank has them all. */
static void want_same_with_blocks(const char *blocks, struct place place, int way)
{
    const char *extra[] = {"--activation_checkpoint.mode",
                           "none",
                           "--training.mixed_precision_param",
                           way % 2 == 0 ? "bfloat16" : "float32",
                           "--model.tied_embeddings",
                           way % 3 == 0 ? "true" : "false",
                           "--canonical.tp_blocks",
                           blocks,
                           "--activation_checkpoint.selective_ac_option",
                           "op",
                           "--parallelism.pipeline_parallel_schedule",
                           way % 4 == 0 ? "ZBH1" : "1F1B",
                           "--parallelism.disable_loss_parallel",
                           way % 2 == 0 ? "false" : "true"};
    want_same_in_modes(place, extra, 8, 14, way);
}

TEST(test_meshes__every_tensor_parallel_degree_gives_the_same_bits)
{
    /* The tiny model has four heads and two of keys: with four, ranks share a head of keys. */
    static const struct {
        const char *blocks;
        struct place place;
    } list[] = {
        {"2", {1, 1, 1, 1, 1, 2}}, {"4", {1, 1, 2, 1, 1, 2}}, {"4", {1, 1, 1, 1, 1, 4}},
        {"2", {1, 2, 1, 1, 1, 2}}, {"4", {2, 1, 1, 1, 1, 2}}, {"4", {1, 3, 1, 1, 1, 4}},
        {"2", {1, 1, 1, 2, 1, 2}}, {"4", {1, 2, 1, 2, 1, 4}}, {"4", {2, 2, 1, 2, 1, 2}},
    };
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i += place_stride())
        want_same_with_blocks(list[i].blocks, list[i].place, (int)i);
}

/* The text has 300 tokens: eight blocks are of 38, the last of 34; 32 are of 10, and two have none.
 * Without loss parallel, tied, in chunks; shards, pieces and moments of nothing but what fills up.
 */
TEST(test_meshes__a_vocabulary_that_blocks_do_not_divide_gives_the_same_bits)
{
    static const struct {
        const char *heads, *tied, *chunks, *zero;
        struct place place;
    } list[] = {
        {"8", "true", "2", "0", {1, 3, 1, 1, 1, 8}},
        {"32", "true", "1", "1", {2, 8, 1, 1, 1, 2}},
        {"8", "true", "1", "0", {1, 2, 1, 2, 1, 4}},
        {"32", "false", "1", "0", {2, 2, 1, 1, 1, 4}},
    };
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        const char *extra[] = {"--activation_checkpoint.mode",
                               "none",
                               "--training.mixed_precision_param",
                               i % 2 == 0 ? "float32" : "bfloat16",
                               "--model.tied_embeddings",
                               list[i].tied,
                               "--canonical.tp_blocks",
                               list[i].heads,
                               "--model.n_heads",
                               list[i].heads,
                               "--canonical.loss_chunks",
                               list[i].chunks,
                               "--training.local_batch_size",
                               "2",
                               "--parallelism.zero_stage",
                               list[i].zero,
                               "--parallelism.disable_loss_parallel",
                               i == 3 ? "true" : "false"};
        want_same_in_modes(list[i].place, extra, 14, 18, (int)i);
    }
}

/* They are in no sum: the loss is that of the tokens alone, but for the order of sums. */
TEST(test_meshes__what_fills_a_vocabulary_up_has_no_part_in_the_loss)
{
    const char *extra[] = {"--model.n_heads", "32", "--canonical.tp_blocks", "32"};
    struct outcome *one = new_outcome(), *filled = new_outcome();
    run_on(one, alone, 0, 3, extra, 2);
    run_on(filled, alone, 0, 3, extra, 4);
    want_near(one, filled);
    free_outcome(one);
    free_outcome(filled);
}

/* ---- context parallel ---- */

/* The blocks of both axes belong to the run; one rank has them all. */
static void want_same_with_chunks(const char *blocks, struct place place, const char *rotate,
                                  int way)
{
    static const char *const head_blocks[] = {[1] = "1", [2] = "2", [4] = "4"};
    int sharers = degree(place.tp) * degree(place.cp);
    const char *extra[] = {"--activation_checkpoint.mode",
                           "none",
                           "--training.mixed_precision_param",
                           way % 2 == 0 ? "bfloat16" : "float32",
                           "--model.tied_embeddings",
                           way % 3 == 0 ? "true" : "false",
                           "--canonical.cp_blocks",
                           blocks,
                           "--canonical.tp_blocks",
                           head_blocks[strcmp(rotate, "ulysses") == 0 ? sharers : degree(place.tp)],
                           "--training.local_batch_size",
                           way % 4 == 0 ? "2" : "1",
                           "--training.dataset_path",
                           marked_path,
                           "--training.document_mask",
                           way % 4 == 1 ? "true" : "false",
                           "--activation_checkpoint.selective_ac_option",
                           "op",
                           "--parallelism.pipeline_parallel_schedule",
                           way % 4 == 2 ? "ZBH1" : "1F1B",
                           "--parallelism.context_parallel_rotate_method",
                           rotate};
    want_same_in_modes(place, extra, 16, 22, way);
}

TEST(test_meshes__every_context_parallel_degree_gives_the_same_bits)
{
    static const struct {
        const char *blocks;
        struct place place;
        const char *rotate;
    } list[] = {
        {"2", {1, 1, 1, 1, 2, 1}, "allgather"}, {"4", {1, 1, 2, 1, 2, 1}, "alltoall"},
        {"4", {1, 1, 1, 1, 4, 1}, "alltoall"},  {"2", {1, 2, 1, 1, 2, 1}, "alltoall"},
        {"4", {2, 1, 1, 1, 2, 1}, "allgather"}, {"4", {2, 2, 1, 1, 4, 1}, "allgather"},
        {"2", {1, 1, 1, 2, 2, 1}, "allgather"}, {"2", {1, 1, 1, 1, 2, 2}, "allgather"},
        {"4", {1, 2, 1, 2, 2, 2}, "alltoall"},  {"4", {1, 1, 1, 2, 4, 2}, "alltoall"},
        {"2", {1, 2, 1, 1, 2, 1}, "ulysses"},   {"4", {1, 1, 2, 1, 4, 1}, "ulysses"},
        {"4", {2, 1, 1, 2, 2, 2}, "ulysses"},   {"4", {1, 1, 3, 1, 2, 1}, "ulysses"},
    };
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i += place_stride())
        want_same_with_chunks(list[i].blocks, list[i].place, list[i].rotate, (int)i);
}

static void want_other_order(const char *key, const char *document_mask)
{
    const char *extra[] = {"--training.dataset_path",
                           marked_path,
                           "--training.document_mask",
                           document_mask,
                           "--canonical.micro_batches",
                           "10",
                           key,
                           "2"};
    struct outcome *one = new_outcome(), *two = new_outcome();
    run_on(one, alone, 0, 3, extra, 6);
    run_on(two, alone, 0, 3, extra, 8);
    want_near(one, two);
    assert_true(one->loss[3] != two->loss[3]);
    free_outcome(one);
    free_outcome(two);
}

TEST(test_meshes__blocks_are_another_order_of_sums)
{
    want_other_order("--canonical.groups", "false");
    want_other_order("--canonical.tp_blocks", "false");
    want_other_order("--canonical.cp_blocks", "false");
    want_other_order("--canonical.cp_blocks", "true");
}

/* ---- moments of bf16 ---- */

TEST(test_meshes__moments_of_bf16_are_rounded_alike)
{
    const char *extra[] = {"--canonical.tp_blocks",     "2",       "--canonical.cp_blocks", "2",
                           "--optimizer.moments_dtype", "bfloat16"};
    static const struct place list[] = {{1, 2, 2, 1, 1, 1}, {1, 1, 1, 2, 2, 1}, {2, 1, 2, 1, 2, 1}};
    struct outcome *reference = new_outcome(), *wide = new_outcome();
    run_on(reference, alone, 0, 3, extra, 6);
    run_on(wide, alone, 0, 3, extra, 4);
    assert_true(reference->loss[3] != wide->loss[3]);
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        struct outcome *outcome = new_outcome();
        run_on(outcome, list[i], 0, 1, extra, 6);
        run_on(outcome, list[(i + 1) % 3], 1, 3, extra, 6);
        want_same(reference, outcome, list[i]);
        free_outcome(outcome);
    }
    free_outcome(wide);
    free_outcome(reference);
}

/* ---- float8 ---- */

/* The format that is set comes as far as the products; what none sets is e5m2. */
TEST(test_meshes__gradients_of_e4m3_are_others_than_those_of_e5m2)
{
    const char *extra[] = {"--model.converters", "quantize.linear.float8",
                           "--quantize.linear.float8.grad_output_dtype", "float8_e5m2"};
    struct outcome *outcomes[3];
    for (int i = 0; i < 3; i++) {
        outcomes[i] = new_outcome();
        extra[3] = i == 1 ? "float8_e5m2" : "float8_e4m3fn";
        run_on(outcomes[i], alone, 0, 1, extra, i == 0 ? 2 : 4);
    }
    want_same(outcomes[0], outcomes[1], alone);
    assert_true(outcomes[2]->loss[1] == outcomes[1]->loss[1]);
    assert_true(outcomes[2]->grad_norm[1] != outcomes[1]->grad_norm[1]);
    for (int i = 0; i < 3; i++)
        free_outcome(outcomes[i]);
}

/* One rank rounds the weight that it reads; shards, replicas, stages and places of tensor parallel
 * gather codes, of heads that several ranks hold, too. The run moves between them, in steps
 * that change the scales. */
TEST(test_meshes__gathered_codes_give_the_bits_of_rounded_weights)
{
    const char *extra[] = {"--canonical.tp_blocks",
                           "4",
                           "--quantize.linear.float8.filter_fqns",
                           "layers.1.attention.wo,w2",
                           "--model.converters",
                           "quantize.linear.float8",
                           "--training.mixed_precision_param",
                           "bfloat16",
                           "--optimizer.lr",
                           "0.05",
                           "--lr_scheduler.warmup_steps",
                           "0",
                           "--quantize.linear.float8.enable_fsdp_float8_all_gather",
                           "true"};
    static const struct place list[] = {{1, 2, 1, 1, 1, 1}, {1, 4, 2, 1, 1, 1}, {2, 2, 1, 1, 1, 1},
                                        {1, 2, 1, 2, 1, 1}, {1, 2, 1, 1, 1, 2}, {1, 3, 1, 1, 1, 4}};
    const size_t num = sizeof(list) / sizeof(list[0]);
    for (size_t type = 0; type < 2; type++) {
        struct outcome *reference = new_outcome();
        extra[7] = type == 0 ? "bfloat16" : "float32";
        run_on(reference, alone, 0, 3, extra, 12);
        for (size_t i = 0; i < num; i++) {
            struct outcome *outcome = new_outcome();
            run_on(outcome, list[i], 0, 2, extra, 14);
            run_on(outcome, list[(i + 1) % num], 2, 3, extra, i % 2 == 0 ? 14 : 12);
            want_same(reference, outcome, list[i]);
            free_outcome(outcome);
        }
        free_outcome(reference);
    }
}

TEST(test_meshes__float8_products_give_the_same_bits)
{
    const char *extra[] = {"--canonical.tp_blocks",
                           "2",
                           "--canonical.cp_blocks",
                           "2",
                           "--quantize.linear.float8.filter_fqns",
                           "layers.1.attention.wo,w2,layers.0.attention.wq",
                           "--activation_checkpoint.mode",
                           "none",
                           "--model.converters",
                           "quantize.linear.float8"};
    static const struct place list[] = {{1, 2, 1, 1, 1, 2}, {1, 1, 1, 2, 2, 1}, {2, 1, 2, 1, 2, 1}};
    struct outcome *reference = new_outcome(), *without = new_outcome();
    struct outcome *unnamed = new_outcome();
    run_on(reference, alone, 0, 2, extra, 10);
    run_on(without, alone, 0, 2, extra, 8);
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        struct outcome *outcome = new_outcome();
        extra[7] = i == 0 ? "full" : "none";
        run_on(outcome, list[i], 0, 2, extra, 10);
        want_same(reference, outcome, list[i]);
        free_outcome(outcome);
    }
    extra[5] = "layers.1.attention.wo";
    run_on(unnamed, alone, 0, 2, extra, 10);
    assert_true(reference->loss[1] != without->loss[1]);
    assert_true(reference->loss[1] != unnamed->loss[1]);
    free_outcome(unnamed);
    free_outcome(without);
    free_outcome(reference);
}

TEST(test_meshes__a_run_moves_between_all_axes)
{
    const char *extra[] = {"--canonical.tp_blocks", "4", "--canonical.cp_blocks", "4"};
    static const struct place moves[] = {{1, 1, 1, 1, 1, 4}, {2, 1, 2, 2, 4, 1},
                                         {1, 3, 1, 1, 2, 2}, {1, 1, 1, 4, 1, 4},
                                         {1, 2, 1, 1, 4, 1}, {1, 2, 1, 2, 2, 2}};
    struct outcome *reference = new_outcome(), *moving = new_outcome();
    run_on(reference, alone, 0, 6, extra, 4);
    for (int64_t step = 0; step < 6; step++)
        run_on(moving, moves[step], step, step + 1, extra, 4);
    want_same(reference, moving, alone);
    free_outcome(reference);
    free_outcome(moving);
}

static void want_refused_on(uint32_t ranks, const char *const *extra, int num_extra,
                            const char *reason)
{
    struct stretch stretch = {.config = configure(extra, num_extra), .outcome = NULL};
    report_clear();
    assert_int_equal(comm_local_run(ranks, rank_main, &stretch), ERR_INVALID);
    if (strstr(report_message(), reason) == NULL)
        fail_msg("\"%s\" is not in: %s", reason, report_message());
}

static void want_refused(const char *const *extra, int num_extra, const char *reason)
{
    want_refused_on(1, extra, num_extra, reason);
}

TEST(test_meshes__schedules_have_the_stages_of_their_names)
{
    const char *extra[] = {"--parallelism.pipeline_parallel_degree",   "4",
                           "--parallelism.pipeline_parallel_schedule", "LoopedBFS",
                           "--parallelism.data_parallel_shard_degree", "1"};
    want_refused_on(4, extra, 6, "in 8 pipeline stages");
    extra[3] = "InterleavedZeroBubble";
    want_refused_on(4, extra, 6, "in 8 pipeline stages");
}

TEST(test_meshes__what_blocks_cannot_cut_is_refused_with_the_sum)
{
    const char *heads[] = {"--canonical.tp_blocks", "8"};
    const char *three[] = {"--canonical.tp_blocks", "3"};
    const char *chunks[] = {"--canonical.cp_blocks", "2", "--training.seq_len", "30"};
    const char *degree[] = {"--canonical.cp_blocks",
                            "2",
                            "--parallelism.context_parallel_degree",
                            "4",
                            "--parallelism.data_parallel_shard_degree",
                            "1"};
    const char *odd[] = {"--parallelism.tensor_parallel_degree", "3",
                         "--parallelism.data_parallel_shard_degree", "1"};
    want_refused(heads, 2, "the number of heads 4 does not divide by canonical.tp_blocks = 8");
    want_refused(three, 2, "canonical.tp_blocks = 3");
    want_refused(chunks, 4, "training.seq_len 30 does not divide by 2 x canonical.cp_blocks = 4");
    want_refused_on(4, degree, 6,
                    "context_parallel_degree = 4 does not divide canonical.cp_blocks = 2");
    want_refused_on(3, odd, 4, "parallelism.tensor_parallel_degree = 3");
}

SUITE(make_tokens, remove_tokens)
