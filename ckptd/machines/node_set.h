/* node_set.h - a set of nodes by number: this node is 0, its peers follow in the order of
 * nodes.peers. */
#ifndef HOLDFAST_CKPTD_MACHINES_NODE_SET_H
#define HOLDFAST_CKPTD_MACHINES_NODE_SET_H

#include "proto/base/report.h"

#include <stdbool.h>
#include <stdint.h>

#define NODE_SET_MAX 4096u /* numbers from 0 to one less */
#define NODE_SET_WORDS (NODE_SET_MAX / 64)

struct node_set {
    uint64_t words[NODE_SET_WORDS];
};

static inline void node_set_add(struct node_set *set, uint32_t node)
{
    CHECK(node < NODE_SET_MAX);
    set->words[node / 64] |= UINT64_C(1) << node % 64;
}

static inline bool node_set_has(const struct node_set *set, uint32_t node)
{
    CHECK(node < NODE_SET_MAX);
    return set->words[node / 64] >> node % 64 & 1;
}

/* Number of nodes in both sets. */
static inline uint32_t node_set_common(const struct node_set *a, const struct node_set *b)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < NODE_SET_WORDS; i++)
        count += (uint32_t)__builtin_popcountll(a->words[i] & b->words[i]);
    return count;
}

static inline uint32_t node_set_count(const struct node_set *set)
{
    return node_set_common(set, set);
}

#endif
