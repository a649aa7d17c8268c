/* settle.h - turns written settings into the trainer's values.
 *
 * trainer_config_load() reads texts and numbers, then calls these in their order. */
#ifndef HOLDFAST_TRAINER_CONFIG_SETTLE_H
#define HOLDFAST_TRAINER_CONFIG_SETTLE_H

#include "trainer/config/config.h"

/* Settles values that depend on one key, and older names of keys. */
void settle_choices(struct config *config);
/* Settles missing values from others: the sizes of a step, the validation, ckptd's address.
 * ERR_INVALID if settings contradict. Notes are logged unless `quiet`. */
int settle_sizes(struct config *config, bool quiet);

#endif
