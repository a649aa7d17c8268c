/* quorum_all.h - a quorum of one set: these nodes, of which each is a site. */
#ifndef HOLDFAST_TESTS_QUORUM_ALL_H
#define HOLDFAST_TESTS_QUORUM_ALL_H

#include "ckptd/machines/quorum.h"

static inline struct quorum quorum_of_all(uint32_t nodes)
{
    struct quorum quorum = quorum_begin(nodes);
    quorum.num_sets = 1;
    quorum.sets[0].nodes = nodes;
    for (uint32_t i = 0; i < nodes; i++)
        node_set_add(&quorum.sets[0].sites, i);
    return quorum;
}

#endif
