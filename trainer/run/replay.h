/* replay.h - a step that is made again, and what it says (debug.replay_step, --replay).
 *
 * The order of samples and of sums is exact, so a step has the same bits whenever and on whatever
 * mesh it is made. A replay loads the newest whole checkpoint before the step, takes no attempt,
 * saves and writes nothing, trains up to the step and ends. The loss of each step on the way is
 * compared with the run's own, and the gradient norm of the step where a checkpoint has it. */
#ifndef HOLDFAST_TRAINER_RUN_REPLAY_H
#define HOLDFAST_TRAINER_RUN_REPLAY_H

#include "trainer/run/rank.h"

/* Exit codes: as ckpt-cli's of a difference; nothing was compared, which proves nothing. */
#define REPLAY_DIFFERS 1
#define REPLAY_NOTHING 3

/* Behind the load: what the run left out, the replay leaves out. Collective. */
int replay_begin(struct rank *rank);
/* With debug.replay_blame, of the step whose loss and norm are known: says where to look. `next`:
 * the progress when it is made. Collective. */
int replay_blame(struct rank *rank, const struct progress *next);
/* Behind the step. *out_exit: EXIT_DONE where bits are the same, or one of those. Collective. */
int replay_compare(struct rank *rank, int *out_exit);

#endif
