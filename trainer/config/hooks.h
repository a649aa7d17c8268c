/* hooks.h - where tests reach into a run. Off in every run that sets no key of them.
 *
 *   debug.pause_at_step      a step that waits in its middle, to be killed there
 *   debug.nonfinite_at_step  a gradient that is not a number
 *   debug.slow_copy_us       a save that takes long to copy
 *
 * No other file looks at these keys. */
#ifndef HOLDFAST_TRAINER_CONFIG_HOOKS_H
#define HOLDFAST_TRAINER_CONFIG_HOOKS_H

#include "trainer/config/config.h"

#include <signal.h>

/* On rank 0, in the middle of the step: may wait until *want_stop (or NULL) is not 0, while the
 * other ranks wait in their next collective. */
void hooks_in_step(const struct config *config, int64_t step,
                   const volatile sig_atomic_t *want_stop);
/* Do ranks wait for a test, so that no limit of waiting may end the run? */
bool hooks_wait(const struct config *config);
/* The factor of the losses of a step with samples [first, end), `scale` in the product. */
float hooks_loss_scale(const struct config *config, int64_t step, uint64_t first, uint64_t end,
                       float scale);
/* Before a save copies a tensor. Any thread. */
void hooks_before_copy(const struct config *config);

#endif
