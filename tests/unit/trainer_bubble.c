/* trainer_bubble.c - the idle part of a real pipeline is the one that its schedule promises.
 *
 * Goal: within 10 % for every schedule, on two and four ranks; and what goes from stage to stage
 * over a slow link adds to it no more than the first of each direction does. Method: each stage has
 * one layer of a tiny model, whose products are drowned by timed waits: a unit for the forward and
 * for either half of the backward, as the schedule counts. All else is real: the program, the
 * messages, the order. Waits sleep, so that other load on the machine counts little; steps are made
 * until one is not disturbed. */
#include "tests/unit/delay_comm.h"
#include "tests/unit/parallel_bed.h"
#include "trainer/parallel/private.h"

#include <sys/prctl.h>

#define RANKS_MAX 4
#define LEAVES 8
#define UNIT_SECONDS 1e-2
#define TRIES 5
#define GOAL 1.10         /* a step that is so near its schedule was not disturbed */
#define BUSY_MACHINE 0.04 /* of the time: what a machine that is never quiet adds */
#define PATH_GOAL 1.05    /* of a step to its critical path, likewise */
#define PATH_BOUND 1.1

struct bubble {
    struct config config;
    double link_units;                                        /* that a message takes; 0: no time */
    double begin[RANKS_MAX], end[RANKS_MAX], busy[RANKS_MAX]; /* seconds, of the step at hand */
    double schedule, measured;
    double path, length; /* units of a step: the critical path, and what it took */
};

struct waiting {
    struct execution execution;
    struct model_batch batch;
    struct bubble *bubble;
    double op_begin;
};

static double units_of(const struct parallel *p, const struct op *op)
{
    bool is_layer = op->block > 0 && op->block < p->table->num_blocks - 1;
    bool is_half =
        op->kind == OP_FORWARD || op->kind == OP_BACKWARD_INPUT || op->kind == OP_BACKWARD_WEIGHT;
    return !is_layer ? 0 : is_half ? 1 : op->kind == OP_BACKWARD ? 2 : 0;
}

static int wait_at(struct parallel *p, struct execution *e, const struct op *op)
{
    struct waiting *w = (struct waiting *)e;
    double lasts = UNIT_SECONDS * units_of(p, op);
    uint32_t rank = p->mesh.world->rank;
    if (op->kind == OP_BEGIN)
        e->batch = &w->batch;
    if (lasts == 0)
        return 0;
    if (w->bubble->busy[rank] == 0)
        w->bubble->begin[rank] = w->op_begin;
    delay_until(w->op_begin + lasts); /* the product itself is in it */
    w->bubble->end[rank] = delay_now();
    w->bubble->busy[rank] += lasts;
    return 0;
}

static void note_begin(void *user, const struct op *op, uint32_t index, bool is_end)
{
    (void)index;
    if (!is_end && op->lane == LANE_COMPUTE)
        ((struct waiting *)user)->op_begin = delay_now();
}

static double idle_part(const struct bubble *b, uint32_t ranks)
{
    double begin = b->begin[0], end = 0, busy = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        begin = b->begin[r] < begin ? b->begin[r] : begin;
        end = b->end[r] > end ? b->end[r] : end;
        busy += b->busy[r];
    }
    return 1 - busy / (ranks * (end - begin));
}

/* Units of the step at hand. */
static double length_of(const struct bubble *b, uint32_t ranks)
{
    double begin = b->begin[0], end = b->end[0];
    for (uint32_t r = 1; r < ranks; r++) {
        begin = b->begin[r] < begin ? b->begin[r] : begin;
        end = b->end[r] > end ? b->end[r] : end;
    }
    return (end - begin) / UNIT_SECONDS;
}

static int make_steps(struct bubble *b, struct parallel *p, struct delay_link *link)
{
    static const float scale = 1e-3f;
    const struct tokens *tokens = &p->tokens[0].device;
    struct comm *world = p->mesh.world;
    struct waiting w = {.execution = {.at_op = wait_at},
                        .batch = {tokens->inputs, tokens->targets, .loss_scale = &scale},
                        .bubble = b};
    int64_t is_over = 0;
    parallel_init_state(p, 3);
    parallel_observe(p, &(struct op_observer){note_begin, &w});
    b->schedule = p->program->bubble;
    if (b->link_units > 0)
        link->bytes_per_second =
            (double)model_stream_bytes(p->model) / (b->link_units * UNIT_SECONDS);
    for (int i = 0; i < TRIES && is_over == 0; i++) {
        b->busy[world->rank] = 0;
        ERR_TRY(comm_barrier(world));
        ERR_TRY(execute_program(p, p->program, &w.execution));
        ERR_TRY(comm_barrier(world));
        if (world->rank == 0) {
            double idle = idle_part(b, world->size);
            b->measured = i == 0 || idle < b->measured ? idle : b->measured;
            double length = length_of(b, world->size);
            b->length = i == 0 || length < b->length ? length : b->length;
            is_over = b->link_units > 0 ? b->length <= PATH_GOAL * b->path
                                        : b->measured <= GOAL * b->schedule;
        }
        ERR_TRY(comm_all_reduce_i64(world, &is_over, 1));
    }
    return 0;
}

static int bubble_rank(struct comm *inner, void *user)
{
    struct bubble *b = user;
    struct delay_link link = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct comm *world = NULL;
    struct kernels *kernels = NULL;
    struct model_table *table = NULL;
    struct parallel *p = NULL;
    struct model_shape shape;
    prctl(PR_SET_TIMERSLACK, 1000);
    ERR_TRY(delay_open(&world, inner, &link));
    ERR_TRY(new_kernels(&kernels, 1));
    ERR_TRY(shape_of_settings(&shape, &b->config, 64));
    ERR_TRY(model_table_new(&table, &shape));
    struct parallel_options options = {&b->config, table, kernels, world, NULL};
    int rc = parallel_apply(&p, &options);
    if (rc == 0)
        rc = make_steps(b, p, &link);
    parallel_free(p);
    model_table_free(table);
    kernels_free(kernels);
    free(world); /* what is inside is freed for us */
    return rc;
}

static void want_bubble(const char *schedule, const char *ranks, const char *stages)
{
    const char *extra[] = {"--parallelism.pipeline_parallel_schedule",
                           schedule,
                           "--parallelism.pipeline_parallel_degree",
                           ranks,
                           "--model.n_layers",
                           stages,
                           "--canonical.micro_batches",
                           "8",
                           "--parallelism.pipeline_parallel_first_stage_less_layers",
                           "0",
                           "--parallelism.pipeline_parallel_last_stage_less_layers",
                           "0"};
    struct bubble b = {.config = configure(extra, 12)};
    if (comm_local_run((uint32_t)b.config.pp, bubble_rank, &b) != 0)
        fail_msg("%s", report_line());
    print_message("%s, %s ranks, %s stages: idle %.3f, by the schedule %.3f\n", schedule, ranks,
                  stages, b.measured, b.schedule);
    assert_true(b.schedule > 0 && b.measured >= b.schedule / GOAL);
    const char *scale = getenv("TEST_TIME_SCALE");
    double more = BUSY_MACHINE * (scale != NULL ? atof(scale) : 1);
    assert_true(b.measured <= GOAL * b.schedule + more);
}

static void test_bubble__a_pipeline_idles_as_much_as_its_schedule(void **state)
{
    (void)state;
    if (wants_plain_kernels()) /* a product takes longer than a unit then */
        skip();
    want_bubble("GPipe", "2", "2");
    want_bubble("1F1B", "4", "4");
    want_bubble("Interleaved1F1B", "2", "4");
    want_bubble("Interleaved1F1B", "4", "8");
    want_bubble("ZBH1", "4", "4");
}

/* GPipe on two stages, m leaves, a link that takes L: a forward is a unit, a backward two. With
 * receives ahead each direction adds its first message: 1 + L + m, then 2 + L + 2 m. Without, a
 * stage waits L in front of all: the second m (1 + L) + 1, the first m (2 + L) + 2. */
static double step_over_link(double link_units, const char *ahead, double path)
{
    const char *extra[] = {"--parallelism.pipeline_parallel_schedule",
                           "GPipe",
                           "--parallelism.pipeline_parallel_degree",
                           "2",
                           "--model.n_layers",
                           "2",
                           "--canonical.micro_batches",
                           "8",
                           "--parallelism.pipeline_parallel_first_stage_less_layers",
                           "0",
                           "--parallelism.pipeline_parallel_last_stage_less_layers",
                           "0",
                           "--parallelism.receives_ahead",
                           ahead};
    struct bubble b = {.config = configure(extra, 14), .link_units = link_units, .path = path};
    if (comm_local_run(2, bubble_rank, &b) != 0)
        fail_msg("%s", report_line());
    print_message("a link of %.1f units, ahead %s: a step of %.2f units, %.3f x its path\n",
                  link_units, ahead, b.length, b.length / path);
    return b.length;
}

static void test_bubble__messages_of_a_pipeline_go_behind_compute(void **state)
{
    (void)state;
    static const double links[] = {0.2, 0.5, 0.9};
    const char *scale = getenv("TEST_TIME_SCALE");
    double bound = 1 + (PATH_BOUND - 1) * (scale != NULL ? atof(scale) : 1);
    if (wants_plain_kernels())
        skip();
    for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++) {
        double link = links[i], ahead = 3 + 3 * LEAVES + 2 * link;
        double not_ahead = 3 + 3 * LEAVES + 2 * LEAVES * link;
        assert_true(step_over_link(link, "true", ahead) <= bound * ahead);
        assert_true(step_over_link(link, "false", not_ahead) >= not_ahead / PATH_BOUND);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bubble__a_pipeline_idles_as_much_as_its_schedule),
        cmocka_unit_test(test_bubble__messages_of_a_pipeline_go_behind_compute),
    };
    return cmocka_run_group_tests(tests, make_tokens, remove_tokens);
}
