/* estimate.h - what a step takes on a mesh that need not be there: memory, work, traffic, idle
 * time. */
#ifndef HOLDFAST_TRAINER_FORECAST_ESTIMATE_H
#define HOLDFAST_TRAINER_FORECAST_ESTIMATE_H

#include "trainer/forecast/dry.h"

#include <stdio.h>

/* The first rank of each stage stands for all ranks of the stage: it is of data rank 0, which has
 * the most leaves, and of the first shard, which is the largest. `stages`: config->pp of them, the
 * caller's. Errors as dry_run. `plan`: as there. */
int estimate_ranks(struct dry_rank *stages, const struct config *config,
                   const struct model_table *table, struct kernels *kernels, uint32_t num_ranks,
                   FILE *plan);

/* Floating-point operations of a step on all ranks together (kernels/dry.c says what counts). */
struct estimate_work {
    double forward, backward, recomputation;
    double model; /* 6 x parameters of products x tokens + 12 L H D T x tokens, as torchtitan */
};
/* Bytes that a rank may take, where activations are kept by those; 0: they are not. */
int64_t estimate_budget(const struct config *config);
struct estimate_work estimate_work(const struct dry_rank *stages, const struct config *config,
                                   const struct model_table *table);

/* Bytes that a rank sends in a step, by the axis whose ranks get them. Sums of gradients of context
 * parallel go with those of data: one exchange carries both. */
enum traffic { TRAFFIC_PP, TRAFFIC_DP, TRAFFIC_CP, TRAFFIC_TP, TRAFFIC_WORLD, NUM_TRAFFIC };
uint64_t estimate_traffic(const struct dry_rank *rank, enum traffic traffic);

/* `all` is printed and freed; NULL: there was no memory for it. ERR_MEMORY. */
struct json_t;
int estimate_print_json(struct json_t *all);
/* To stdout, as text or with memory_estimation.json as JSON. */
int estimate_print(const struct config *config, const struct model_table *table,
                   struct kernels *kernels, uint32_t num_ranks);

#endif
