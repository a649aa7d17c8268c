/* trainer_parallel.c - the recipe and the step on many ranks.
 *
 * Goal: in the canonical order, losses, gradient norms, parameters and moments are the same bits on
 * every mesh, with every number of threads and either way of resharding, also when a run moves from
 * mesh to mesh in between; the fast order agrees to rounding; a replica that comes apart is found;
 * what does not fit is refused with the sum. Method: ranks are threads; each mesh trains the tiny
 * model for a few steps on a text made by a seeded generator, the shards are put together to whole
 * tensors and compared byte by byte.
 *
 * HOLDFAST_TEST_KERNELS=reference takes the plain C kernels (thread sanitizer).
 */
#include "tests/unit/parallel_bed.h"
#include "tests/unit/suite.h"

#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>

/* ---- the promise ---- */

TEST(test_parallel__every_mesh_gives_the_same_bits_in_float)
{
    want_same_everywhere(NULL, 0);
}

TEST(test_parallel__every_mesh_gives_the_same_bits_in_bf16)
{
    const char *extra[] = {"--training.mixed_precision_param", "bfloat16",
                           "--canonical.micro_batches", "8"};
    want_same_everywhere(extra, 4);
}

/* Its tensors are the first ones of the untied model: what is compared fits both. */
TEST(test_parallel__every_mesh_gives_a_tied_model_the_same_bits)
{
    const char *extra[] = {"--model.tied_embeddings",  "true", "--training.reduction", "fast",
                           "--parallelism.zero_stage", "1"};
    struct outcome *canonical = new_outcome(), *fast = new_outcome();
    want_same_everywhere(extra, 2);
    run_on(canonical, alone, 0, 3, extra, 2);
    run_on(fast, alone, 0, 3, extra, 4);
    want_same(canonical, fast, alone);
    for (size_t i = 0; i < NUM_PLACES; i += place_stride()) {
        free_outcome(fast);
        fast = new_outcome();
        run_on(fast, places[i], 0, 3, extra, i % 2 == 0 ? 4 : 6);
        want_near(fast, canonical);
    }
    free_outcome(canonical);
    free_outcome(fast);
}

TEST(test_parallel__every_mesh_gives_the_same_bits_within_documents)
{
    const char *extra[] = {"--training.document_mask", "--training.dataset_path", marked_path};
    want_same_everywhere(extra, 3);
    struct outcome *within = new_outcome(), *across = new_outcome();
    run_on(within, alone, 0, 1, extra, 3);
    run_on(across, alone, 0, 1, extra + 1, 2);
    assert_true(within->loss[1] != across->loss[1]);
    free_outcome(within);
    free_outcome(across);
}

/* A mean over the tokens that count: the ranks' leaves have different numbers of them. */
TEST(test_parallel__every_mesh_gives_the_same_bits_with_a_loss_mask)
{
    const char *extra[] = {"--training.dataset_path", masked_path};
    want_same_everywhere(extra, 2);
    struct outcome *masked = new_outcome(), *whole = new_outcome();
    run_on(masked, alone, 0, 1, extra, 2);
    extra[1] = marked_path;
    run_on(whole, alone, 0, 1, extra, 2);
    /* Before the first update every token costs about ln V: so does the mean of those that count.
     */
    assert_true(fabs(masked->loss[1] / whole->loss[1] - 1) < 0.05);
    assert_true(masked->loss[1] != whole->loss[1]);
    free_outcome(masked);
    free_outcome(whole);
}

TEST(test_parallel__every_mesh_gives_the_same_bits_on_a_ramp)
{
    const char *extra[] = {"--training.batch_ramp", "0:2,1:5,2:11"};
    want_same_everywhere(extra, 2);
}

TEST(test_parallel__keeping_gathered_weights_changes_no_bit)
{
    const char *extra[] = {"--parallelism.fsdp_reshard_after_forward", "never",
                           "--training.local_batch_size", "2"};
    struct outcome *reference = new_outcome();
    run_on(reference, alone, 0, 3, extra + 2, 2);
    for (size_t i = 0; i < NUM_PLACES; i += place_stride()) {
        struct outcome *outcome = new_outcome();
        run_on(outcome, places[i], 0, 3, extra, 4);
        want_same(reference, outcome, places[i]);
        free_outcome(outcome);
    }
    free_outcome(reference);
}

TEST(test_parallel__a_run_that_moves_from_mesh_to_mesh_keeps_its_bits)
{
    struct outcome *reference = new_outcome(), *moving = new_outcome();
    run_on(reference, alone, 0, STEPS_MAX, NULL, 0);
    for (int64_t step = 0; step < STEPS_MAX; step++)
        run_on(moving, places[(size_t)(step * 3 + 1) % NUM_PLACES], step, step + 1, NULL, 0);
    want_same(reference, moving, alone);
    free_outcome(reference);
    free_outcome(moving);
}

TEST(test_parallel__fast_order_is_the_same_alone_and_near_elsewhere)
{
    const char *extra[] = {"--training.reduction", "fast"};
    struct outcome *reference = new_outcome(), *fast = new_outcome();
    run_on(reference, alone, 0, 3, NULL, 0);
    run_on(fast, alone, 0, 3, extra, 2);
    want_same(reference, fast, alone); /* one rank adds its leaves in the same order */
    free_outcome(fast);
    for (size_t i = 0; i < NUM_PLACES; i += place_stride()) {
        fast = new_outcome();
        run_on(fast, places[i], 0, 3, extra, 2);
        want_near(fast, reference);
        free_outcome(fast);
    }
    free_outcome(reference);
}

TEST(test_parallel__fast_order_is_the_canonical_one_where_sums_are_divided)
{
    static const char *const ways[][2] = {{"--parallelism.zero_stage", "2"},
                                          {"--canonical.groups", "2"}};
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        const char *extra[] = {
            ways[i][0], ways[i][1], "--canonical.micro_batches", "8", "--training.reduction",
            "fast"};
        struct outcome *reference = new_outcome(), *fast = new_outcome();
        run_on(reference, alone, 0, 2, extra, 4);
        run_on(fast, (struct place){2, 2, 1, 0, 0, 0}, 0, 2, extra, 6);
        want_same(reference, fast, alone);
        free_outcome(reference);
        free_outcome(fast);
    }
}

/* Eleven leaves, each rounded to 8 bits when it is added: in six steps the loss stays within 2e-3
 * of that of float, the norm within 5e-2. A step does not begin with what the one before has left.
 */
TEST(test_parallel__sums_of_bf16_are_near_and_a_mesh_repeats_their_bits)
{
    static const struct place meshes[] = {
        {1, 1, 1, 0, 0, 0}, {2, 2, 1, 0, 0, 0}, {1, 1, 2, 2, 2, 0}};
    static const char *const reduce = "--training.mixed_precision_reduce";
    const char *extra[] = {"--canonical.cp_blocks",
                           "2",
                           "--model.tied_embeddings",
                           "true",
                           "--training.reduction",
                           "fast",
                           reduce,
                           "bfloat16"};
    struct outcome *reference = new_outcome();
    run_on(reference, alone, 0, STEPS_MAX, extra, 6);
    for (size_t i = 0; i < sizeof(meshes) / sizeof(meshes[0]); i++) {
        struct outcome *narrow = new_outcome(), *resumed = new_outcome();
        run_on(narrow, meshes[i], 0, STEPS_MAX, extra, 8);
        run_on(resumed, meshes[i], 0, 2, extra, 8);
        run_on(resumed, meshes[i], 2, STEPS_MAX, extra, 8);
        want_same(narrow, resumed, meshes[i]);
        for (int step = 1; step <= STEPS_MAX; step++) {
            double loss = fabs(narrow->loss[step] / reference->loss[step] - 1);
            double norm = fabs(narrow->grad_norm[step] / reference->grad_norm[step] - 1);
            assert_true(loss < 2e-3);
            assert_true(norm > 0 && norm < 5e-2);
        }
        free_outcome(narrow);
        free_outcome(resumed);
    }
    free_outcome(reference);
}

TEST(test_parallel__one_rank_that_is_asked_to_stop_stops_all_before_a_step)
{
    struct outcome *outcome = new_outcome();
    struct stretch stretch = {.config = configure(NULL, 0),
                              .last_step = STEPS_MAX,
                              .outcome = outcome,
                              .stop_on_rank_1 = true};
    assert_int_equal(comm_local_run(3, rank_main, &stretch), 0);
    assert_int_equal(stretch.stopped_after, 1);
    free_outcome(outcome);
}

/* The first two ranks that look. */
static unsigned look_once(void *user)
{
    static atomic_uint looks;
    (void)user;
    unsigned number = atomic_fetch_add(&looks, 1);
    return number == 0 ? 5 : number == 1 ? 9 : 0;
}

static struct step_break breaks[4]; /* by rank */

/* Who fails first ends the call from which another is still to wake. */
static int find_break(struct parallel *p, const struct step_result *result)
{
    static atomic_uint found;
    (void)result;
    ERR_TRY(parallel_find_break(p, &breaks[parallel_mesh_of(p)->world->rank]));
    atomic_fetch_add(&found, 1);
    while (atomic_load(&found) % 4 != 0)
        sched_yield();
    return report_error(ERR_INVALID, NULL, "the test has seen enough");
}

/* Two stages of two shards. A gradient that breaks at the loss does so first where the output is; a
 * weight that is too large breaks the loss of the first leaf; a weight that is none is named
 * itself. */
TEST(test_parallel__what_is_not_finite_is_found_where_it_began)
{
    static const char *const extra[] = {"--parallelism.pipeline_parallel_degree", "2",
                                        "--debug.nonfinite_at_step", "2"};
    struct outcome *outcome = new_outcome();
    struct stretch stretch = {.config = configure(extra, 4), .last_step = 1, .outcome = outcome};
    assert_int_equal(comm_local_run(4, rank_main, &stretch), 0);
    stretch.first_step = 1;
    stretch.last_step = 2;
    bed_decide = find_break;
    assert_int_equal(comm_local_run(4, rank_main, &stretch), ERR_INVALID);
    for (int rank = 0; rank < 4; rank++) {
        assert_false(breaks[rank].is_loss);
        assert_string_equal(breaks[rank].tensor, "output.weight");
        assert_int_equal(breaks[rank].num_tensors, outcome->num_tensors);
        assert_int_equal(breaks[rank].rank, 2);
        assert_int_equal(breaks[rank].stage, 1);
    }
    outcome->whole[0][3][0] = 3e38f;
    assert_int_equal(comm_local_run(4, rank_main, &stretch), ERR_INVALID);
    for (int rank = 0; rank < 4; rank++) {
        assert_false(breaks[rank].is_weight);
        assert_true(breaks[rank].is_loss);
        assert_int_equal(breaks[rank].leaf, 0);
        assert_int_equal(breaks[rank].rank, 2);
    }
    outcome->whole[0][3][0] = outcome->whole[0][6][0] = NAN;
    assert_int_equal(comm_local_run(4, rank_main, &stretch), ERR_INVALID);
    bed_decide = NULL;
    for (int rank = 0; rank < 4; rank++) {
        assert_true(breaks[rank].is_weight);
        assert_string_equal(breaks[rank].tensor, "layers.0.attention.wv.weight");
        assert_int_equal(breaks[rank].num_tensors, 2);
        assert_int_equal(breaks[rank].rank, 0);
    }
    free_outcome(outcome);
}

TEST(test_parallel__all_ranks_of_a_step_get_what_any_has_seen)
{
    struct outcome *outcome = new_outcome();
    struct stretch stretch = {
        .config = configure(NULL, 0), .last_step = 1, .outcome = outcome, .look = look_once};
    assert_int_equal(comm_local_run(3, rank_main, &stretch), 0);
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(stretch.seen[rank], 13);
    free_outcome(outcome);
}

/* What each rank was told by a step and by logits that could not read their samples. */
struct unread {
    struct config config;
    int step_rc[3], logits_rc[3];
    bool has_reason[3]; /* of the step */
};

static int unread_main(struct comm *world, void *user)
{
    struct unread *u = user;
    struct data *data = NULL;
    struct ahead *ahead = NULL;
    struct kernels *kernels = NULL;
    struct model_table *table = NULL;
    struct parallel *p = NULL;
    static float logits[32 * VOCAB];
    struct step_result result;
    ERR_TRY(data_open(&data, u->config.dataset_path, (uint32_t)u->config.seq_len, 3));
    ERR_TRY(kernels_new(&kernels, &(struct kernels_options){.num_threads = 1}));
    ERR_TRY(new_table(&table, "tiny", VOCAB));
    ERR_TRY(
        parallel_apply(&p, &(struct parallel_options){&u->config, table, kernels, world, NULL}));
    ERR_TRY(open_ahead(&ahead, &u->config, data, parallel_mesh_of(p)));
    ERR_TRY(parallel_init_state(p, 3));
    if (world->rank == 0)
        assert_int_equal(truncate(u->config.dataset_path, 4096), 0);
    ERR_TRY(comm_barrier(world));
    report_clear();
    struct step_input input = {.ahead = ahead, .step = 1};
    u->step_rc[world->rank] = parallel_step(p, &input, &result);
    u->has_reason[world->rank] = report_message()[0] != 0;
    u->logits_rc[world->rank] = parallel_logits(p, ahead, 0, logits);
    int rc = comm_barrier(world);
    ahead_close(ahead);
    parallel_free(p);
    model_table_free(table);
    kernels_free(kernels);
    data_close(data);
    return rc;
}

TEST(test_parallel__samples_that_cannot_be_read_end_a_step_on_all_ranks_alike)
{
    char shrinking[sizeof(tokens_path) + 8], line[2 * sizeof(shrinking) + 8];
    struct unread u = {.config = configure(NULL, 0)};
    snprintf(shrinking, sizeof(shrinking), "%s.short", tokens_path);
    snprintf(line, sizeof(line), "cp %s %s", tokens_path, shrinking);
    assert_int_equal(system(line), 0);
    snprintf(u.config.dataset_path, sizeof(u.config.dataset_path), "%s", shrinking);
    assert_int_equal(comm_local_run(3, unread_main, &u), 0);
    unlink(shrinking);
    for (int rank = 0; rank < 3; rank++) {
        assert_int_equal(u.step_rc[rank], ERR_CORRUPT);
        assert_true(u.has_reason[rank] == (rank == 0));
        /* Rank 0 alone reads for the logits; the others must not wait for it in vain. */
        assert_int_equal(u.logits_rc[rank], rank == 0 ? ERR_CORRUPT : 0);
    }
}

/* ---- layouts and refusals ---- */

TEST(test_parallel__a_cut_covers_every_row_once_as_fsdp2_cuts)
{
    for (uint64_t rows = 0; rows < 40; rows++)
        for (uint32_t parts = 1; parts < 12; parts++) {
            uint64_t next = 0, chunk = (rows + parts - 1) / parts;
            for (uint32_t part = 0; part < parts; part++) {
                uint64_t first, count;
                layout_cut(&first, &count, rows, parts, part);
                assert_int_equal(first, next);
                assert_true(count == chunk || first + count == rows);
                next = first + count;
            }
            assert_int_equal(next, rows);
        }
}

TEST(test_parallel__a_world_that_does_not_fit_is_refused_with_the_sum)
{
    const char *extra[] = {"--parallelism.data_parallel_replicate_degree", "2",
                           "--parallelism.data_parallel_shard_degree", "2"};
    struct config config = configure(extra, 4);
    struct mesh mesh = {.world = NULL};
    assert_int_equal(mesh_init(&mesh, &config, 0, 3), ERR_INVALID);
    assert_non_null(
        strstr(report_message(), "dp_replicate 2 x dp_shard 2 x cp 1 x tp 1 = 4 ranks, but 3"));
    assert_int_equal(mesh_init(&mesh, &config, 3, 4), 0);
    assert_int_equal(mesh.place[AXIS_REPLICATE], 1);
    assert_int_equal(mesh.place[AXIS_SHARD], 1);
    config.dp_shard = -1;
    assert_int_equal(mesh_init(&mesh, &config, 0, 3), ERR_INVALID);
    assert_int_equal(mesh_init(&mesh, &config, 5, 6), 0);
    assert_int_equal(mesh.degree[AXIS_SHARD], 3);
    config.tp = 2;
    assert_int_equal(mesh_init(&mesh, &config, 0, 6), ERR_INVALID);
    assert_non_null(strstr(report_message(), "6 ranks do not divide by pp 1 x dp_replicate 2"));
    config.pp = 2;
    assert_int_equal(mesh_init(&mesh, &config, 13, 16), 0); /* 1, 1, 0, 0, 1 */
    assert_int_equal(mesh.place[AXIS_PP] * 4 + mesh.place[AXIS_REPLICATE] * 2 + mesh.place[AXIS_TP],
                     7);
    assert_int_equal(mesh.place[AXIS_SHARD], 0);
    assert_int_equal(mesh_rank_of(&mesh, mesh.place), 13);
}

/* All meshes but the first have ranks without a leaf, some a whole replica of them. */
TEST(test_parallel__more_ranks_than_micro_batches_change_no_bit)
{
    static const struct place wide[] = {{1, 2, 1, 0, 0, 0},
                                        {1, 3, 1, 0, 0, 0},
                                        {3, 1, 1, 0, 0, 0},
                                        {2, 2, 1, 0, 0, 0},
                                        {1, 8, 1, 0, 0, 0}};
    const char *extra[] = {"--canonical.micro_batches", "2", "--training.reduction", "fast"};
    struct outcome *reference = new_outcome();
    run_on(reference, alone, 0, 3, extra, 2);
    for (size_t i = 0; i < sizeof(wide) / sizeof(wide[0]); i++) {
        struct outcome *outcome = new_outcome(), *fast = new_outcome();
        run_on(outcome, wide[i], 0, 3, extra, 2);
        want_same(reference, outcome, wide[i]);
        run_on(fast, wide[i], 0, 3, extra, 4);
        want_near(fast, reference);
        free_outcome(fast);
        free_outcome(outcome);
    }
    free_outcome(reference);
}

/* ---- replicas ---- */

/* What each rank of 3 x 2 was told before and after one bit of one replica changed. */
#define SLICE_LAST UINT32_MAX
struct apart {
    struct config config;
    int part;             /* 0 parameters, 1 exp_avg, 2 exp_avg_sq */
    uint32_t rank, slice; /* where the bit is; SLICE_LAST: in the rank's last; */
    size_t back;          /* so many elements before its last, which then differs, too */
    int before[6], after[6];
    char text[6][512];
};

static int come_apart(struct comm *world, void *user)
{
    struct apart *apart = user;
    struct kernels *kernels = NULL;
    struct model_table *table = NULL;
    struct parallel *p = NULL;
    struct replicas *replicas = NULL;
    struct model_shape shape;
    uint32_t me = world->rank;
    ERR_TRY(new_kernels(&kernels, 1));
    ERR_TRY(shape_of_settings(&shape, &apart->config, VOCAB));
    ERR_TRY(model_table_new(&table, &shape));
    ERR_TRY(parallel_apply(
        &p, &(struct parallel_options){&apart->config, table, kernels, world, NULL}));
    ERR_TRY(parallel_init_state(p, 3));
    struct state *state = parallel_state(p);
    ERR_TRY(replicas_open(&replicas, parallel_mesh_of(p), state, kernels));
    apart->before[me] = replicas_compare(replicas);
    uint32_t at = apart->slice == SLICE_LAST ? state->num_slices - 1 : apart->slice;
    const struct state_slice *slice = &state->slices[at];
    float *const parts[PARTS] = {state->param, state->exp_avg, state->exp_avg_sq};
    float *end = parts[apart->part] + slice->param.at + slice->param.count;
    if (me == apart->rank)
        ((unsigned char *)(end - 1 - apart->back))[0] ^= 1;
    if (me == apart->rank && apart->back > 0)
        ((unsigned char *)(end - 1))[0] ^= 1;
    report_clear();
    apart->after[me] = replicas_compare(replicas);
    snprintf(apart->text[me], sizeof(apart->text[me]), "%s", report_message());
    replicas_close(replicas);
    parallel_free(p);
    model_table_free(table);
    kernels_free(kernels);
    return 0;
}

TEST(test_parallel__a_replica_that_differs_in_one_bit_is_named)
{
    static const char *const names[PARTS] = {"", "exp_avg of ", "exp_avg_sq of "};
    const char *extra[] = {"--parallelism.data_parallel_replicate_degree", "3"};
    struct model_table *table;
    assert_int_equal(new_table(&table, "tiny", VOCAB), 0);
    for (int part = 0; part < PARTS; part++) {
        /* Replica 1, shard 1. */
        struct apart apart = {.config = configure(extra, 2),
                              .part = part,
                              .rank = 3,
                              .slice = 4,
                              .back = (size_t)part * 83};
        const struct model_tensor *tensor = &table->tensors[4];
        uint64_t element = tensor->rows * tensor->width - 1 - apart.back;
        char want[256];
        assert_int_equal(comm_local_run(6, come_apart, &apart), 0);
        snprintf(want, sizeof(want),
                 "%s%s is not the same on rank 1 and rank 3; 2 of 3 replicas hold what rank 1 has; "
                 "the first element that differs is [%" PRIu64 ", %" PRIu64 "]",
                 names[part], tensor->name, element / tensor->width, element % tensor->width);
        for (int rank = 0; rank < 6; rank++) {
            assert_int_equal(apart.before[rank], 0);
            assert_int_equal(apart.after[rank], ERR_ABORTED);
            if (rank == 1) /* the lowest that saw it */
                assert_non_null(strstr(apart.text[rank], want));
            else
                assert_string_equal(apart.text[rank], "");
        }
    }
    model_table_free(table);
}

/* Both ends of a pipeline hold the matrix, each updates its own. */
TEST(test_parallel__a_tied_matrix_is_compared_between_stages)
{
    char want[256];
    const char *extra[] = {
        "--parallelism.pipeline_parallel_degree",       "2", "--model.tied_embeddings", "true",
        "--parallelism.data_parallel_replicate_degree", "1"};
    for (int replicas = 1; replicas <= 2; replicas++) {
        extra[5] = replicas == 1 ? "1" : "2";
        struct apart apart = {.config = configure(extra, 6),
                              .part = replicas,
                              .rank = (uint32_t)replicas, /* the first of the second stage */
                              .slice = SLICE_LAST};
        snprintf(want, sizeof(want),
                 "tok_embeddings.weight is not the same on rank 0 and rank %d, the two ends of a "
                 "pipeline; the first element that differs is [%d, ",
                 replicas, VOCAB - 1);
        assert_int_equal(comm_local_run(2 * (uint32_t)replicas, come_apart, &apart), 0);
        bool is_said = false;
        for (int rank = 0; rank < 2 * replicas; rank++) {
            assert_int_equal(apart.before[rank], 0);
            assert_int_equal(apart.after[rank], ERR_ABORTED);
            is_said = is_said || strstr(apart.text[rank], want) != NULL;
        }
        if (!is_said)
            fail_msg("\"%s\" is not in: %s", want, apart.text[0]);
    }
}

/* Four ranks of tensor parallel and two key heads: pairs hold the same keys, all the same norms. */
TEST(test_parallel__copies_along_tensor_parallel_are_compared)
{
    static const struct {
        uint32_t slice;
        const char *want; /* NULL: a tensor that is cut has no copies */
    } ways[] = {
        {1, NULL}, /* wq */
        {2, "wk.weight is not the same on rank 2 and rank 3; 1 of 2 replicas"},
        {8, "attention_norm.weight is not the same on rank 0 and rank 3; 3 of 4 replicas hold "
            "what rank 0 has; the first element that differs is [63]"},
    };
    const char *extra[] = {"--parallelism.tensor_parallel_degree", "4"};
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct apart apart = {.config = configure(extra, 2), .rank = 3, .slice = ways[i].slice};
        assert_int_equal(comm_local_run(4, come_apart, &apart), 0);
        bool is_said = ways[i].want == NULL;
        for (int rank = 0; rank < 4; rank++) {
            assert_int_equal(apart.before[rank], 0);
            assert_int_equal(apart.after[rank], ways[i].want == NULL ? 0 : ERR_ABORTED);
            is_said = is_said || strstr(apart.text[rank], ways[i].want) != NULL;
        }
        if (!is_said)
            fail_msg("\"%s\" is not in: %s%s%s%s", ways[i].want, apart.text[0], apart.text[1],
                     apart.text[2], apart.text[3]);
    }
}

enum { SHARDS, ONE, COPIES, ZERO };

TEST(test_parallel__an_estimate_plans_without_starting_ranks)
{
    const char *extra[] = {"--estimate"};
    struct config config = configure(extra, 1);
    struct comm world = {.rank = 0, .size = 4};
    struct kernels *kernels;
    struct model_table *table;
    struct parallel *p;
    uint64_t kept[4], shared[4];
    assert_int_equal(kernels_new(&kernels, &(struct kernels_options){.num_threads = 1}), 0);
    assert_int_equal(new_table(&table, "tiny", VOCAB), 0);
    for (int i = 0; i < 4; i++) {
        world.size = i == ONE ? 1 : 4;
        config.dp_replicate = i >= COPIES ? 4 : 1;
        config.zero_stage = i == ZERO ? 1 : 0;
        struct parallel_options options = {&config, table, kernels, &world, NULL};
        assert_int_equal(parallel_apply(&p, &options), 0);
        kept[i] = memory_kept_bytes(parallel_memory(p));
        shared[i] = memory_shared_bytes(parallel_memory(p));
        parallel_free(p);
    }
    /* Four parts of each parameter, moment and accumulator are kept alone, one of four by each. */
    uint64_t state_bytes = 4 * 4 * model_shape_parameters(&table->shape);
    assert_in_range(kept[ONE] - kept[SHARDS], state_bytes * 70 / 100, state_bytes * 80 / 100);
    assert_true(shared[SHARDS] > shared[ONE]); /* gathering needs room */
    /* Copies have a quarter of the sums, and all that they come to; with ZeRO a quarter of the
     * moments, and no more of the sums. */
    assert_in_range(kept[COPIES] - kept[ONE], state_bytes * 5 / 100, state_bytes * 8 / 100);
    assert_in_range(kept[ONE] - kept[ZERO], state_bytes * 53 / 100, state_bytes * 58 / 100);
    model_table_free(table);
    kernels_free(kernels);
}

SUITE(make_tokens, remove_tokens)
