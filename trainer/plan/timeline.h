/* timeline.h - when each operation of a program begins and ends, walked with given figures.
 *
 * The walk follows the rules of the executor: compute in the order of the program, lanes beside it,
 * `after` between them. An operation of another lane than compute moves bytes over one link of the
 * rank, first come, first served. So the end of the last operation is the length of the critical
 * path. Delays by other ranks are not included. A send takes no time; the receiver's link carries
 * it.
 *
 * Compute advances as far as it can and posts the operations that it passes. When it needs an
 * operation of another lane, the link serves the lanes' first operations in the order in which they
 * are ready. This goes on until that operation ends. An operation posted later is never ready
 * earlier, so this is the order of time. */
#ifndef HOLDFAST_TRAINER_PLAN_TIMELINE_H
#define HOLDFAST_TRAINER_PLAN_TIMELINE_H

#include "trainer/plan/program.h"

struct timeline {
    double total;   /* seconds of the step */
    double compute; /* compute was busy */
    double link;    /* the link was busy */
};

/* The duration of an operation in seconds: its work for compute, its time on the link for other
 * lanes. */
typedef double timeline_seconds(const void *user, const struct op *op);

/* ERR_INVALID: an operation waits for a later one; ERR_MEMORY. */
int timeline_walk(const struct program *program, timeline_seconds *seconds, const void *user,
                  struct timeline *out);

#endif
