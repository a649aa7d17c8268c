/* replay.h - repeats a step and compares its results (debug.replay_step, --replay).
 *
 * The order of samples and of sums is exact, so a step always has the same bits, on any mesh. A
 * replay loads the newest complete checkpoint before the step, takes no attempt, saves and writes
 * nothing, trains up to the step and ends. It compares the loss of each step with the recorded
 * loss. If the step has a checkpoint it compares its gradient norm, and by digests the state after
 * its update. The checkpoint that it began with is taken as right.
 *
 * Without a checkpoint before the step it begins as the run began: from the seed, or from
 * checkpoint.initial_load_path. The run's oldest checkpoint describes that. ERR_NOT_FOUND and
 * ERR_MISMATCH: the weights or the sizes of the first steps are no longer there, or others. Of a
 * run without checkpoints it takes the configuration's word, and compares nothing.
 *
 * A step that was rolled back is replayed as it was first made, with the samples that the run left
 * out later: these are the ones to examine. Its numbers are compared with the recorded ones of the
 * undone step (record/broken.h). */
#ifndef HOLDFAST_TRAINER_RUN_REPLAY_H
#define HOLDFAST_TRAINER_RUN_REPLAY_H

#include "trainer/run/rank.h"

/* Exit codes: a difference (as ckpt-cli's), and no comparison, which proves nothing. */
#define REPLAY_DIFFERS 1
#define REPLAY_NOTHING 3

/* Call after the load: the replay leaves out the samples that the run left out. Collective. */
int replay_begin(struct rank *rank);
/* Call before the replayed step. Logs and sets rank->undone if the step was rolled back. */
void replay_as_first_made(struct rank *rank);
/* With debug.replay_blame: call when the step's loss and norm are known. Logs the module and
 * the sample to examine. `next`: the progress after the step. Collective. */
int replay_blame(struct rank *rank, const struct progress *next);
/* Call after the step. *out_exit: EXIT_DONE if the bits are the same, or one of the codes above.
 * Collective. */
int replay_compare(struct rank *rank, int *out_exit);

#endif
