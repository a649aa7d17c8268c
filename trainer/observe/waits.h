/* waits.h - a warning when training waits for samples.
 *
 * A step whose share of waits (the step line's data) is above metrics.data_wait_max_percent loses
 * time that a faster disk, or tokens on a nearer one, can save. The warning is logged when this
 * begins, and again when it begins again. */
#ifndef HOLDFAST_TRAINER_WAITS_H
#define HOLDFAST_TRAINER_WAITS_H

#include "trainer/config/config.h"

struct waits {
    const struct config *config;
    bool is_slow;
};

/* `percent` of the time since the previous line; `seconds` of a step. True: the warning was logged
 * now. */
bool waits_check(struct waits *waits, int64_t step, double percent, double seconds);

#endif
