/* hints.h - allowed settings of a mesh or a model that make a run slow without need.
 *
 * A hint names the cause, its amount, and the setting that avoids it. Rank 0 warns of them when
 * training starts; an estimate prints them. */
#ifndef HOLDFAST_TRAINER_PARALLEL_HINTS_H
#define HOLDFAST_TRAINER_PARALLEL_HINTS_H

#include "proto/model/model_shape.h"
#include "trainer/plan/mesh.h"

struct parallel;

#define HINTS_MAX 5u
#define HINT_TEXT_BYTES 480u

struct hint {
    const char *id; /* static text */
    char text[HINT_TEXT_BYTES];
};

/* The input of the hints, of one rank. */
struct hint_facts {
    uint32_t degree[NUM_AXES];
    uint32_t num_ranks, ranks_on_machine;  /* ranks_on_machine 0: the launcher does not say */
    bool drops;                            /* blocks are gathered for each use */
    uint32_t micro_steps, gathers, blocks; /* of the step; gathers: of blocks, by this rank */
    uint64_t gathered_bytes;               /* of these blocks, whole */
    bool sums_leaves;                      /* owners get each leaf, not sums of groups */
    uint32_t leaves;                       /* of a step */
    struct model_shape shape;
    /* Threads per rank; sharers: ranks that share the cores; 0: not known. */
    uint32_t cores, sharers, threads;
};
/* Returns the number of hints that apply; out has HINTS_MAX. */
uint32_t hints_of_facts(struct hint *out, const struct hint_facts *facts);
/* The same for a rank whose program is made. Does not communicate. */
uint32_t parallel_hints(struct hint *out, const struct parallel *parallel);

#endif
