/* ahead.h - a thread that reads a rank's leaves before they are needed, so that no step waits for a
 * disk as long as the disk keeps up on average.
 *
 * leaves.h assigns the leaves of a step (micro-batches; local_batch_size samples) to ranks. The
 * thread reads this rank's leaves, step after step, while there are free slots. With a loss mask
 * the number of counted targets must be known before a step begins: then there are slots for two
 * whole steps.
 *
 * All memory is allocated when it opens. The data belong to the thread until ahead_close(). One
 * thread makes all other calls. */
#ifndef HOLDFAST_TRAINER_AHEAD_H
#define HOLDFAST_TRAINER_AHEAD_H

#include "trainer/data/data.h"
#include "trainer/data/leaves.h"

struct ahead;
struct ahead_options {
    struct data *data;
    uint32_t batch, rank; /* among the data ranks */
    struct leaves leaves; /* of the longest step */
    bool wants_starts;    /* of documents: fill in their starts */
    /* The number of leaves of the step that follows `step` steps. */
    uint32_t (*leaves_of_step)(const void *user, int64_t step);
    const void *user;
};
int ahead_open(struct ahead **out, const struct ahead_options *options);
void ahead_close(struct ahead *ahead); /* NULL is allowed */
/* Sets the next wanted leaves: those of the step that follows `step` steps and begins with global
 * sample `first`. If the thread is there already, it reads nothing again. */
void ahead_step(struct ahead *ahead, int64_t step, uint64_t first);
/* The number of counted targets in this rank's leaves of the step. Call before the first
 * ahead_take. Waits for the whole step if there is a loss mask. */
int ahead_count(struct ahead *ahead, uint64_t *out);
/* Copies this rank's next leaf of the step; there must be one. */
int ahead_take(struct ahead *ahead, const struct data_batch *out);
const struct data *ahead_data(const struct ahead *ahead);
/* Seconds that ahead_count and ahead_take have waited since the last such call. */
double ahead_waited(struct ahead *ahead);

#endif
