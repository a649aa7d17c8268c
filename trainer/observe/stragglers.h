/* stragglers.h - finds a rank that delays the others.
 *
 * The ranks of a pipeline stage compute the same amount, and wait for each other in calls: the last
 * rank waits least. Ranks compare the part of the last steps' time during which a call was under
 * way (flight_called_seconds), at step lines, at most every STRAGGLER_STEPS_MIN steps and
 * STRAGGLER_SECONDS_MIN. A rank is late if its part is metrics.straggler_percent below the median
 * of the others of its stage. It is logged when the same host is late twice in a row, and again
 * when this begins again.
 *
 * A call queued on a GPU's compute stream counts for the time of both. So with tp on GPUs a late
 * rank may not be found. */
#ifndef HOLDFAST_TRAINER_OBSERVE_STRAGGLERS_H
#define HOLDFAST_TRAINER_OBSERVE_STRAGGLERS_H

#include "trainer/config/config.h"
#include "trainer/plan/mesh.h"

#define STRAGGLER_STEPS_MIN 10
#define STRAGGLER_SECONDS_MIN 1.0 /* compared time; less is noise */
#define STRAGGLER_HOST_MAX 64u

/* Of one rank, since the last comparison. */
struct straggler_note {
    double seconds, called; /* of its steps; of those with a call under way */
    uint32_t stage;
    char host[STRAGGLER_HOST_MAX];
};

struct straggler {
    uint32_t rank;
    uint32_t num_late; /* late ranks of its host, itself included; 0: no rank is late */
    char host[STRAGGLER_HOST_MAX];
    double percent, others; /* part of its time with a call under way; the median of the others */
};

struct stragglers {
    const struct config *config;
    int64_t steps; /* since the last comparison */
    struct straggler_note own;
    char late_host[STRAGGLER_HOST_MAX]; /* "": no host was late */
    bool is_said;
};

/* Finds the latest rank, if it is late by at least `percent`. */
struct straggler stragglers_find(const struct straggler_note *notes, uint32_t num, double percent);
/* Updates the state with a result. True: log it. */
bool stragglers_update(struct stragglers *stragglers, const struct straggler *found);

void stragglers_add(struct stragglers *stragglers, double seconds, double called);
/* Call on all ranks after a step. On rank 0 out->num_late > 0: log it. ERR_MEMORY; errors of
 * comm.h. */
int stragglers_compare(struct stragglers *stragglers, const struct mesh *mesh, int64_t step,
                       struct straggler *out);

#endif
