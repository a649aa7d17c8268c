/* stragglers.h - a rank that holds the others up.
 *
 * The ranks of a pipeline stage compute as much as each other, and meet in calls: who comes last
 * waits least there. Ranks compare for how much of the last steps' time a call of other ranks was
 * under way (flight_called_seconds), with a step line, but not more often than each
 * STRAGGLER_STEPS_MIN steps. One that waited for metrics.straggler_percent of that time less than
 * the median of the others of its stage is late. It is said when the same host is late twice in a
 * row, and again when that begins anew.
 *
 * A call that is queued on the stream on which a GPU computes counts as long as both take. So where
 * tp is on GPUs a rank that is late may not be seen. */
#ifndef HOLDFAST_TRAINER_OBSERVE_STRAGGLERS_H
#define HOLDFAST_TRAINER_OBSERVE_STRAGGLERS_H

#include "trainer/config/config.h"
#include "trainer/plan/mesh.h"

#define STRAGGLER_STEPS_MIN 10
#define STRAGGLER_SECONDS_MIN 1.0 /* of what is compared: less is noise */
#define STRAGGLER_HOST_MAX 64u

/* Of a rank, since the last comparison. */
struct straggler_note {
    double seconds, called; /* of its steps; of those a call was under way */
    uint32_t stage;
    char host[STRAGGLER_HOST_MAX];
};

struct straggler {
    uint32_t rank;
    uint32_t num_late; /* ranks of its host, itself among them; 0: none is late */
    char host[STRAGGLER_HOST_MAX];
    double percent, others; /* of its time a call was under way; the median of the others' */
};

struct stragglers {
    const struct config *config;
    int64_t steps; /* since the last comparison */
    struct straggler_note own;
    char late_host[STRAGGLER_HOST_MAX]; /* "": nobody was late then */
    bool is_said;
};

/* Which rank is the latest, by `percent` at least. */
struct straggler stragglers_find(const struct straggler_note *notes, uint32_t num, double percent);
/* Of what was found. True: it is to be said. */
bool stragglers_judge(struct stragglers *stragglers, const struct straggler *found);

void stragglers_add(struct stragglers *stragglers, double seconds, double called);
/* All ranks, after a step. On rank 0 out->num_late > 0: report it. ERR_MEMORY; those of comm.h. */
int stragglers_compare(struct stragglers *stragglers, const struct mesh *mesh, int64_t step,
                       struct straggler *out);

#endif
