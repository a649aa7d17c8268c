/* mesh.h - ranks as a grid of five axes, and the groups in which they communicate.
 *
 * rank = (((pp * R + replicate) * F + shard) * C + cp) * T + tp: pipeline stages are outermost,
 * tensor-parallel ranks are neighbours. A group contains all ranks that differ in its axes only, in
 * the order of their ranks.
 *
 * With canonical.groups the shards are divided into parts of neighbours, such as the ranks of one
 * machine. Each part sums its groups of leaves, as a replica does, before they go to other
 * machines. */
#ifndef HOLDFAST_TRAINER_PLAN_MESH_H
#define HOLDFAST_TRAINER_PLAN_MESH_H

#include "trainer/comm/comm.h"
#include "trainer/config/config.h"
#include "trainer/data/leaves.h"

enum axis { AXIS_PP, AXIS_REPLICATE, AXIS_SHARD, AXIS_CP, AXIS_TP, NUM_AXES };
/* An axis for groups and their checks: the part. With it AXIS_SHARD is the place within a part. */
#define AXIS_PARTS ((enum axis)NUM_AXES)
#define NUM_CUTS (NUM_AXES + 1)

enum group {
    GROUP_PP,     /* the stages of one pipeline */
    GROUP_DATA,   /* replicate x shard: ranks with different leaves */
    GROUP_SHARD,  /* ranks that together hold one copy of the parameters of a place */
    GROUP_SUMS,   /* the same ranks, for the lane of sums; the fast reduction sums there */
    GROUP_COPIES, /* replicate x cp: ranks that hold the same shard */
    /* Replicate x cp x tp: ranks that hold the same rows of tensors that tp leaves whole. */
    GROUP_PEERS,
    GROUP_OWNERS, /* replicate x shard x cp: ranks that own pieces of the same sums of gradients */
    /* With canonical.groups: */
    GROUP_REPLICA,  /* shard x cp, of a part: ranks that own the sums of its group of leaves */
    GROUP_REPLICAS, /* replicate x parts: ranks that add them to the sums of all groups */
    GROUP_CP,
    GROUP_RING, /* the same ranks, for the ring's lane: keys and values go around there */
    GROUP_TP,
    NUM_GROUPS
};

#define GROUP_WORLD NUM_GROUPS /* all ranks, which need no split */

struct mesh {
    uint32_t degree[NUM_AXES], place[NUM_AXES];
    uint32_t parts; /* into which the shards are divided */
    bool has_leaf_groups, has_ring, has_sums;
    uint32_t tp_blocks;          /* canonical.tp_blocks */
    struct comm *world;          /* borrowed */
    struct comm *of[NUM_GROUPS]; /* NULL: a group of one rank, or not split (an estimate) */
};

/* Splits the world's ranks over the axes; out->world and has_sums are not changed. ERR_INVALID: the
 * error text has the product of the degrees. Does not communicate. */
int mesh_init(struct mesh *out, const struct config *config, uint32_t rank, uint32_t size);
/* Creates the groups. Collective. */
int mesh_split(struct mesh *mesh);
void mesh_free_groups(struct mesh *mesh);

uint32_t mesh_rank_of(const struct mesh *mesh, const uint32_t place[NUM_AXES]);
/* The number of ranks of a group, and this rank's place in it. Does not communicate. */
uint32_t mesh_group_size(const struct mesh *mesh, enum group group);
uint32_t mesh_group_place(const struct mesh *mesh, enum group group);
/* The rank of the world at `place` of this rank's group. */
uint32_t mesh_group_rank(const struct mesh *mesh, enum group group, uint32_t place);
/* The number of a group's ranks on this rank's machine, where each machine has `machine_ranks`
 * neighbouring ranks. */
uint32_t mesh_group_on_machine(const struct mesh *mesh, enum group group, uint32_t machine_ranks);
/* Leaves of the longest step. */
struct leaves mesh_leaves(const struct mesh *mesh, const struct config *config);
const char *mesh_axis_name(enum axis axis);
/* Bits of enum axis, AXIS_PARTS included; also for GROUP_WORLD. */
uint32_t mesh_group_axes(enum group group);

#endif
