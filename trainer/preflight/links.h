/* links.h - measures how fast the ranks of a mesh exchange data. It prints a table of calls and
 * payloads like that of nccl-tests, for the calls and the transport of a step.
 *
 * All groups of an axis are measured at the same time, as in a step: groups that share a link share
 * it here, too. The `bytes` of a call are those of an all-gather's result on each rank. For an
 * all-to-all, a ring or a sum they are the bytes that each rank sends and receives, or sums. The
 * bus rate is the load of the links between n ranks, by the formulas of nccl-tests' PERFORMANCE.md:
 * bytes / time, times (n - 1) / n, for a sum 2 (n - 1) / n, for a ring 1. If ranks have GPUs,
 * copies to them and back come first, by all ranks at once. One rank with a GPU has only these. */
#ifndef HOLDFAST_TRAINER_PREFLIGHT_LINKS_H
#define HOLDFAST_TRAINER_PREFLIGHT_LINKS_H

#include "trainer/run/rank.h"

enum link_call { LINK_ALL_GATHER, LINK_ALL_TO_ALL, LINK_RING, LINK_SUM, NUM_LINK_CALLS };

/* For one call and payload: seconds of the slowest rank. */
struct link_times {
    double least, median, p99;
};

/* The bytes on the bus for a byte of the call's payload. */
double links_bus_factor(enum link_call call, uint32_t ranks);
/* True if the library sums floats in device memory, or floats are in host memory. */
bool links_can_sum(const struct comm *group);
/* Sorts `seconds`. num > 0. */
struct link_times links_times(double *seconds, uint32_t num);

/* Call on all ranks (ranks_run). Rank 0 prints the table, or with memory_estimation.json one JSON
 * object, and the rates for `--suggest`. ERR_UNAVAILABLE: a rank did not answer. Collective. */
int links(struct rank *rank, int *out_exit);

#endif
