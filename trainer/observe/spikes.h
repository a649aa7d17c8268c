/* spikes.h - losses that leap, and whether they come back.
 *
 * A loss is a spike when it is more than metrics.spike_deviations deviations above the median of
 * the last metrics.spike_window steps. A deviation is the median distance from that median, as of a
 * normal distribution, and at least 1/200 of the median. It is over with the first loss that is
 * less than half of that above. Then it was fast, or, after more than metrics.spike_fast_steps,
 * slow. One that goes on for metrics.spike_steps lasts: the level is taken for the new one, and a
 * checkpoint of a step before it is the place to go back to. A loss that falls is no spike, however
 * steep.
 *
 * Losses of a spike are not in the window. It holds those of this start alone: after a resume
 * spikes are found again when SPIKES_LEAST steps are made. */
#ifndef HOLDFAST_TRAINER_SPIKES_H
#define HOLDFAST_TRAINER_SPIKES_H

#include "trainer/config/config.h"

#define SPIKES_LEAST 16u /* steps without which there is no median */
#define SPIKES_WINDOW_MAX 1024u

enum spike_kind { SPIKE_NONE, SPIKE_BEGINS, SPIKE_FAST, SPIKE_SLOW, SPIKE_LASTS };

struct spike {
    enum spike_kind kind;
    int64_t began, steps; /* its first step; how many it had so far */
    double most;          /* its largest loss */
    double median, deviation;
};

struct spikes {
    const struct config *config;
    double window[SPIKES_WINDOW_MAX];
    uint32_t num; /* losses so far, of which the window has the last */
    bool is_in;   /* one that began and is not over */
    struct spike now;
};

/* What the loss of the step means. */
struct spike spikes_look(struct spikes *spikes, int64_t step, double loss);
/* A warning when it begins and when it lasts, a line when it is over. */
void spikes_say(const struct spike *spike, int64_t step);
const char *spike_name(enum spike_kind kind); /* "begins", "fast", "slow", "lasts" */

#endif
