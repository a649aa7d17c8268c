/* channels.c - the communicators by which stages send to each other.
 *
 * Where messages have tags it is the group of the pipeline. Where they have none (COMM_UNTAGGED)
 * each way over each boundary between two stages has a communicator of its own, of the two ranks:
 * leaves cross it in one order, and no message of another boundary, or of the other way, comes
 * between. */
#include "proto/base/report.h"
#include "trainer/parallel/private.h"

#include <stdlib.h>

static uint32_t num_stages(const struct parallel *p)
{
    return p->shape.num_ranks * p->shape.chunks;
}

static struct comm **channel_at(const struct parallel *p, enum direction way, uint32_t boundary)
{
    return &p->channels[way * num_stages(p) + boundary];
}

/* The ranks of the pipeline on both sides of the stage behind the boundary. */
static uint32_t sender_of(const struct parallel *p, enum direction way, uint32_t boundary)
{
    return (way == WAY_DOWN ? boundary - 1 : boundary) % p->shape.num_ranks;
}
static uint32_t receiver_of(const struct parallel *p, enum direction way, uint32_t boundary)
{
    return (way == WAY_DOWN ? boundary : boundary - 1) % p->shape.num_ranks;
}

static int open_one(struct parallel *p, enum direction way, uint32_t boundary)
{
    struct comm *stages = p->mesh.of[GROUP_PP], **out = channel_at(p, way, boundary);
    bool is_sender = stages->rank == sender_of(p, way, boundary);
    bool is_member = is_sender || stages->rank == receiver_of(p, way, boundary);
    ERR_TRY(COMM_CALL(stages, .kind = COMM_SPLIT, .out = out,
                      .color = is_member ? 0 : 1 + stages->rank, .key = is_sender ? 0 : 1,
                      .group_size = is_member ? 2 : 1));
    (*out)->name = stages->name;
    (*out)->lane = lane_name(is_sender ? LANE_SEND : LANE_RECEIVE);
    (*out)->device_lane = p->lane;
    return 0;
}

int channels_open(struct parallel *p)
{
    const struct comm *stages = p->mesh.of[GROUP_PP];
    if (stages == NULL || (stages->ops->flags & COMM_UNTAGGED) == 0)
        return 0;
    p->channels = calloc(NUM_WAYS * (size_t)num_stages(p), sizeof(struct comm *));
    ERR_TRY(parallel_agree(
        p->mesh.world,
        p->channels != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for communicators")));
    for (enum direction way = 0; way < NUM_WAYS; way++)
        for (uint32_t boundary = 1; boundary < num_stages(p); boundary++)
            ERR_TRY(open_one(p, way, boundary));
    return 0;
}

void channels_close(struct parallel *p)
{
    for (uint32_t i = 0; p->channels != NULL && i < NUM_WAYS * num_stages(p); i++)
        comm_free(p->channels[i]);
    free(p->channels);
    p->channels = NULL;
}

struct comm *channel_to_send(const struct parallel *p, enum direction way, uint32_t boundary,
                             uint32_t *out_peer)
{
    *out_peer = p->channels != NULL ? 1 : receiver_of(p, way, boundary);
    return p->channels != NULL ? *channel_at(p, way, boundary) : p->mesh.of[GROUP_PP];
}

struct comm *channel_to_receive(const struct parallel *p, enum direction way, uint32_t boundary,
                                uint32_t *out_peer)
{
    *out_peer = p->channels != NULL ? 0 : sender_of(p, way, boundary);
    return p->channels != NULL ? *channel_at(p, way, boundary) : p->mesh.of[GROUP_PP];
}
