/* dry.c - a communicator for plans: every call returns at once and moves nothing (see comm.h). */
#include "proto/base/report.h"
#include "trainer/comm/private.h"

#include <stdlib.h>

struct dry {
    struct comm base;
    struct dry *world; /* of a split: its origin; of the world: itself */
    comm_dry_call *at; /* of the world */
    void *user;
};

static const struct comm_ops dry_ops;

static int split(struct comm *comm, const struct comm_call *call)
{
    struct dry *part = calloc(1, sizeof(*part));
    if (part == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a communicator");
    CHECK(call->key < call->group_size);
    part->base = comm_base(&dry_ops, call->key, call->group_size, comm->flight);
    part->world = ((struct dry *)comm)->world;
    *call->out = &part->base;
    return 0;
}

static int dry_run(struct comm *comm, const struct comm_call *call)
{
    const struct dry *world = ((struct dry *)comm)->world;
    if (world->at != NULL)
        world->at(world->user, comm, call);
    return call->kind == COMM_SPLIT ? split(comm, call) : 0;
}

static void dry_free(struct comm *comm)
{
    if (((struct dry *)comm)->world == (struct dry *)comm)
        flight_free(comm->flight);
    free(comm);
}

static void dry_abort(struct comm *comm, int exit_code)
{
    (void)comm; /* there are no other ranks */
    (void)exit_code;
}

static const struct comm_ops dry_ops = {
    .name = "dry",
    .flags = COMM_THREADS, /* as the planned communicators have */
    .run = dry_run,
    .free = dry_free,
    .abort = dry_abort,
};

int comm_dry_open(struct comm **out, uint32_t rank, uint32_t size)
{
    struct dry *dry = calloc(1, sizeof(*dry));
    struct flight *flight = flight_new(rank);
    if (dry == NULL || flight == NULL) {
        free(dry);
        flight_free(flight);
        return report_error(ERR_MEMORY, NULL, "no memory for a communicator");
    }
    *dry = (struct dry){.base = comm_base(&dry_ops, rank, size, flight), .world = dry};
    *out = &dry->base;
    return 0;
}

void comm_dry_watch(struct comm *world, comm_dry_call *at, void *user)
{
    struct dry *dry = (struct dry *)world;
    CHECK(dry->world == dry);
    dry->at = at;
    dry->user = user;
}
