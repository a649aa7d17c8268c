/* timeline.h - when each operation of a program begins and ends, walked with given figures.
 *
 * The walk obeys what the executor obeys: compute in the order of the program, lanes beside it,
 * `after` between them. Whatever is on another lane than compute moves bytes over one link of the
 * rank, first come, first served. So the end of the last operation is the length of the critical
 * path. What other ranks' lateness adds is not in it. What is sent is there at once; the receiver's
 * link carries it.
 *
 * Compute goes ahead as far as it can and posts what it passes; when it needs an operation of
 * another lane, lanes' first operations get the link in the order in which they are ready, until
 * that one has its end. Nothing that is posted later can be ready earlier, so this order is the
 * order of time. */
#ifndef HOLDFAST_TRAINER_PLAN_TIMELINE_H
#define HOLDFAST_TRAINER_PLAN_TIMELINE_H

#include "trainer/plan/program.h"

struct timeline {
    double total;   /* seconds of the step */
    double compute; /* that compute worked */
    double link;    /* that the link was taken */
};

/* What an operation lasts, in seconds: of compute its work, of other lanes its time on the link. */
typedef double timeline_seconds(const void *user, const struct op *op);

/* ERR_INVALID: an operation waits for one behind it; ERR_MEMORY. */
int timeline_walk(const struct program *program, timeline_seconds *seconds, const void *user,
                  struct timeline *out);

#endif
