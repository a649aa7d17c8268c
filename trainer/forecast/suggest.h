/* suggest.h - finds the meshes that a run may have on a number of ranks, and the fastest of them.
 * Each is estimated with its own program. */
#ifndef HOLDFAST_TRAINER_FORECAST_SUGGEST_H
#define HOLDFAST_TRAINER_FORECAST_SUGGEST_H

#include "trainer/forecast/dry.h"

struct suggestion {
    uint32_t degree[NUM_AXES];
    bool fits;
    bool recomputes; /* only activations that fit are kept */
    /* Of the rank with the most memory: layers that keep each set. */
    uint32_t layers[NUM_MODEL_KEEPS];
    uint64_t bytes;         /* the most of any rank */
    double seconds;         /* of a step */
    double compute_seconds; /* products of the stage with most of them */
    double bubble;
};

struct suggestions {
    struct suggestion *list; /* those that fit, the fastest first */
    uint32_t num, capacity;
    uint32_t groups;        /* canonical.groups that makes the first one faster; 0: none */
    double grouped_seconds; /* of its step with these groups */
    uint32_t num_meshes;    /* all that exist; of the others: */
    uint32_t num_idle;      /* more data ranks than micro-batches */
    uint32_t num_refused;   /* refused by the model's sizes, or the settings */
    uint32_t num_large;     /* too large for a rank, even with recomputation */
    uint32_t num_slower;    /* may fit, and are slower than memory_estimation.suggestions others */
};

/* All meshes of `num_ranks`, with the settings of `config` except its degrees. If
 * canonical.tp_blocks (cp_blocks) equals the degree, it follows the degree. Free `out` with
 * suggestions_free(), also after an error: ERR_MEMORY. */
int suggest_meshes(struct suggestions *out, const struct config *config,
                   const struct model_table *table, struct kernels *kernels, uint32_t num_ranks);
void suggestions_free(struct suggestions *suggestions);

/* Prints to stdout, as text or with memory_estimation.json as JSON. ERR_INVALID: no mesh fits. */
int suggest_print(const struct config *config, const struct model_table *table,
                  struct kernels *kernels, uint32_t num_ranks);

#endif
