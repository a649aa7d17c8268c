/* ranks.h - starts the ranks that a process has. */
#ifndef HOLDFAST_TRAINER_RUN_RANKS_H
#define HOLDFAST_TRAINER_RUN_RANKS_H

#include "trainer/run/rank.h"

/* Starts the ranks that this process has (all of a world of threads, one of processes), has each do
 * `work` and closes what that has opened. *want_stop: somebody asks for an end (signals.h). Errors
 * are logged here, once. Returns the process's exit code: what `work` put in *out_exit (the same on
 * all ranks), or that of the error. */
int ranks_run(const struct config *config, const volatile sig_atomic_t *want_stop,
              int (*work)(struct rank *rank, int *out_exit));

#endif
