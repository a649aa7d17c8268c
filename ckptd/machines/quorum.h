/* quorum.h - decides which nodes are asked for the number of an attempt, and when most of them hold
 * it, so that it may be answered. Pure; see quorum.c. */
#ifndef HOLDFAST_CKPTD_MACHINES_QUORUM_H
#define HOLDFAST_CKPTD_MACHINES_QUORUM_H

#include "ckptd/machines/node_set.h"
#include "ckptd/machines/tier_index.h"

#include <stdbool.h>
#include <stdint.h>

/* A number that is being published at most of the nodes: the peers answer in any order. This node
 * is site 0 and takes it last; it counts as a holder. Most of each set must hold it; a node that is
 * no site counts in a set, but never holds it. */
#define QUORUM_SETS_MAX 4u
struct quorum {
    uint32_t sites, answered;
    struct node_set asked, holders; /* of the sites */
    uint32_t num_sets;
    struct quorum_set {
        uint32_t nodes;
        struct node_set sites;
    } sets[QUORUM_SETS_MAX];
};
enum quorum_state {
    QUORUM_ASKS,
    QUORUM_HELD,
    QUORUM_TAKEN,  /* by another start: the number is used up */
    QUORUM_TOO_FEW /* no start may use the number, nor take it again */
};
/* This node holds it; there is no set yet. */
struct quorum quorum_begin(uint32_t sites);
/* Is it decided before a peer is asked? */
enum quorum_state quorum_check(const struct quorum *quorum);
/* The sites to ask now, each once: at the beginning, and after an answer that leaves it at ASKS.
 * `by_name`: the peers in an order that all nodes share; a peer's site is its index plus one.
 * `answering`: the sites that are not known to be away. */
struct node_set quorum_ask(struct quorum *quorum, const uint16_t *by_name,
                           const struct node_set *answering);
/* The answer of the peer of that site; each counts once. */
enum quorum_state quorum_heard(struct quorum *quorum, uint32_t site, enum publication outcome);
/* The first set without a majority among the holders; NULL: none. */
const struct quorum_set *quorum_lacks(const struct quorum *quorum);
uint32_t quorum_count(const struct quorum *quorum, const struct quorum_set *set);

#endif
