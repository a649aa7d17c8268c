/* trainer_bubble.c - the idle part of a real pipeline is the one that its schedule promises.
 *
 * Goal: exactly so for every schedule, on two and four ranks; and what goes from stage to stage
 * over a slow link adds to it no more than the first of each direction does. Method: each stage has
 * one layer of a tiny model, whose products last a unit of a virtual clock (virtual_clock.h) for
 * the forward and for either half of the backward, as the schedule counts. All else is real, and
 * takes no time: the program, the messages, the order in which the threads of all ranks wait for
 * each other. "make bench" has the same in real time. */
#include "tests/unit/delay_comm.h"
#include "tests/unit/parallel_bed.h"
#include "trainer/parallel/private.h"

#define RANKS_MAX 4
#define LEAVES 8
#define EXACTLY 1e-6

struct bubble {
    struct config config;
    double link_units;                                        /* that a message takes; 0: no time */
    double begin[RANKS_MAX], end[RANKS_MAX], busy[RANKS_MAX]; /* units of time */
    double schedule;                                          /* the idle part that it promises */
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
    double lasts = units_of(p, op);
    uint32_t rank = p->mesh.world->rank;
    if (op->kind == OP_BEGIN)
        e->batch = &w->batch;
    if (lasts == 0)
        return 0;
    if (w->bubble->busy[rank] == 0)
        w->bubble->begin[rank] = w->op_begin;
    clock_until(w->op_begin + lasts);
    w->bubble->end[rank] = clock_now();
    w->bubble->busy[rank] += lasts;
    return 0;
}

static void note_begin(void *user, const struct op *op, uint32_t index, bool is_end)
{
    (void)index;
    if (!is_end && op->lane == LANE_COMPUTE)
        ((struct waiting *)user)->op_begin = clock_now();
}

/* Units of the step. */
static double length_of(const struct bubble *b)
{
    double begin = b->begin[0], end = b->end[0];
    for (int r = 1; r < b->config.pp; r++) {
        begin = b->begin[r] < begin ? b->begin[r] : begin;
        end = b->end[r] > end ? b->end[r] : end;
    }
    return end - begin;
}

static double idle_part(const struct bubble *b)
{
    double busy = 0;
    for (int r = 0; r < b->config.pp; r++)
        busy += b->busy[r];
    return 1 - busy / ((double)b->config.pp * length_of(b));
}

static int make_step(struct bubble *b, struct parallel *p, struct delay_link *link)
{
    static const float scale = 1e-3f;
    const struct tokens *tokens = &p->tokens[0].device;
    struct waiting w = {.execution = {.at_op = wait_at},
                        .batch = {tokens->inputs, tokens->targets, .loss_scale = &scale},
                        .bubble = b};
    parallel_init_state(p, 3);
    parallel_observe(p, &(struct op_observer){note_begin, &w});
    b->schedule = p->program->bubble;
    if (b->link_units > 0)
        link->bytes_per_second = (double)model_stream_bytes(p->model) / b->link_units;
    ERR_TRY(execute_program(p, p->program, &w.execution));
    return comm_barrier(p->mesh.world); /* who leaves before breaks off what others still do */
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
    ERR_TRY(delay_open(&world, inner, &link));
    ERR_TRY(new_kernels(&kernels, 1));
    ERR_TRY(shape_of_settings(&shape, &b->config, 64));
    ERR_TRY(model_table_new(&table, &shape));
    struct parallel_options options = {&b->config, table, kernels, world, NULL};
    int rc = parallel_apply(&p, &options);
    if (rc == 0)
        rc = make_step(b, p, &link);
    parallel_free(p);
    model_table_free(table);
    kernels_free(kernels);
    free(world); /* what is inside is freed for us */
    return rc;
}

static void run_bubble(struct bubble *b)
{
    clock_start();
    int rc = comm_local_run((uint32_t)b->config.pp, bubble_rank, b);
    clock_stop();
    if (rc != 0)
        fail_msg("%s", report_line());
}

static void want_bubble(const char *schedule, const char *ranks, const char *stages, double idle)
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
    run_bubble(&b);
    print_message("%s, %s ranks, %s stages: idle %.3f, by the schedule %.3f\n", schedule, ranks,
                  stages, idle_part(&b), b.schedule);
    assert_true(fabs(idle_part(&b) - idle) < EXACTLY && fabs(b.schedule - idle) < EXACTLY);
}

static void test_bubble__a_pipeline_idles_as_much_as_its_schedule(void **state)
{
    (void)state;
    want_bubble("GPipe", "2", "2", 1 / (LEAVES + 1.0));
    want_bubble("1F1B", "4", "4", 3 / (LEAVES + 3.0));
    want_bubble("Interleaved1F1B", "2", "4", 1 / (2 * LEAVES + 1.0));
    want_bubble("Interleaved1F1B", "4", "8", 3 / (2 * LEAVES + 3.0));
    want_bubble("ZBH1", "4", "4", 1 / (LEAVES + 1.0)); /* (ranks - 1) / (3 leaves + ranks - 1) */
}

/* GPipe on two stages, m leaves, a link that takes L: a forward is a unit, a backward two. With
 * receives ahead each direction adds its first message: 1 + L + m, then 2 + L + 2 m. Without, a
 * stage waits L in front of all: the second m (1 + L) + 1, the first m (2 + L) + 2. */
static void want_step(double link_units, const char *ahead, double length)
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
    struct bubble b = {.config = configure(extra, 14), .link_units = link_units};
    run_bubble(&b);
    print_message("a link of %.1f units, ahead %s: a step of %.2f units, its path %.2f\n",
                  link_units, ahead, length_of(&b), length);
    assert_true(fabs(length_of(&b) - length) < EXACTLY * length);
}

static void test_bubble__messages_of_a_pipeline_go_behind_compute(void **state)
{
    (void)state;
    static const double links[] = {0.2, 0.5, 0.9};
    for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++) {
        want_step(links[i], "true", 3 + 3 * LEAVES + 2 * links[i]);
        want_step(links[i], "false", 3 + 3 * LEAVES + 2 * LEAVES * links[i]);
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
