/* waits.h - a warning when training waits for samples.
 *
 * The warning is about steps whose share of waits (the step line's data) is above
 * metrics.data_wait_max_percent. A faster or nearer disk can save this time. It is logged when such
 * steps begin, and again when they begin again. */
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
