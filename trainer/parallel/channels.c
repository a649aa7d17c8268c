/* channels.c - the communicators by which stages send to each other.
 *
 * If messages have tags, stages use the group of the pipeline. Without tags (COMM_UNTAGGED) each
 * direction over each boundary between two stages has its own communicator of the two ranks. Leaves
 * cross it in one order, so messages of another boundary or direction never mix with them. */
#include "proto/base/report.h"
#include "trainer/exchange/exchange.h"
#include "trainer/parallel/parallel.h"

#include <stdlib.h>

static uint32_t num_stages(const struct exchange *e)
{
    return e->plan->shape.num_ranks * e->plan->shape.chunks;
}

static struct comm **channel_at(const struct exchange *e, enum direction way, uint32_t boundary)
{
    return &e->channels[way * num_stages(e) + boundary];
}

/* The ranks of the pipeline on both sides of a boundary, which has the number of the stage after
 * it. */
static uint32_t sender_of(const struct exchange *e, enum direction way, uint32_t boundary)
{
    return (way == WAY_DOWN ? boundary - 1 : boundary) % e->plan->shape.num_ranks;
}
static uint32_t receiver_of(const struct exchange *e, enum direction way, uint32_t boundary)
{
    return (way == WAY_DOWN ? boundary : boundary - 1) % e->plan->shape.num_ranks;
}

static int open_one(struct exchange *e, enum direction way, uint32_t boundary)
{
    struct comm *stages = e->plan->mesh.of[GROUP_PP], **out = channel_at(e, way, boundary);
    bool is_sender = stages->rank == sender_of(e, way, boundary);
    bool is_member = is_sender || stages->rank == receiver_of(e, way, boundary);
    ERR_TRY(COMM_CALL(stages, .kind = COMM_SPLIT, .out = out,
                      .color = is_member ? 0 : 1 + stages->rank, .key = is_sender ? 0 : 1,
                      .group_size = is_member ? 2 : 1));
    (*out)->name = stages->name;
    (*out)->lane = lane_name(is_sender ? LANE_SEND : LANE_RECEIVE);
    (*out)->device_lane = e->plan->lane;
    return 0;
}

int channels_open(struct exchange *e)
{
    const struct comm *stages = e->plan->mesh.of[GROUP_PP];
    if (stages == NULL || (stages->ops->flags & COMM_UNTAGGED) == 0)
        return 0;
    e->channels = calloc(NUM_WAYS * (size_t)num_stages(e), sizeof(struct comm *));
    ERR_TRY(parallel_agree(
        e->plan->mesh.world,
        e->channels != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for communicators")));
    for (enum direction way = 0; way < NUM_WAYS; way++)
        for (uint32_t boundary = 1; boundary < num_stages(e); boundary++)
            ERR_TRY(open_one(e, way, boundary));
    return 0;
}

void channels_close(struct exchange *e)
{
    for (uint32_t i = 0; e->channels != NULL && i < NUM_WAYS * num_stages(e); i++)
        comm_free(e->channels[i]);
    free(e->channels);
    e->channels = NULL;
}

struct comm *channel_to_send(const struct exchange *e, const struct op *op, uint32_t boundary,
                             uint32_t *out_peer)
{
    enum direction way = op->kind == OP_SEND ? WAY_DOWN : WAY_UP;
    *out_peer = e->channels != NULL ? 1 : op->peer;
    return e->channels != NULL ? *channel_at(e, way, boundary) : e->plan->mesh.of[GROUP_PP];
}

struct comm *channel_to_receive(const struct exchange *e, const struct op *op, uint32_t boundary,
                                uint32_t *out_peer)
{
    enum direction way = op->kind == OP_RECEIVE ? WAY_DOWN : WAY_UP;
    *out_peer = e->channels != NULL ? 0 : op->peer;
    return e->channels != NULL ? *channel_at(e, way, boundary) : e->plan->mesh.of[GROUP_PP];
}
