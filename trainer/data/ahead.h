/* ahead.h - a thread that reads a rank's leaves before they are needed, so that no step waits for a
 * disk as long as the disk keeps up on average.
 *
 * leaves.h says which leaves of a step (micro-batches; local_batch_size samples) are of a rank. The
 * thread goes through this rank's leaves, step after step, as many as there are
 * slots for. A tokens file with a loss mask needs the number of counted targets of a step before
 * the step begins: then there are slots for two whole steps.
 *
 * All memory is taken when it opens. The data belong to the thread until ahead_close(). The other
 * calls are for one thread. */
#ifndef HOLDFAST_TRAINER_AHEAD_H
#define HOLDFAST_TRAINER_AHEAD_H

#include "trainer/data/data.h"
#include "trainer/data/leaves.h"

struct ahead;
struct ahead_options {
    struct data *data;
    uint32_t batch, rank; /* of the data ranks */
    struct leaves leaves; /* of the longest step */
    bool wants_starts;    /* of documents */
    /* Leaves of the step that follows `step` steps. */
    uint32_t (*leaves_of_step)(const void *user, int64_t step);
    const void *user;
};
int ahead_open(struct ahead **out, const struct ahead_options *options);
void ahead_close(struct ahead *ahead); /* NULL is allowed */
/* The next leaves wanted are those of the step that follows `step` steps and begins with global
 * sample `first`. Where the thread is there already, nothing is read again. */
void ahead_step(struct ahead *ahead, int64_t step, uint64_t first);
/* Targets that count in this rank's leaves of the step: to be asked before the first is taken.
 * Waits for the whole step when there is a loss mask. */
int ahead_count(struct ahead *ahead, uint64_t *out);
/* Copies this rank's next leaf of the step; the rank has one. */
int ahead_take(struct ahead *ahead, const struct data_batch *out);
const struct data *ahead_data(const struct ahead *ahead);
/* Seconds that ahead_count and ahead_take have waited since the last call of this. */
double ahead_waited(struct ahead *ahead);

#endif
