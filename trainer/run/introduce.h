/* introduce.h - logs and writes rank 0's description of a run before training. */
#ifndef HOLDFAST_TRAINER_RUN_INTRODUCE_H
#define HOLDFAST_TRAINER_RUN_INTRODUCE_H

#include "trainer/run/rank.h"

/* In the log: model, mesh, memory plan, hints on slow settings. */
void introduce_run(const struct rank *rank);
/* Handles job.print_config and job.save_config_file. Call when all settings are settled.
 * Collective. */
int introduce_config(const struct rank *rank);

#endif
