/* timeouts.h - the limits of a rank's waits for other ranks, by phase.
 *
 *   TIMEOUT_DATA     a corpus is tokenized or hashed, which may take hours: no limit
 *   TIMEOUT_INIT     set-up and the first step of a start, in which a GPU's libraries plan:
 *                    comm.init_timeout_seconds
 *   TIMEOUT_TRAIN    further steps: comm.train_timeout_seconds
 *   TIMEOUT_SERVER   loads and saves: the same, plus the longest wait of a rank for ckptd
 *
 * A setting of 0 means no limit, and so does debug.pause_at_step (config/hooks.h). */
#ifndef HOLDFAST_TRAINER_RUN_TIMEOUTS_H
#define HOLDFAST_TRAINER_RUN_TIMEOUTS_H

#include "trainer/comm/flight.h"
#include "trainer/config/config.h"

enum timeouts { TIMEOUT_DATA, TIMEOUT_INIT, TIMEOUT_TRAIN, TIMEOUT_SERVER };

/* Sets the limit of waits that begin from here on. `flight` may be NULL. */
void timeouts_set(struct flight *flight, const struct config *config, enum timeouts phase);

#endif
