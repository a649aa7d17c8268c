/* introduce.h - what rank 0 says and writes of a run before it trains. */
#ifndef HOLDFAST_TRAINER_RUN_INTRODUCE_H
#define HOLDFAST_TRAINER_RUN_INTRODUCE_H

#include "trainer/run/rank.h"

/* In the log: model, mesh, memory plan, hints on slow settings. */
void introduce_run(const struct rank *rank);
/* job.print_config, job.save_config_file, when all is settled. Collective. */
int introduce_config(const struct rank *rank);

#endif
