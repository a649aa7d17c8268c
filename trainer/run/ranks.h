/* ranks.h - starts the ranks of a process. */
#ifndef HOLDFAST_TRAINER_RUN_RANKS_H
#define HOLDFAST_TRAINER_RUN_RANKS_H

#include "trainer/run/rank.h"

/* Starts the ranks of this process (all of a world of threads, one of processes), calls `work` on
 * each, and closes what it has opened. *want_stop: a request to stop (signals.h). Errors are logged
 * here, once. Returns the process's exit code: *out_exit of `work` (the same on all ranks), or that
 * of the error. */
int ranks_run(const struct config *config, const volatile sig_atomic_t *want_stop,
              int (*work)(struct rank *rank, int *out_exit));

#endif
