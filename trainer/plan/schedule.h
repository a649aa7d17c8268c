/* schedule.h - the learning rate as a function of the number of updates made so far. */
#ifndef HOLDFAST_TRAINER_PLAN_SCHEDULE_H
#define HOLDFAST_TRAINER_PLAN_SCHEDULE_H

#include "trainer/config/config.h"

#include <stdint.h>

/* Learning rate of update number `update`, from 0; config.h states the curve. */
double schedule_lr(const struct config *config, int64_t update);

#endif
