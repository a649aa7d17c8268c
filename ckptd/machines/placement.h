/* placement.h - decides which nodes get a copy of a checkpoint, and which losses its copies
 * survive. Pure; see placement.c. */
#ifndef HOLDFAST_CKPTD_MACHINES_PLACEMENT_H
#define HOLDFAST_CKPTD_MACHINES_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

/* A node, for one checkpoint. The first of a list is this node. */
struct site {
    const char *domain;
    bool has_copy;  /* whole, as far as this node knows */
    bool is_away;   /* it does not answer, or accepts no copies */
    uint64_t order; /* placement_order() */
    bool has_part;  /* shards were saved there; together with the others all are there */
};

/* n: after the loss of any n - 1 failure domains every shard is left. */
uint32_t placement_domains(const struct site *sites, uint32_t count);
/* The sites that shall get a whole copy, so that that number becomes `replicas`, best first;
 * returns how many. The first of the list, if it has a part, shall fetch the shards that it lacks.
 * Costs count * log(count). Without memory none is chosen until the next check. */
#define PLACEMENT_COPIES_MAX 16u
uint32_t placement_choose(uint32_t out[PLACEMENT_COPIES_MAX], const struct site *sites,
                          uint32_t count, uint32_t replicas);
/* Spreads the copies of several runs over the nodes: lower values first. */
uint64_t placement_order(const char *run, const char *node);

#endif
