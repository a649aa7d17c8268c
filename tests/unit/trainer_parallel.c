/* trainer_parallel.c - the step on many ranks, apart from its numbers.
 *
 * Goal: all ranks learn of a request, a finding or a read error of one rank. A value that is not
 * finite is found at its origin. A diverging replica is found. A world that does not fit is refused
 * with the sum. Method: see parallel_bed.h; one rank is asked to stop, loses its samples, or gets a
 * wrong bit. trainer_meshes.c tests that meshes have the same bits. */
#include "tests/unit/parallel_bed.h"
#include "tests/unit/suite.h"

#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>

TEST(test_parallel__one_rank_that_is_asked_to_stop_stops_all_before_a_step)
{
    struct outcome *outcome = new_outcome();
    struct stretch stretch = {.config = configure(""),
                              .last_step = STEPS_MAX,
                              .outcome = outcome,
                              .stop_on_rank_1 = true};
    assert_int_equal(comm_local_run(3, rank_main, &stretch), 0);
    assert_int_equal(stretch.stopped_after, 1);
    free_outcomes(outcome);
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

/* The rank that fails first may end a call from which another has yet to wake. */
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

/* Two stages of two shards. A gradient that breaks at the loss is first found where the output is.
 * A weight that is too large breaks the loss of the first leaf. A weight that is not finite is
 * named itself. */
TEST(test_parallel__what_is_not_finite_is_found_where_it_began)
{
    struct outcome *outcome = new_outcome();
    struct stretch stretch = {.config = configure("parallelism.pipeline_parallel_degree=2"
                                                  " debug.nonfinite_at_step=2"),
                              .last_step = 1,
                              .outcome = outcome};
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
    free_outcomes(outcome);
}

TEST(test_parallel__all_ranks_of_a_step_get_what_any_has_seen)
{
    struct outcome *outcome = new_outcome();
    struct stretch stretch = {
        .config = configure(""), .last_step = 1, .outcome = outcome, .poll_switches = look_once};
    assert_int_equal(comm_local_run(3, rank_main, &stretch), 0);
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(stretch.seen[rank], 13);
    free_outcomes(outcome);
}

/* The results on each rank of a step, and of logits that could not read their samples. */
struct unread {
    struct config config;
    int step_rc[3], logits_rc[3];
    bool has_reason[3]; /* of the step */
};

static int read_short(struct rank *r, void *user)
{
    struct unread *u = user;
    static float logits[32 * VOCAB];
    struct step_result result;
    if (r->world->rank == 0)
        assert_int_equal(truncate(u->config.dataset_path, 4096), 0);
    ERR_TRY(comm_barrier(r->world));
    report_clear();
    struct step_input input = {.ahead = r->ahead, .step = 1};
    u->step_rc[r->world->rank] = parallel_step(r->p, &input, &result);
    u->has_reason[r->world->rank] = report_message()[0] != 0;
    u->logits_rc[r->world->rank] = parallel_logits(r->p, r->ahead, 0, logits);
    return comm_barrier(r->world);
}

TEST(test_parallel__samples_that_cannot_be_read_end_a_step_on_all_ranks_alike)
{
    char shrinking[sizeof(tokens_path) + 8], line[2 * sizeof(shrinking) + 8];
    struct unread u = {.config = configure("")};
    snprintf(shrinking, sizeof(shrinking), "%s.short", tokens_path);
    snprintf(line, sizeof(line), "cp %s %s", tokens_path, shrinking);
    assert_int_equal(system(line), 0);
    snprintf(u.config.dataset_path, sizeof(u.config.dataset_path), "%s", shrinking);
    assert_int_equal(
        on_ranks(3, &(struct rank_options){.config = &u.config, .run = read_short, .user = &u}), 0);
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
    struct config config = configure("parallelism.data_parallel_replicate_degree=2"
                                     " parallelism.data_parallel_shard_degree=2");
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

/* Of 16 shards: as many as there are machines, unless one had no group of leaves. */
TEST(test_parallel__shards_are_in_parts_of_a_machine_where_leaves_are_in_groups)
{
    static const struct {
        int64_t groups, machine_ranks, cp, parts; /* as given; 0: not */
        uint32_t want;                            /* 0: refused */
    } cases[] = {{1, 4, 1, 0, 1}, {4, 4, 1, 0, 4},  {8, 4, 1, 0, 4},  {2, 4, 1, 0, 1},
                 {4, 8, 1, 0, 2}, {4, 32, 1, 0, 1}, {4, 5, 1, 0, 1},  {8, 4, 2, 0, 8},
                 {4, 4, 1, 8, 8}, {4, 4, 1, 1, 1},  {1, 4, 1, 16, 1}, {4, 4, 1, 3, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct config config = configure("");
        struct mesh mesh = {.world = NULL};
        config.groups = cases[i].groups;
        config.machine_ranks = cases[i].machine_ranks;
        config.shard_parts = cases[i].parts;
        config.cp = cases[i].cp;
        int rc = mesh_init(&mesh, &config, 13, 16 * (uint32_t)config.cp);
        assert_int_equal(rc, cases[i].want > 0 ? 0 : ERR_INVALID);
        if (rc != 0)
            continue;
        assert_int_equal(mesh.parts, cases[i].want);
        assert_int_equal(mesh_group_size(&mesh, GROUP_REPLICAS), cases[i].want);
        assert_int_equal(mesh_group_size(&mesh, GROUP_SHARD), 16);
        for (enum group group = 0; group < NUM_GROUPS; group++)
            assert_int_equal(mesh_group_rank(&mesh, group, mesh_group_place(&mesh, group)), 13);
    }
}

/* ---- replicas ---- */

/* The results on each rank of 3 x 2 before and after one bit of one replica changed. */
#define SLICE_LAST UINT32_MAX
struct apart {
    struct config config;
    int part;             /* 0 parameters, 1 exp_avg, 2 exp_avg_sq */
    uint32_t rank, slice; /* where the bit is; SLICE_LAST: in the rank's last; */
    size_t back;          /* so many elements before its last, which then differs, too */
    int before[6], after[6];
    char text[6][512];
};

static int come_apart(struct rank *r, void *user)
{
    struct apart *apart = user;
    struct replicas *replicas = NULL;
    struct state *state = parallel_state(r->p);
    uint32_t me = r->world->rank;
    ERR_TRY(replicas_open(&replicas, parallel_mesh_of(r->p), state, r->kernels));
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
    return 0;
}

/* All ranks agree before, and afterwards where no copy differs. One reports its finding. */
static void want_apart(struct apart *apart, uint32_t ranks, int after, const char *want)
{
    bool is_said = want == NULL;
    assert_int_equal(on_ranks(ranks, &(struct rank_options){.config = &apart->config,
                                                            .run = come_apart,
                                                            .user = apart}),
                     0);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        assert_int_equal(apart->before[rank], 0);
        assert_int_equal(apart->after[rank], after);
        is_said = is_said || strstr(apart->text[rank], want) != NULL;
    }
    for (uint32_t rank = 0; rank < ranks && !is_said; rank++)
        print_error("rank %u: %s\n", rank, apart->text[rank]);
    if (!is_said)
        fail_msg("nobody says \"%s\"", want);
}

TEST(test_parallel__a_replica_that_differs_in_one_bit_is_named)
{
    static const char *const names[PARTS] = {"", "exp_avg of ", "exp_avg_sq of "};
    struct model_table *table;
    assert_int_equal(new_table(&table, "tiny", VOCAB), 0);
    for (int part = 0; part < PARTS; part++) {
        /* Replica 1, shard 1. */
        struct apart apart = {.config = configure("parallelism.data_parallel_replicate_degree=3"),
                              .part = part,
                              .rank = 3,
                              .slice = 4,
                              .back = (size_t)part * 83};
        const struct model_tensor *tensor = &table->tensors[4];
        uint64_t element = tensor->rows * tensor->width - 1 - apart.back;
        want_apart(
            &apart, 6, ERR_ABORTED,
            settings("%s%s is not the same on rank 1 and rank 3; 2 of 3 replicas hold what "
                     "rank 1 has; the first element that differs is [%" PRIu64 ", %" PRIu64 "]",
                     names[part], tensor->name, element / tensor->width, element % tensor->width));
        for (int rank = 0; rank < 6; rank++) /* the lowest that saw it speaks */
            assert_true(rank == 1 || apart.text[rank][0] == '\0');
    }
    model_table_free(table);
}

/* Both ends of a pipeline hold the matrix, each updates its own. */
TEST(test_parallel__a_tied_matrix_is_compared_between_stages)
{
    for (int replicas = 1; replicas <= 2; replicas++) {
        struct place place = {replicas, 1, 1, 2, 0, 0};
        struct apart apart = {.config = configure(settings_on(place, "model.tied_embeddings=true")),
                              .part = replicas,
                              .rank = (uint32_t)replicas, /* the first of the second stage */
                              .slice = SLICE_LAST};
        want_apart(&apart, place_size(place), ERR_ABORTED,
                   settings("tok_embeddings.weight is not the same on rank 0 and rank %d, the two "
                            "ends of a pipeline; the first element that differs is [%d, ",
                            replicas, VOCAB - 1));
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
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct apart apart = {.config = configure("parallelism.tensor_parallel_degree=4"),
                              .rank = 3,
                              .slice = ways[i].slice};
        want_apart(&apart, 4, ways[i].want == NULL ? 0 : ERR_ABORTED, ways[i].want);
    }
}

enum { SHARDS, ONE, COPIES, ZERO };

TEST(test_parallel__an_estimate_plans_without_starting_ranks)
{
    struct config config = configure("estimate=true");
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
    /* Copies have a quarter of the sums, and their full total; with ZeRO a quarter of the moments,
     * and no more of the sums. */
    assert_in_range(kept[COPIES] - kept[ONE], state_bytes * 5 / 100, state_bytes * 8 / 100);
    assert_in_range(kept[ONE] - kept[ZERO], state_bytes * 53 / 100, state_bytes * 58 / 100);
    model_table_free(table);
    kernels_free(kernels);
}

SUITE(make_tokens, remove_tokens)
