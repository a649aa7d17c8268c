/* trainer_suggest.c - the suggested meshes, and the predicted time of their steps.
 *
 * Goal: every mesh of so many ranks is considered. The printed ones fit and are sorted by seconds.
 * A step lasts as long as its products and calls at the given rates. Method: calls in groups of a
 * mesh compared with sums by hand; dry ranks of the tiny model; all meshes of 8 ranks. */
#include "tests/unit/parallel_bed.h"
#include "tests/unit/suite.h"
#include "trainer/forecast/estimate.h"
#include "trainer/forecast/suggest.h"

/* 16 ranks on machines of 4: shard 8 x tp 2. Rank 0's groups: tp 0, 1; shards 0, 2, 4 .. 14. */
TEST(test_suggest__a_call_lasts_what_its_links_carry)
{
    struct config config = configure("parallelism.tensor_parallel_degree=2");
    struct rates rates = {1, .machine_bytes = 400, .network_bytes = 10, .call_seconds = 3, 4};
    struct comm *world;
    struct mesh mesh = {0};
    size_t each[8], at[8] = {0};
    assert_int_equal(comm_dry_open(&world, 0, 16), 0);
    mesh.world = world;
    assert_int_equal(mesh_init(&mesh, &config, 0, 16), 0);
    assert_int_equal(mesh_split(&mesh), 0);
    for (int i = 0; i < 8; i++)
        each[i] = 80;
    const struct comm *tp = mesh.of[GROUP_TP], *shard = mesh.of[GROUP_SHARD];
    struct comm_call gather = {.kind = COMM_ALL_GATHER, .bytes = 80};
    struct comm_call all = {.kind = COMM_ALL_TO_ALL,
                            .send_bytes = each,
                            .send_at = at,
                            .recv_bytes = each,
                            .recv_at = at};
    struct comm_call receive = {.kind = COMM_RECEIVE, .bytes = 80};
    struct comm_call send = {.kind = COMM_SEND, .bytes = 80};
    assert_float_equal(rates_call(&rates, &mesh, tp, &gather), 3 + 80 / 400.0, 1e-12);
    /* 7 x 80 bytes around a ring, over the links of the two ranks on a machine. */
    assert_float_equal(rates_call(&rates, &mesh, shard, &gather), 3 + 560 / 20.0, 1e-12);
    /* 6 x 80 bytes to other machines, over the link of this rank. */
    assert_float_equal(rates_call(&rates, &mesh, shard, &all), 3 + 480 / 10.0, 1e-12);
    assert_float_equal(rates_call(&rates, &mesh, shard, &receive), 3 + 80 / 10.0, 1e-12);
    assert_float_equal(rates_call(&rates, &mesh, tp, &receive), 3 + 80 / 400.0, 1e-12);
    assert_float_equal(rates_call(&rates, &mesh, tp, &send), 0, 0);
    assert_int_equal(rates_away(4, &mesh, tp, &gather), 0);
    assert_int_equal(rates_away(4, &mesh, shard, &gather), 560 / 2);
    assert_int_equal(rates_away(4, &mesh, shard, &all), 480);
    mesh_free_groups(&mesh);
    comm_free(world);
}

/* ---- a step ---- */

static struct dry_rank rated_rank(const struct planned *m, uint32_t size, const struct rates *rates)
{
    struct dry_rank rank;
    struct dry_options options = {.config = &m->config,
                                  .table = m->table,
                                  .kernels = m->kernels,
                                  .size = size,
                                  .rates = rates};
    assert_int_equal(dry_run(&rank, &options), 0);
    return rank;
}

/* Two ranks of tensor parallel, whose calls compute waits for: within a machine and beside it. */
TEST(test_suggest__a_step_lasts_what_its_products_and_calls_last)
{
    struct planned m = open_planned("parallelism.tensor_parallel_degree=2");
    struct rates rates = {1e9, .machine_bytes = 1e6, .network_bytes = 1e3, .machine_ranks = 2};
    struct dry_rank near = rated_rank(&m, 2, &rates);
    rates.machine_ranks = 1;
    struct dry_rank far = rated_rank(&m, 2, &rates);
    rates.machine_bytes = rates.network_bytes = 1e30;
    struct dry_rank alone = rated_rank(&m, 2, &rates);
    uint64_t work = 0, sent = estimate_traffic(&near, TRAFFIC_TP);
    for (uint32_t kind = 0; kind < NUM_OP_KINDS; kind++)
        work += near.work[kind];
    assert_float_equal(alone.compute_seconds, (double)work / 1e9, 1e-9 * alone.seconds);
    assert_float_equal(alone.seconds, alone.compute_seconds, 1e-6 * alone.seconds);
    /* Sums of a few numbers of all ranks are beside it. */
    double more = (double)sent * (1 / 1e3 - 1 / 1e6);
    assert_float_equal(far.seconds - near.seconds, more, 0.02 * more);
    close_planned(&m);
}

/* ---- all meshes ---- */

static uint64_t ranks_of(const struct suggestion *at)
{
    uint64_t ranks = 1;
    for (uint32_t axis = 0; axis < NUM_AXES; axis++)
        ranks *= at->degree[axis];
    return ranks;
}

static struct suggestions suggest(const char *of)
{
    struct suggestions all;
    struct planned m = open_planned(of);
    assert_int_equal(suggest_meshes(&all, &m.config, m.table, m.kernels, 8), 0);
    close_planned(&m);
    for (uint32_t i = 0; i < all.num; i++) {
        assert_int_equal(ranks_of(&all.list[i]), 8);
        assert_true(i == 0 || all.list[i - 1].seconds <= all.list[i].seconds);
        assert_true((double)all.list[i].bytes <= m.config.rank_gib * (1u << 30));
    }
    assert_int_equal(all.num_meshes, 35); /* 2^3 on five axes */
    assert_int_equal(all.num + all.num_idle + all.num_refused + all.num_large + all.num_slower, 35);
    return all;
}

TEST(test_suggest__every_mesh_is_compared_refused_or_counted)
{
    struct suggestions all =
        suggest("model.n_layers=2 canonical.tp_blocks=2 canonical.micro_batches=4");
    uint32_t num_large_tp = 0, num_idle = 0, num_stages = 0;
    for (uint32_t i = 0; i < all.num; i++) {
        const uint32_t *d = all.list[i].degree;
        num_large_tp += d[AXIS_TP] > 2;
        num_idle += d[AXIS_REPLICATE] * d[AXIS_SHARD] > 4;
        num_stages += d[AXIS_PP] > 4; /* 2 layers, and the two ends */
    }
    assert_true(all.num > 0 && all.num_refused > 0);
    assert_int_equal(all.num_idle, 4); /* 8 data ranks */
    assert_int_equal(num_large_tp + num_idle + num_stages, 0);
    suggestions_free(&all);
}

/* All meshes, in so many bytes. */
static struct suggestions suggest_within(uint64_t bytes)
{
    return suggest(settings("model.n_layers=4 memory_estimation.rank_gib=%.12f"
                            " memory_estimation.suggestions=35",
                            (double)bytes / (1u << 30)));
}

/* Eight shards on two machines: two groups are faster, and the output for the first mesh says
 * it. */
TEST(test_suggest__groups_are_told_where_leaves_go_to_other_machines)
{
    static const struct {
        int machine_ranks, groups, want;
    } cases[] = {{4, 1, 2}, {8, 1, 0}, {4, 2, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct suggestions all = suggest(
            settings("memory_estimation.suggest=true memory_estimation.machine_ranks=%d"
                     " memory_estimation.call_us=1 model.n_layers=1 model.dim=512 model.n_heads=8"
                     " training.seq_len=2048 training.mixed_precision_param=bfloat16"
                     " parallelism.zero_stage=1 canonical.micro_batches=8 canonical.groups=%d",
                     cases[i].machine_ranks, cases[i].groups));
        assert_int_equal(all.groups, cases[i].want);
        assert_int_equal(all.grouped_seconds > 0 &&
                         all.grouped_seconds<all.list[0].seconds, cases[i].want> 0);
        suggestions_free(&all);
    }
}

/* Between the leanest and the largest of those that keep all, and less than any takes. */
TEST(test_suggest__what_does_not_fit_computes_again_or_is_left_out)
{
    struct suggestions all = suggest_within((uint64_t)72 << 30);
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t i = 0; i < all.num; i++) {
        assert_false(all.list[i].recomputes);
        least = all.list[i].bytes < least ? all.list[i].bytes : least;
        most = all.list[i].bytes > most ? all.list[i].bytes : most;
    }
    suggestions_free(&all);
    uint32_t num_again = 0, num_large = 0;
    for (uint32_t part = 0; part < 8; part++) {
        all = suggest_within(least + (most - least) / 8 * part);
        assert_int_equal(all.num_slower, 0);
        for (uint32_t i = 0; i < all.num; i++)
            num_again += all.list[i].recomputes;
        num_large += all.num_large;
        suggestions_free(&all);
    }
    assert_true(num_again > 0 && num_large > 0);
    all = suggest_within(1000);
    assert_int_equal(all.num, 0);
    suggestions_free(&all);
}

/* A step of many leaves is extrapolated from two short ones. */
TEST(test_suggest__a_long_step_lasts_what_all_its_leaves_do)
{
    for (uint32_t stages = 1; stages <= 2; stages++) {
        struct planned m = open_planned(
            settings("parallelism.pipeline_parallel_degree=%u canonical.micro_batches=64", stages));
        struct suggestions all;
        assert_int_equal(suggest_meshes(&all, &m.config, m.table, m.kernels, stages), 0);
        struct rates rates = {.flops = m.config.rank_tflops * 1e12,
                              .machine_bytes = m.config.machine_gb * 1e9,
                              .network_bytes = m.config.network_gb * 1e9,
                              .call_seconds = m.config.call_us * 1e-6,
                              .machine_ranks = (uint32_t)m.config.machine_ranks};
        struct dry_rank whole = rated_rank(&m, stages, &rates);
        const struct suggestion *found = NULL;
        for (uint32_t i = 0; i < all.num; i++)
            if (all.list[i].degree[AXIS_PP] == stages)
                found = &all.list[i];
        assert_non_null(found);
        assert_float_equal(found->bubble, whole.bubble, 0.005);
        /* The slower of two stages may be the other. */
        assert_true(found->seconds > 0.98 * whole.seconds / (1 - whole.bubble));
        assert_true(found->seconds < 1.1 * whole.seconds / (1 - whole.bubble));
        suggestions_free(&all);
        close_planned(&m);
    }
}

SUITE(make_tokens, remove_tokens)
