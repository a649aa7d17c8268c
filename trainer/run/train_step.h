/* train_step.h - one training step of a rank: forward, backward and update, beside a save's copies.
 *
 * rank->progress counts a step only when it is made, not when it is dropped because some rank was
 * asked to stop. After a step that is undone (observe/breaks.h) it is the progress of the loaded
 * checkpoint, which has at most as many steps. */
#ifndef HOLDFAST_TRAINER_RUN_TRAIN_STEP_H
#define HOLDFAST_TRAINER_RUN_TRAIN_STEP_H

#include "trainer/run/rank.h"

/* *out_stop: some rank was asked to stop, by a signal or a switch. Collective. */
int train_step(struct rank *rank, struct step_result *out, bool *out_stop);
/* Logs the step, and a rank that delays the others. Collective. */
int train_step_made(struct rank *rank, const struct step_result *result);

#endif
