/* mesh.h - ranks as a grid of five axes, and the groups in which they communicate.
 *
 * rank = (((pp * R + replicate) * F + shard) * C + cp) * T + tp: pipeline stages are outermost,
 * tensor-parallel ranks are neighbours. A group is all ranks that differ in its axes alone, in the
 * order of their ranks.
 *
 * With canonical.groups shards are in parts of neighbours, as the ranks of one machine: each part
 * sums groups of leaves of its own, as a replica does, before they go to other machines. */
#ifndef HOLDFAST_TRAINER_PLAN_MESH_H
#define HOLDFAST_TRAINER_PLAN_MESH_H

#include "trainer/comm/comm.h"
#include "trainer/config/config.h"
#include "trainer/data/leaves.h"

enum axis { AXIS_PP, AXIS_REPLICATE, AXIS_SHARD, AXIS_CP, AXIS_TP, NUM_AXES };
/* Of what groups and their checks see: there AXIS_SHARD is within one of the parts. */
#define AXIS_PARTS ((enum axis)NUM_AXES)
#define NUM_CUTS (NUM_AXES + 1)

enum group {
    GROUP_PP,     /* the stages of one pipeline */
    GROUP_DATA,   /* replicate x shard: whose leaves are different */
    GROUP_SHARD,  /* who together hold one copy of the parameters of a place */
    GROUP_SUMS,   /* the same ranks, for a lane of its own; where the fast reduction sums */
    GROUP_COPIES, /* replicate x cp: who hold the same shard */
    GROUP_PEERS,  /* replicate x cp x tp: who hold the same rows of what tp leaves whole */
    GROUP_OWNERS, /* replicate x shard x cp: who own pieces of the same sums of gradients */
    /* With canonical.groups: */
    GROUP_REPLICA,  /* shard x cp, of a part: who own the sums of its group of leaves */
    GROUP_REPLICAS, /* replicate x parts: who add them to the sums of all groups */
    GROUP_CP,
    GROUP_RING, /* the same ranks, for a lane of its own; where keys and values go around */
    GROUP_TP,
    NUM_GROUPS
};

#define GROUP_WORLD NUM_GROUPS /* all ranks, which need no split */

struct mesh {
    uint32_t degree[NUM_AXES], place[NUM_AXES];
    uint32_t parts; /* of the shards */
    bool has_leaf_groups, has_ring, has_sums;
    uint32_t tp_blocks;          /* the run's */
    struct comm *world;          /* borrowed */
    struct comm *of[NUM_GROUPS]; /* NULL: of one rank, or not split (an estimate) */
};

/* Splits world ranks over the axes; out->world and has_sums stay. ERR_INVALID states the sum. No
 * communication.
 */
int mesh_init(struct mesh *out, const struct config *config, uint32_t rank, uint32_t size);
/* Makes the groups. Collective. */
int mesh_split(struct mesh *mesh);
void mesh_free_groups(struct mesh *mesh);

uint32_t mesh_rank_of(const struct mesh *mesh, const uint32_t place[NUM_AXES]);
/* Ranks of a group, and this rank's place in it: known without communication. */
uint32_t mesh_group_size(const struct mesh *mesh, enum group group);
uint32_t mesh_group_place(const struct mesh *mesh, enum group group);
/* The rank of the world at `place` of this rank's group. */
uint32_t mesh_group_rank(const struct mesh *mesh, enum group group, uint32_t place);
/* How many of a group's ranks are on this rank's machine, where each machine has `machine_ranks`
 * neighbours. */
uint32_t mesh_group_on_machine(const struct mesh *mesh, enum group group, uint32_t machine_ranks);
/* Of the longest step. */
struct leaves mesh_leaves(const struct mesh *mesh, const struct config *config);
const char *mesh_axis_name(enum axis axis);
/* Bits of enum axis, AXIS_PARTS among them; of GROUP_WORLD, too. */
uint32_t mesh_group_axes(enum group group);

#endif
