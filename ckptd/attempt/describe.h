/* describe.h - the rendezvous of the ranks of an attempt, and the plan made of their slices. */
#ifndef HOLDFAST_CKPTD_ATTEMPT_DESCRIBE_H
#define HOLDFAST_CKPTD_ATTEMPT_DESCRIBE_H

#include "ckptd/core/loop.h"
#include "proto/format/places.h"
#include "proto/format/shard.h"
#include "proto/layout/layout.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct run;
struct replica_slice;

struct group_rank {
    struct slice *slices;
    uint32_t count;
    bool described;
    bool compares_replicas; /* from its DescribeRequest */
    uint32_t memory_node;   /* from its DescribeRequest */
    uint32_t node;          /* 0: this one; else 1 + the index of a peer, which writes its shards */
    struct rpc_call *call;  /* a waiting call; NULL: none */
    uint64_t session;       /* token of its last session, which may be over; 0: none yet */
    int64_t present_ms;     /* of another node: when that last named the rank; 0: it names none */
    struct save_item *items;
    uint32_t num_items;
    struct shard_tensor *tensors;
    uint32_t num_tensors;
    struct replica_slice *replicas; /* its slices that other ranks hold as well (compare.c) */
    uint32_t num_replicas;
    struct shard_geometry geometry;
    uint32_t image_segments; /* fewer than the file needs: its images are windows */
};

/* The slices of all ranks of one attempt, and the plan made of them. */
struct group {
    struct run *run;
    uint64_t attempt;
    uint32_t world_size, num_described;
    uint32_t num_windows; /* ranks that save through a window */
    uint64_t room_saves;  /* as DescribeReply has it */
    bool planning, planned;
    char *plan;          /* another node coordinates: the text of its plan, once received; owned */
    uint8_t *replicated; /* and the cells of which several ranks hold copies (replicas.h); owned */
    size_t replicated_bytes;
    bool abandoned; /* a new attempt came while it was planned: free when the job ends */
    struct layout_table *table;
    struct places places; /* of the ranks, once planned; empty: all are here */
    struct group_rank *ranks;
    struct timer timer; /* describe deadline */
    struct job job;
    struct fault fault;
};

void describe_rank(struct service *service, struct rpc_call *call,
                   const Holdfast__V1__DescribeRequest *request);
/* Takes slices over from a message. ERR_INVALID, ERR_MEMORY. */
int describe_take_slices(struct slice **out, Holdfast__V1__Slice *const *slices, size_t count);
void group_free(struct group *group);
/* Before the plan: fails the waiting ranks with this thread's last error; they describe themselves
 * again. */
void describe_fail(struct group *group, int error);
/* A rank of another node joins, or asks whether all have. *out_known: the rank is known, from that
 * node. */
int describe_join(struct service *service, const Holdfast__V1__JoinRequest *request, uint32_t node,
                  bool *out_known);
/* The coordinator's plan was received: the ranks of this node get their places. Takes ownership of
 * the arguments; group->replicated is set before. */
void describe_take_plan(struct group *group, char *plan, struct places *places);

#endif
