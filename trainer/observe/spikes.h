/* spikes.h - finds loss spikes, and whether they end.
 *
 * A loss is a spike when it is more than metrics.spike_deviations deviations above the median of
 * the last metrics.spike_window steps. A deviation is the median distance from that median, as of a
 * normal distribution, and at least 1/200 of the median. A spike is over at the first loss that
 * exceeds the median by less than half of that. It was fast, or slow if it took more than
 * metrics.spike_fast_steps. A spike of metrics.spike_steps steps lasts: its level becomes the new
 * one, and the operator may go back to a checkpoint before it. A falling loss is no spike, however
 * steep.
 *
 * Losses of a spike are not in the window. It has only losses of this start: after a resume spikes
 * are found again after SPIKES_LEAST steps. */
#ifndef HOLDFAST_TRAINER_SPIKES_H
#define HOLDFAST_TRAINER_SPIKES_H

#include "trainer/config/config.h"

#define SPIKES_LEAST 16u /* least number of steps for a median */
#define SPIKES_WINDOW_MAX 1024u

enum spike_kind { SPIKE_NONE, SPIKE_BEGINS, SPIKE_FAST, SPIKE_SLOW, SPIKE_LASTS };

struct spike {
    enum spike_kind kind;
    int64_t began, steps; /* its first step; number of steps so far */
    double most;          /* its largest loss */
    double median, deviation;
};

struct spikes {
    const struct config *config;
    double window[SPIKES_WINDOW_MAX];
    uint32_t num; /* losses so far; the window has the last ones */
    bool is_in;   /* a spike began and is not over */
    struct spike now;
};

/* Finds the kind of the step's loss. */
struct spike spikes_update(struct spikes *spikes, int64_t step, double loss);
/* Logs a warning when a spike begins and when it lasts, and a line when it is over. */
void spikes_log(const struct spike *spike, int64_t step);
const char *spike_name(enum spike_kind kind); /* "begins", "fast", "slow", "lasts" */

#endif
