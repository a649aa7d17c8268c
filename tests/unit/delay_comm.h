/* delay_comm.h - a communicator with a given latency and rate in bytes per second, on a virtual
 * clock.
 *
 * It wraps another. The one inside performs a collective, and there ranks wait for each other. The
 * call then lasts until the rank's link has carried the bytes that the rank receives from others. A
 * rank has one link for all its groups, first come, first served. Sends (which end at their
 * receive), splits and barriers are not delayed. */
#ifndef HOLDFAST_TESTS_DELAY_COMM_H
#define HOLDFAST_TESTS_DELAY_COMM_H

#include "tests/unit/parallel_bed.h"
#include "tests/unit/virtual_clock.h"
#include "trainer/comm/comm.h"
#include "trainer/plan/program.h"

struct delay_link {
    pthread_mutex_t lock;
    double latency, bytes_per_second; /* 0 bytes per second: nothing is delayed */
    double free;                      /* from when on */
    const char *group;                /* only its calls are delayed; NULL: those of all groups */
    void *user;                       /* of the test */
};

struct delay_comm {
    struct comm base;
    struct comm *inner;
    struct delay_link *link;
};

/* Received from others. */
static inline size_t delay_bytes(const struct comm *comm, const struct comm_call *call)
{
    size_t bytes = comm_call_bytes(comm, call);
    if (call->kind == COMM_ALL_GATHER || call->kind == COMM_ALL_TO_ALL)
        bytes -= call->recv_bytes[comm->rank];
    return bytes;
}

static inline int delay_open(struct comm **out, struct comm *inner, struct delay_link *link);

static inline int delay_run(struct comm *comm, const struct comm_call *call)
{
    struct delay_comm *d = (struct delay_comm *)comm;
    struct delay_link *link = d->link;
    int rc = d->inner->ops->run(d->inner, call);
    if (rc == 0 && call->kind == COMM_SPLIT) {
        (*call->out)->flight = comm->flight;
        (*call->out)->name = comm->name;
        return delay_open(call->out, *call->out, link);
    }
    bool is_slow =
        (call->kind < COMM_SEND && call->kind != COMM_BARRIER) || call->kind == COMM_RECEIVE;
    if (link->group != NULL && strcmp(link->group, comm->name) != 0)
        is_slow = false;
    if (rc != 0 || !is_slow || link->bytes_per_second <= 0)
        return rc;
    pthread_mutex_lock(&link->lock);
    double now = clock_now(), begin = link->free > now ? link->free : now;
    double end = begin + link->latency + (double)delay_bytes(comm, call) / link->bytes_per_second;
    link->free = end;
    pthread_mutex_unlock(&link->lock);
    clock_until(end);
    return 0;
}

static inline void delay_free(struct comm *comm)
{
    struct delay_comm *d = (struct delay_comm *)comm;
    comm_free(d->inner);
    free(d);
}

static inline void delay_abort(struct comm *comm, int exit_code)
{
    struct delay_comm *d = (struct delay_comm *)comm;
    d->inner->ops->abort(d->inner, exit_code);
}

/* free() of the result, or of a split of it, also frees the communicator inside. */
static inline int delay_open(struct comm **out, struct comm *inner, struct delay_link *link)
{
    static const struct comm_ops ops = {.name = "delayed",
                                        .flags = COMM_THREADS,
                                        .run = delay_run,
                                        .free = delay_free,
                                        .abort = delay_abort};
    struct delay_comm *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return -1;
    *d = (struct delay_comm){.base = *inner, .inner = inner, .link = link};
    d->base.ops = &ops;
    *out = &d->base;
    return 0;
}

/* The duration of a layer's operation: one for a forward, and one for each half of a backward. */
static inline double delay_units(const struct op *op)
{
    bool is_half =
        op->kind == OP_FORWARD || op->kind == OP_BACKWARD_INPUT || op->kind == OP_BACKWARD_WEIGHT;
    return is_half ? 1 : op->kind == OP_BACKWARD ? 2 : 0;
}

/* A rank without samples on a slow link; `run` gets the link. */
static inline int delay_rank(struct comm *inner, struct delay_link *link,
                             const struct config *config, int (*run)(struct rank *rank, void *link))
{
    struct comm *world;
    ERR_TRY(delay_open(&world, inner, link));
    struct rank_options options = {.config = config, .run = run, .user = link, .has_no_data = true};
    int rc = on_rank(world, &options);
    free(world); /* frees the communicator inside, too */
    return rc;
}

#endif
