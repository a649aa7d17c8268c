/* hints.h - what a mesh or a model makes slow without need: settings that are allowed.
 *
 * A hint says what costs time, how much of it there is, and which setting avoids it. Rank 0 warns
 * of them when training starts; an estimate prints them. */
#ifndef HOLDFAST_TRAINER_PARALLEL_HINTS_H
#define HOLDFAST_TRAINER_PARALLEL_HINTS_H

#include "proto/model/model_shape.h"
#include "trainer/plan/mesh.h"

struct parallel;

#define HINTS_MAX 5u
#define HINT_TEXT_BYTES 480u

struct hint {
    const char *id; /* static */
    char text[HINT_TEXT_BYTES];
};

/* What the hints look at, of one rank. */
struct hint_facts {
    uint32_t degree[NUM_AXES];
    uint32_t num_ranks, ranks_on_machine;  /* the second 0: no launcher says */
    bool drops;                            /* blocks are gathered for each use */
    uint32_t micro_steps, gathers, blocks; /* of the step: gathers of its blocks by this rank */
    uint64_t gathered_bytes;               /* of these blocks, whole */
    bool sums_leaves;                      /* owners get each leaf, not a sum of some */
    uint32_t leaves;                       /* of a step */
    struct model_shape shape;
    uint32_t cores, sharers, threads; /* cores of so many ranks' threads; 0: not asked */
};
/* Returns how many apply; out has HINTS_MAX. */
uint32_t hints_of_facts(struct hint *out, const struct hint_facts *facts);
/* The same of a rank whose program is made. No communication. */
uint32_t parallel_hints(struct hint *out, const struct parallel *parallel);

#endif
