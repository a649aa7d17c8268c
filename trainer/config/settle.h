/* settle.h - from what was written to what the trainer works with.
 *
 * trainer_config_load() reads texts and numbers, then calls these in their order. */
#ifndef HOLDFAST_TRAINER_CONFIG_SETTLE_H
#define HOLDFAST_TRAINER_CONFIG_SETTLE_H

#include "trainer/config/config.h"

/* What one value says alone or by another name. */
void settle_choices(struct config *config);
/* What is left open, by what else is given: the sizes of a step, the validation, ckptd's address.
 * ERR_INVALID where settings contradict. Notes go to the log unless `quiet`. */
int settle_sizes(struct config *config, bool quiet);

#endif
