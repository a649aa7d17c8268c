/* estimate.h - estimates a step's memory, work, traffic and idle time on any mesh, without its
 * machines. */
#ifndef HOLDFAST_TRAINER_FORECAST_ESTIMATE_H
#define HOLDFAST_TRAINER_FORECAST_ESTIMATE_H

#include "trainer/forecast/dry.h"

#include <stdio.h>

/* The first rank of each stage represents all ranks of the stage: it has data rank 0, with the most
 * leaves, and the first shard, which is the largest. `stages`: config->pp of them, owned by the
 * caller. Errors and `plan` as in dry_run. */
int estimate_ranks(struct dry_rank *stages, const struct config *config,
                   const struct model_table *table, struct kernels *kernels, uint32_t num_ranks,
                   FILE *plan);

/* Floating-point operations of a step on all ranks together (kernels/dry.c says what counts). */
struct estimate_work {
    double forward, backward, recomputation;
    double model; /* 6 x parameters of products x tokens + 12 L H D T x tokens, as in torchtitan */
};
/* The limit in bytes of a rank, if activations are kept by bytes; 0: otherwise. */
int64_t estimate_budget(const struct config *config);
struct estimate_work estimate_work(const struct dry_rank *stages, const struct config *config,
                                   const struct model_table *table);

/* Bytes that a rank sends in a step, by the axis of the receiving ranks. Sums of gradients of
 * context parallel count as data: one exchange has both. */
enum traffic { TRAFFIC_PP, TRAFFIC_DP, TRAFFIC_CP, TRAFFIC_TP, TRAFFIC_WORLD, NUM_TRAFFIC };
uint64_t estimate_traffic(const struct dry_rank *rank, enum traffic traffic);

/* Prints and frees `all`; NULL: there was no memory for it. ERR_MEMORY. */
struct json_t;
int estimate_print_json(struct json_t *all);
/* Prints to stdout, as text or with memory_estimation.json as JSON. */
int estimate_print(const struct config *config, const struct model_table *table,
                   struct kernels *kernels, uint32_t num_ranks);

#endif
