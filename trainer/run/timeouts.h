/* timeouts.h - how long a rank waits for the others, by what goes on.
 *
 *   PATIENCE_DATA    a corpus is tokenized or proved, which may take hours: no limit
 *   PATIENCE_INIT    set-up and the first step of a start, in which a GPU's libraries plan:
 *                    comm.init_timeout_seconds
 *   PATIENCE_TRAIN   further steps: comm.train_timeout_seconds
 *   PATIENCE_SERVER  loads and saves: the same and what one rank may wait for ckptd
 *
 * A setting of 0 gives no limit, and so does debug.pause_at_step, which makes ranks wait. */
#ifndef HOLDFAST_TRAINER_RUN_TIMEOUTS_H
#define HOLDFAST_TRAINER_RUN_TIMEOUTS_H

#include "trainer/comm/flight.h"
#include "trainer/config/config.h"

enum timeouts { PATIENCE_DATA, PATIENCE_INIT, PATIENCE_TRAIN, PATIENCE_SERVER };

/* For waits that begin from here on. `flight` may be NULL. */
void timeouts_set(struct flight *flight, const struct config *config, enum timeouts patience);

#endif
