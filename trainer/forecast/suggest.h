/* suggest.h - which meshes a run may have on so many ranks, and which is the fastest: each is
 * estimated with the program that it would run. */
#ifndef HOLDFAST_TRAINER_FORECAST_SUGGEST_H
#define HOLDFAST_TRAINER_FORECAST_SUGGEST_H

#include "trainer/forecast/dry.h"

struct suggestion {
    uint32_t degree[NUM_AXES];
    bool fits;
    bool recomputes;                  /* activations are kept as far as the memory goes */
    uint32_t layers[NUM_MODEL_KEEPS]; /* of the rank that takes most memory: how many keep what */
    uint64_t bytes;                   /* that a rank takes, at most */
    double seconds;                   /* of a step */
    double compute_seconds;           /* products of the stage with most of them */
    double bubble;
};

struct suggestions {
    struct suggestion *list; /* those that fit, fastest first */
    uint32_t num, capacity;
    uint32_t groups;        /* canonical.groups that would make the first one faster; 0: none */
    double grouped_seconds; /* of its step then */
    uint32_t num_meshes;    /* all that there are; of the others: */
    uint32_t num_idle;      /* have more data ranks than micro-batches */
    uint32_t num_refused;   /* by the model's sizes, or the settings */
    uint32_t num_large;     /* take more than a rank has, whatever is computed again */
    uint32_t num_slower;    /* would, and are slower than memory_estimation.suggestions others */
};

/* All meshes of `num_ranks`, with the settings of `config` but for its degrees. Where
 * canonical.tp_blocks (cp_blocks) is the degree, it follows it. `out` is freed with
 * suggestions_free(), also behind an error: ERR_MEMORY. */
int suggest_meshes(struct suggestions *out, const struct config *config,
                   const struct model_table *table, struct kernels *kernels, uint32_t num_ranks);
void suggestions_free(struct suggestions *suggestions);

/* To stdout, as text or with memory_estimation.json as JSON. ERR_INVALID: no mesh fits. */
int suggest_print(const struct config *config, const struct model_table *table,
                  struct kernels *kernels, uint32_t num_ranks);

#endif
