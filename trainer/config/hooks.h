/* hooks.h - instruments by which tests change a run. All are off unless one of these keys is set.
 *
 *   debug.pause_at_step        a step that waits in the middle, so that a test can kill it there
 *   debug.nonfinite_at_step    makes all gradients of a step NaN
 *   debug.nonfinite_at_sample  makes the gradient of one sample NaN
 *   debug.slow_copy_us         slows the copy of a save
 *
 * No other file reads these keys. */
#ifndef HOLDFAST_TRAINER_CONFIG_HOOKS_H
#define HOLDFAST_TRAINER_CONFIG_HOOKS_H

#include "trainer/config/config.h"

#include <signal.h>

/* Called on rank 0 in the middle of the step. It may wait until *want_stop is not 0 (NULL: for
 * ever), while other ranks wait in their next collective. */
void hooks_in_step(const struct config *config, int64_t step,
                   const volatile sig_atomic_t *want_stop);
/* True if ranks may wait for a test: then no wait is limited. */
bool hooks_wait(const struct config *config);
/* The factor of the losses of a step, multiplied with `scale`. */
float hooks_loss_scale(const struct config *config, int64_t step, float scale);
/* True if the gradient of one of the samples [first, first + num) shall be NaN, and which one. */
bool hooks_break_sample(const struct config *config, uint64_t first, uint32_t num,
                        uint32_t *out_index);
/* Call before a save copies a tensor. Any thread. */
void hooks_before_copy(const struct config *config);

#endif
