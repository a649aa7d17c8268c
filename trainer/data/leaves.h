/* leaves.h - which data rank computes which leaf (micro-batch) of a step, and when.
 *
 * A step has S leaves, in G groups of S / G consecutive ones. d = R * F data ranks, R replicas of F
 * shards; data rank r * F + s is shard s of replica r. With one group, leaf i * d + q is computed
 * at micro-step i by data rank q: C1 of exchange/reduce.c. With more (C6), replica r computes the
 * groups r, r + R, ..: a round each; of a round's group, shard s computes leaf i * F + s at the
 * round's micro-step i. */
#ifndef HOLDFAST_TRAINER_LEAVES_H
#define HOLDFAST_TRAINER_LEAVES_H

#include <stdbool.h>
#include <stdint.h>

struct leaves {
    uint32_t num, groups, replicas, shards; /* S, G, R, F */
};

#define LEAF_NONE UINT32_MAX

static inline uint32_t leaves_of_group(const struct leaves *l)
{
    return l->num / l->groups;
}

/* Micro-steps of a round; with one group all micro-steps are one round. */
static inline uint32_t leaves_round(const struct leaves *l)
{
    uint32_t ranks = l->groups > 1 ? l->shards : l->replicas * l->shards;
    return (leaves_of_group(l) + ranks - 1) / ranks;
}

static inline uint32_t leaves_micro_steps(const struct leaves *l)
{
    uint32_t rounds = l->groups > 1 ? (l->groups + l->replicas - 1) / l->replicas : 1;
    return rounds * leaves_round(l);
}

/* True if the replica has a group in the round. */
static inline bool leaves_has_group(const struct leaves *l, uint32_t replica, uint32_t round)
{
    return (uint64_t)round * l->replicas + replica < l->groups;
}

/* LEAF_NONE: the rank computes none at this micro-step. */
static inline uint32_t leaves_at(const struct leaves *l, uint32_t data_rank, uint32_t micro_step)
{
    uint64_t d = (uint64_t)l->replicas * l->shards, leaf = micro_step * d + data_rank;
    if (l->groups == 1)
        return leaf < l->num ? (uint32_t)leaf : LEAF_NONE;
    uint32_t replica = data_rank / l->shards, round = micro_step / leaves_round(l);
    leaf = (uint64_t)(micro_step % leaves_round(l)) * l->shards + data_rank % l->shards;
    if (!leaves_has_group(l, replica, round) || leaf >= leaves_of_group(l))
        return LEAF_NONE;
    return (round * l->replicas + replica) * leaves_of_group(l) + (uint32_t)leaf;
}

/* The rank and micro-step that compute a leaf. */
static inline void leaves_find(const struct leaves *l, uint32_t leaf, uint32_t *data_rank,
                               uint32_t *micro_step)
{
    uint32_t d = l->replicas * l->shards, group = leaf / leaves_of_group(l);
    uint32_t in_group = leaf % leaves_of_group(l);
    if (l->groups == 1) {
        *data_rank = leaf % d;
        *micro_step = leaf / d;
        return;
    }
    *data_rank = group % l->replicas * l->shards + in_group % l->shards;
    *micro_step = group / l->replicas * leaves_round(l) + in_group / l->shards;
}

#endif
