/* placement.h - which node gets a copy of a checkpoint, what its copies survive, and what a
 * majority is. Pure; see placement.c. */
#ifndef HOLDFAST_CKPTD_MACHINES_PLACEMENT_H
#define HOLDFAST_CKPTD_MACHINES_PLACEMENT_H

#include "ckptd/machines/node_set.h"
#include "ckptd/machines/tier_index.h"

#include <stdbool.h>
#include <stdint.h>

/* A node, for one checkpoint. The first of a list is this node itself. */
struct site {
    const char *domain;
    bool has_copy;  /* whole, as far as this node knows */
    bool is_away;   /* it does not answer, or takes nothing */
    uint64_t order; /* placement_order() */
    bool has_part;  /* shards were saved there; with those of the others all are there */
};

/* n: any n - 1 failure domains may be lost, and every shard is left. */
uint32_t placement_domains(const struct site *sites, uint32_t count);
/* The sites that are to get a whole copy, so that that number becomes `replicas`: at most as many,
 * best first; so many. The first of the list, when it has a part, is to fetch what it lacks. Costs
 * count * log(count). Without memory none is chosen, until the next look. */
#define PLACEMENT_COPIES_MAX 16u
uint32_t placement_choose(uint32_t out[PLACEMENT_COPIES_MAX], const struct site *sites,
                          uint32_t count, uint32_t replicas);
/* Spreads the copies of several runs over the nodes: lower ones first. */
uint64_t placement_order(const char *run, const char *node);
/* May a number count that so many of all nodes, this one included, hold durably? */
bool placement_is_majority(uint32_t holders, uint32_t nodes);

/* A number on its way to most of the nodes: the peers answer in any order. This node is
 * site 0 and takes it last; it counts as a holder. Most of each set must hold it; a node that is no
 * site counts in a set, and holds nothing. */
#define QUORUM_SETS_MAX 4u
struct quorum {
    uint32_t sites, asked;
    struct node_set holders; /* of the sites */
    uint32_t num_sets;
    struct quorum_set {
        uint32_t nodes;
        struct node_set sites;
    } sets[QUORUM_SETS_MAX];
};
enum quorum_state {
    QUORUM_ASKS,
    QUORUM_HELD,
    QUORUM_TAKEN,  /* by another start: the number is spent */
    QUORUM_TOO_FEW /* no start may count on it, nor take it again */
};
/* One set: these nodes, of which each is a site. */
struct quorum quorum_begin(uint32_t nodes);
/* The answer of a peer, of that site; each counts once. */
enum quorum_state quorum_heard(struct quorum *quorum, uint32_t site, enum publication outcome);
/* The first set of which not most of the nodes are among the holders; NULL: there is none. */
const struct quorum_set *quorum_lacks(const struct quorum *quorum);
uint32_t quorum_count(const struct quorum *quorum, const struct quorum_set *set);

#endif
