/* links.h - how fast do the ranks of a mesh reach each other? A table of calls and payloads, as
 * nccl-tests have it, but of the calls that a step makes and of the transport that it makes them
 * with.
 *
 * Each group of the mesh is measured with all its like at the same time, as in a step: groups that
 * share a link share it here, too. A call of `bytes`: what each rank has when an all-gather has
 * ended, what it sends and receives in an all-to-all or around a ring, what it adds up. The bus's
 * rate is what the links between n ranks carry for it, by the formulas of nccl-tests'
 * PERFORMANCE.md: bytes / time, times (n - 1) / n, of a sum 2 (n - 1) / n, of a ring 1.
 * Where ranks have GPUs, copies to them and back come first, by all ranks at once. */
#ifndef HOLDFAST_TRAINER_PREFLIGHT_LINKS_H
#define HOLDFAST_TRAINER_PREFLIGHT_LINKS_H

#include "trainer/run/rank.h"

enum link_call { LINK_ALL_GATHER, LINK_ALL_TO_ALL, LINK_RING, LINK_SUM, NUM_LINK_CALLS };

/* Of one call and payload: seconds of the slowest rank. */
struct link_times {
    double least, median, p99;
};

/* What the bus carries for a byte of the call's payload. */
double links_bus_factor(enum link_call call, uint32_t ranks);
/* Where sums of floats are the library's, or the host's. */
bool links_can_sum(const struct comm *group);
/* Sorts `seconds`. num > 0. */
struct link_times links_times(double *seconds, uint32_t num);

/* The ranks' work (ranks_run): rank 0 prints the table, or with memory_estimation.json one JSON
 * object, and what `--suggest` wants to know. ERR_UNAVAILABLE: a rank did not answer. Collective.
 */
int links(struct rank *rank, int *out_exit);

#endif
