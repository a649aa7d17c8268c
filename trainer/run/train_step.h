/* train_step.h - one training step of a rank: forward, backward and update, beside a save's copies.
 *
 * The step counts in rank->progress only when it is made, not when it is dropped because some rank
 * was asked to stop. One that is taken back (observe/breaks.h) leaves the progress of the
 * checkpoint that was loaded, which is behind fewer steps or as many. */
#ifndef HOLDFAST_TRAINER_RUN_TRAIN_STEP_H
#define HOLDFAST_TRAINER_RUN_TRAIN_STEP_H

#include "trainer/run/rank.h"

/* *out_stop: some rank was asked to stop, by a signal or a switch. Collective. */
int train_step(struct rank *rank, struct step_result *out, bool *out_stop);
/* Says what the step was like, and who held the others up. Collective. */
int train_step_made(struct rank *rank, const struct step_result *result);

#endif
