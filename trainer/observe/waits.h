/* waits.h - a warning when training waits for samples.
 *
 * A step whose share of waits (the step line's data) is above metrics.data_wait_max_percent costs
 * time that a faster disk, or tokens that are nearer, would not. It is said when that begins, and
 * again when it begins anew. */
#ifndef HOLDFAST_TRAINER_WAITS_H
#define HOLDFAST_TRAINER_WAITS_H

#include "trainer/config/config.h"

struct waits {
    const struct config *config;
    bool is_slow;
};

/* `percent` of the time since the line before; `seconds` of a step. True: it was said now. */
bool waits_look(struct waits *waits, int64_t step, double percent, double seconds);

#endif
