/* trainer_overlap.c - communication continues while a rank computes, and the prediction of a walk.
 *
 * Goal: a step lasts as long as the critical path of its program, and that is hardly longer than
 * compute or communication alone, whichever is more. Method: 16 equal layers of a tiny model on two
 * ranks (FSDP, DDP in buckets of two layers, or context parallel in a ring). trainer_bubble.c tests
 * messages between stages. On a virtual clock (virtual_clock.h) the ratio sets the time of a
 * layer's products. Its gathers and exchanges, or the messages around its ring, take the time of a
 * slow link (delay_comm.h); everything else takes none. The same figures are given to
 * timeline_walk. */
#include "tests/unit/delay_comm.h"
#include "tests/unit/parallel_bed.h"
#include "tests/unit/suite.h"
#include "trainer/parallel/execution.h"
#include "trainer/plan/timeline.h"

#define LAYERS 16
#define PATH_GOAL 1.05  /* ratio of a step to its critical path: the walk knows one rank */
#define LARGER_GOAL 1.1 /* and to compute or communication */

static const double ratios[] = {0.2, 1, 5}; /* of communication to compute */
#define NUM_RATIOS (sizeof(ratios) / sizeof(ratios[0]))

struct bench {
    struct config config;
    double ratio;                  /* communication to compute */
    double compute, communication; /* seconds of a step, as figures */
    double walked, measured;       /* seconds of a step */
};

struct sleeping {
    struct walk execution;
    struct model_batch batch;
    double forward; /* seconds of a layer */
};

static bool is_layer(const struct op *op)
{
    return op->block > 0 && op->block <= LAYERS;
}

static double compute_of(const struct sleeping *s, const struct op *op)
{
    return is_layer(op) ? delay_units(op) * s->forward : 0;
}

static int sleep_at(struct parallel *p, struct walk *e, const struct op *op)
{
    struct sleeping *s = (struct sleeping *)e;
    (void)p;
    if (op->kind == OP_BEGIN)
        e->batch = &s->batch;
    double lasts = compute_of(s, op);
    if (lasts > 0)
        clock_until(clock_now() + lasts);
    return 0;
}

/* ---- figures ---- */

struct figures {
    struct parallel *p;
    struct sleeping *s;
    struct delay_link *link;
};

static bool is_on_link(const struct figures *f, const struct op *op)
{
    if (f->link->group != NULL)
        return op->kind == OP_RING;
    return (op->kind == OP_GATHER && f->p->plan->mesh.degree[AXIS_SHARD] > 1) ||
           op->kind == OP_EXCHANGE || op->kind == OP_COLLECT;
}

/* Of one message of a ring: this rank's keys of a layer, or its values. */
static double ring_bytes(const struct parallel *p)
{
    const struct model_shape *s = &p->plan->table->shape;
    double rows =
        (double)(p->plan->config->local_batch_size * p->plan->config->seq_len) / p->plan->cut.cp;
    return rows * s->kv_heads * s->head_dim * sizeof(float);
}

static double link_seconds(const struct figures *f, const struct op *op)
{
    if (op->kind == OP_RING) /* of two ranks: one round of keys, one of values */
        return 2 * (f->link->latency + ring_bytes(f->p) / f->link->bytes_per_second);
    const struct block *block = &f->p->plan->blocks[op->block];
    uint32_t me = f->p->plan->mesh.place[AXIS_SHARD],
             owner = mesh_group_place(&f->p->plan->mesh, GROUP_OWNERS);
    size_t count = op->kind == OP_GATHER ? block->shard_counts[1 - me] : 0;
    for (uint32_t b = 0; b < op->num_blocks; b++)
        count += block[b].piece_counts[op->kind == OP_COLLECT ? 1 - owner : owner];
    return f->link->latency + (double)(count * sizeof(float)) / f->link->bytes_per_second;
}

static double seconds_of(const void *user, const struct op *op)
{
    const struct figures *f = user;
    if (is_on_link(f, op))
        return link_seconds(f, op);
    return compute_of(f->s, op);
}

static int walk(struct bench *b, const struct figures *f)
{
    const struct program *program = f->p->run.program;
    struct timeline timeline;
    int rc = timeline_walk(program, seconds_of, f, &timeline);
    b->walked = timeline.total;
    b->communication = 0;
    for (uint32_t i = 0; i < program->num_ops; i++)
        if (is_on_link(f, &program->ops[i]))
            b->communication += link_seconds(f, &program->ops[i]);
    b->compute = timeline.compute + timeline.link - b->communication;
    return rc;
}

/* ---- a rank ---- */

static double larger(const struct bench *b)
{
    return b->compute > b->communication ? b->compute : b->communication;
}

static int measure(struct rank *r, void *user)
{
    struct delay_link *link = user;
    struct bench *b = link->user;
    struct parallel *p = r->p;
    static const float scale = 1e-3f;
    const struct tokens *tokens = &p->run.tokens[0].device;
    struct sleeping s = {.execution = {.at_op = sleep_at},
                         .batch = {tokens->inputs, tokens->targets, .loss_scale = &scale,
                                   .losses = p->run.row_losses}};
    struct figures f = {.p = p, .s = &s, .link = link};
    bool is_ring = p->plan->shape.has_ring;
    /* A layer moves in the time of its forward three times that, in three times that. */
    double bytes = (double)p->plan->blocks[1].shard_counts[0] * sizeof(float);
    if (p->plan->mesh.degree[AXIS_SHARD] == 1)
        bytes = (double)p->plan->blocks[1].piece_counts[0] / 3 * sizeof(float);
    s.forward = b->ratio < 1 ? 1 : 1 / b->ratio;
    link->latency = 1e-2;
    link->group = is_ring ? "ring" : NULL;
    double lasts = b->ratio < 1 ? b->ratio : 1;
    link->bytes_per_second =
        is_ring ? ring_bytes(p) / (lasts / 2 - link->latency) : bytes / (lasts - link->latency);
    if (p->plan->mesh.world->rank == 0)
        ERR_TRY(walk(b, &f));
    ERR_TRY(comm_barrier(p->plan->mesh.world));
    double begin = clock_now();
    ERR_TRY(execute_program(p, p->run.program, &s.execution));
    ERR_TRY(comm_barrier(p->plan->mesh.world));
    if (p->plan->mesh.world->rank == 0)
        b->measured = clock_now() - begin;
    return 0;
}

static int bench_rank(struct comm *inner, void *user)
{
    struct bench *b = user;
    struct delay_link link = {.lock = PTHREAD_MUTEX_INITIALIZER, .user = b};
    return delay_rank(inner, &link, &b->config, measure);
}

static struct bench run_bench(double ratio, const char *of)
{
    struct bench b = {.config = configure(settings("model.n_layers=16 %s", of)), .ratio = ratio};
    clock_start();
    int rc = comm_local_run(2, bench_rank, &b);
    clock_stop();
    if (rc != 0)
        fail_msg("%s", report_line());
    return b;
}

#define LANES(depth) " parallelism.gather_ahead=" depth " parallelism.exchange_behind=" depth
#define FSDP "parallelism.bucket_cap_mb=0 model.hidden_dim=192 canonical.micro_batches="
/* 430 KiB a layer */
#define DDP                                                                    \
    "parallelism.data_parallel_replicate_degree=2 parallelism.bucket_cap_mb=1" \
    " model.hidden_dim=512 canonical.micro_batches="
#define RING                                                          \
    "canonical.micro_batches=2 parallelism.context_parallel_degree=2" \
    " parallelism.context_parallel_rotate_method=alltoall parallelism.receives_ahead="

/* ---- tests ---- */

static void want_hidden(const char *what, double ratio, const char *of)
{
    struct bench b = run_bench(ratio, of);
    double most = larger(&b);
    print_message("%s, ratio %.1f: compute %.1f s, communication %.1f s; step %.1f s = %.6f x "
                  "critical path = %.3f x the larger\n",
                  what, ratio, b.compute, b.communication, b.measured, b.measured / b.walked,
                  b.measured / most);
    assert_true(b.measured <= PATH_GOAL * b.walked && b.walked <= PATH_GOAL * b.measured);
    assert_true(b.measured <= LARGER_GOAL * most);
}

TEST(test_overlap__a_step_is_as_long_as_its_critical_path)
{
    for (size_t i = 0; i < NUM_RATIOS; i++)
        want_hidden("FSDP", ratios[i], FSDP "4" LANES("1"));
}

/* Nothing is exchanged in the first forward, so there are more leaves; and a leaf's buckets, 8, may
 * all wait during the next forward. */
TEST(test_overlap__buckets_are_exchanged_behind_the_backward)
{
    for (size_t i = 0; i < NUM_RATIOS; i++)
        want_hidden("DDP", ratios[i], DDP "20" LANES("8"));
}

static void want_sum(const char *what, double ratio, const char *of)
{
    struct bench b = run_bench(ratio, of);
    double sum = b.compute + b.communication;
    print_message("%s without lanes, ratio %.1f: compute %.1f s, communication %.1f s; step %.1f "
                  "s\n",
                  what, ratio, b.compute, b.communication, b.measured);
    assert_true(b.measured >= 0.9999 * sum && b.walked >= 0.9999 * sum);
}

TEST(test_overlap__without_lanes_compute_and_communication_add_up)
{
    for (size_t i = 0; i < NUM_RATIOS; i++) {
        want_sum("FSDP", ratios[i], FSDP "4" LANES("0"));
        want_sum("DDP", ratios[i], DDP "4" LANES("0"));
    }
}

/* In a forward the gathers are used at once. In a backward, a third of whose time is the forward's,
 * they are made while the next layer is computed. */
TEST(test_overlap__keys_go_around_behind_the_backward)
{
    for (size_t i = 0; i < NUM_RATIOS; i++) {
        struct bench b = run_bench(ratios[i], RING "true");
        double half = b.communication / 2, backward = b.compute * 2 / 3;
        double least = b.compute / 3 + half + (half > backward ? half : backward);
        print_message("ring, ratio %.1f: compute %.1f s, communication %.1f s; step %.1f s = %.6f "
                      "x critical path = %.3f x the least\n",
                      ratios[i], b.compute, b.communication, b.measured, b.measured / b.walked,
                      b.measured / least);
        assert_true(b.measured <= PATH_GOAL * b.walked && b.walked <= PATH_GOAL * b.measured);
        assert_true(b.measured <= LARGER_GOAL * least);
        b = run_bench(ratios[i], RING "false");
        assert_true(b.measured >= 0.9999 * (b.compute + b.communication));
    }
}

SUITE(make_tokens, remove_tokens)
