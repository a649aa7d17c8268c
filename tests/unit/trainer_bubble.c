/* trainer_bubble.c - the idle part of a real pipeline is the one that its schedule promises.
 *
 * Goal: this holds exactly for every schedule, on two and four ranks. Messages between stages over
 * a slow link are hidden, except those on the critical path of all ranks' programs. Method: each
 * stage has one layer of a tiny model, whose products last a unit of a virtual clock
 * (virtual_clock.h) for the forward and for either half of the backward, as the schedule counts.
 * Everything else is real, and takes no time: the program, the messages, the order in which the
 * threads of all ranks wait for each other. */
#include "tests/unit/delay_comm.h"
#include "tests/unit/parallel_bed.h"
#include "tests/unit/suite.h"
#include "trainer/parallel/execution.h"

#define RANKS_MAX 4
#define LEAVES 8
#define LAYERS_MAX 8
#define EXACTLY 1e-6
#define PATH_GOAL 1.05 /* of a step to its path, where two directions share a rank's link */

/* The time that a rank computes its layers, in its program's order. */
struct list {
    struct op ops[4 * LAYERS_MAX * LEAVES];
    uint32_t num;
};

struct bubble {
    struct config config;
    struct list lists[RANKS_MAX];
    double link_units;                                        /* that a message takes; 0: no time */
    double begin[RANKS_MAX], end[RANKS_MAX], busy[RANKS_MAX]; /* units of time */
    double schedule;                                          /* the idle part that it promises */
};

struct waiting {
    struct walk execution;
    struct model_batch batch;
    struct bubble *bubble;
    double op_begin;
};

static double units_of(const struct parallel *p, const struct op *op)
{
    bool is_layer = op->block > 0 && op->block < p->plan->table->num_blocks - 1;
    return is_layer ? delay_units(op) : 0;
}

static int wait_at(struct parallel *p, struct walk *e, const struct op *op)
{
    struct waiting *w = (struct waiting *)e;
    double lasts = units_of(p, op);
    uint32_t rank = p->plan->mesh.world->rank;
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

static void note_begin(void *user, const struct op *op, uint32_t index, struct lane *lane,
                       bool is_end)
{
    (void)index, (void)lane;
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

static int make_step(struct rank *r, void *user)
{
    struct delay_link *link = user;
    struct bubble *b = link->user;
    struct parallel *p = r->p;
    static const float scale = 1e-3f;
    const struct tokens *tokens = &p->run.tokens[0].device;
    struct waiting w = {.execution = {.at_op = wait_at},
                        .batch = {tokens->inputs, tokens->targets, .loss_scale = &scale,
                                  .losses = p->run.row_losses},
                        .bubble = b};
    parallel_observe(p, &(struct op_observer){note_begin, &w});
    if (r->world->rank == 0)
        b->schedule = p->run.program->bubble;
    struct list *list = &b->lists[r->world->rank];
    for (uint32_t i = 0; i < p->run.program->num_ops; i++)
        if (units_of(p, &p->run.program->ops[i]) > 0)
            list->ops[list->num++] = p->run.program->ops[i];
    if (b->link_units > 0)
        link->bytes_per_second = (double)model_stream_bytes(p->plan->model) / b->link_units;
    ERR_TRY(execute_program(p, p->run.program, &w.execution));
    return comm_barrier(r->world); /* a rank that leaves earlier breaks the others' calls */
}

static int bubble_rank(struct comm *inner, void *user)
{
    struct bubble *b = user;
    struct delay_link link = {.lock = PTHREAD_MUTEX_INITIALIZER, .user = b};
    return delay_rank(inner, &link, &b->config, make_step);
}

/* A step on so many stages, all of as many layers. */
static void run_bubble(struct bubble *b, const char *schedule, int ranks, int layers,
                       double link_units, const char *ahead)
{
    *b = (struct bubble){
        .config = configure(settings(
            "parallelism.pipeline_parallel_schedule=%s parallelism.pipeline_parallel_degree=%d"
            " model.n_layers=%d canonical.micro_batches=8 parallelism.receives_ahead=%s"
            " parallelism.pipeline_parallel_first_stage_less_layers=0"
            " parallelism.pipeline_parallel_last_stage_less_layers=0",
            schedule, ranks, layers, ahead)),
        .link_units = link_units};
    clock_start();
    int rc = comm_local_run((uint32_t)b->config.pp, bubble_rank, b);
    clock_stop();
    if (rc != 0)
        fail_msg("%s", report_line());
}

/* ---- the critical path of all ranks ---- */

/* When the stream and its gradient have passed a layer, and on which rank. */
struct passed {
    bool is_done;
    uint32_t rank;
    double end;
};

struct path {
    double link_units;
    struct passed streams[LAYERS_MAX + 2][LEAVES], gradients[LAYERS_MAX + 2][LEAVES];
    uint32_t at[RANKS_MAX];
    double free[RANKS_MAX], end;
};

/* The next operation of a rank whose inputs are ready; an input from another rank is ready one
 * message later. */
static bool path_step(struct path *path, const struct list *list, uint32_t rank)
{
    if (path->at[rank] == list->num)
        return false;
    const struct op *op = &list->ops[path->at[rank]];
    bool is_forward = op->kind == OP_FORWARD, is_weight = op->kind == OP_BACKWARD_WEIGHT;
    const struct passed *needs = is_forward  ? &path->streams[op->block - 1][op->leaf]
                                 : is_weight ? &path->gradients[op->block][op->leaf]
                                             : &path->gradients[op->block + 1][op->leaf];
    if (!needs->is_done)
        return false;
    double there = needs->end + (needs->rank != rank ? path->link_units : 0);
    double begin = there > path->free[rank] ? there : path->free[rank];
    struct passed now = {true, rank, begin + delay_units(op)};
    if (!is_weight)
        (is_forward ? path->streams : path->gradients)[op->block][op->leaf] = now;
    path->free[rank] = now.end;
    path->end = now.end > path->end ? now.end : path->end;
    path->at[rank]++;
    return true;
}

/* The length of the step: compute in the order of each program, messages of their length, and
 * nothing else. */
static double path_of(const struct bubble *b)
{
    struct path path = {.link_units = b->link_units};
    uint32_t num_layers = (uint32_t)b->config.model_layers;
    uint32_t last = (uint32_t)b->config.pp - 1;
    for (uint32_t leaf = 0; leaf < LEAVES; leaf++) {
        path.streams[0][leaf] = (struct passed){true, 0, 0};
        path.gradients[num_layers + 1][leaf] = (struct passed){true, last, 0};
    }
    for (bool goes_on = true; goes_on;) {
        goes_on = false;
        for (uint32_t r = 0; r <= last; r++)
            while (path_step(&path, &b->lists[r], r))
                goes_on = true;
    }
    for (uint32_t r = 0; r <= last; r++)
        assert_int_equal(path.at[r], b->lists[r].num);
    return path.end;
}

TEST(test_bubble__a_pipeline_idles_as_much_as_its_schedule)
{
    static const struct {
        const char *schedule;
        int ranks, stages;
        double idle;
    } ways[] = {
        {"GPipe", 2, 2, 1 / (LEAVES + 1.0)},
        {"1F1B", 4, 4, 3 / (LEAVES + 3.0)},
        {"Interleaved1F1B", 2, 4, 1 / (2 * LEAVES + 1.0)},
        {"Interleaved1F1B", 4, 8, 3 / (2 * LEAVES + 3.0)},
        {"ZBH1", 4, 4, 1 / (LEAVES + 1.0)}, /* (ranks - 1) / (3 leaves + ranks - 1) */
    };
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct bubble b;
        run_bubble(&b, ways[i].schedule, ways[i].ranks, ways[i].stages, 0, "true");
        print_message("%s, %d ranks, %d stages: idle %.3f, by the schedule %.3f\n",
                      ways[i].schedule, ways[i].ranks, ways[i].stages, idle_part(&b), b.schedule);
        assert_true(fabs(idle_part(&b) - ways[i].idle) < EXACTLY);
        assert_true(fabs(b.schedule - ways[i].idle) < EXACTLY);
    }
}

/* GPipe on two stages, m leaves, a link that takes L: a forward is a unit, a backward two. With
 * receives ahead each direction adds its first message: 1 + L + m, then 2 + L + 2 m. Without, a
 * stage waits L in front of all: the second m (1 + L) + 1, the first m (2 + L) + 2. */
static void want_step(double link_units, const char *ahead, double length)
{
    struct bubble b;
    run_bubble(&b, "GPipe", 2, 2, link_units, ahead);
    print_message("a link of %.1f units, ahead %s: a step of %.2f units, its path %.2f\n",
                  link_units, ahead, length_of(&b), length);
    assert_true(fabs(length_of(&b) - length) < EXACTLY * length);
}

TEST(test_bubble__messages_of_a_pipeline_go_behind_compute)
{
    static const double links[] = {0.2, 0.5, 0.9};
    for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++) {
        want_step(links[i], "true", 3 + 3 * LEAVES + 2 * links[i]);
        want_step(links[i], "false", 3 + 3 * LEAVES + 2 * LEAVES * links[i]);
    }
}

static double step_of(const char *schedule, int layers, double link_units, const char *ahead,
                      double *path)
{
    struct bubble b;
    run_bubble(&b, schedule, 4, layers, link_units, ahead);
    *path = path_of(&b);
    return length_of(&b);
}

TEST(test_bubble__messages_of_four_stages_cost_what_their_critical_path_has)
{
    static const struct {
        const char *schedule;
        int layers;
    } ways[] = {{"1F1B", 4}, {"Interleaved1F1B", 8}, {"ZBH1", 4}};
    static const double links[] = {0.2, 0.5, 0.9};
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++)
        for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++) {
            double path, ahead = step_of(ways[w].schedule, ways[w].layers, links[i], "true", &path);
            double without = step_of(ways[w].schedule, ways[w].layers, links[i], "false", &path);
            print_message("%s, a link of %.1f units: a step of %.2f units = %.3f x its path; "
                          "received when needed %.2f\n",
                          ways[w].schedule, links[i], ahead, ahead / path, without);
            assert_true(ahead >= path * (1 - EXACTLY) && ahead <= PATH_GOAL * path);
            assert_true(ahead < without);
        }
}

SUITE(make_tokens, remove_tokens)
