/* timeouts.h - the limits of a rank's waits for other ranks, by phase.
 *
 *   TIMEOUT_DATA     a corpus is tokenized or hashed, which may take hours: no limit
 *   TIMEOUT_INIT     set-up and the first step of a start, in which a GPU's libraries plan:
 *                    comm.init_timeout_seconds
 *   TIMEOUT_TRAIN    further steps: comm.train_timeout_seconds
 *   TIMEOUT_SERVER   loads and saves: the same, plus the longest wait of a rank for ckptd
 *
 * A preflight has at most PREFLIGHT_SECONDS for its set-up. MPI's own set-up waits for all ranks
 * without a limit; so a process that is not through it within the limit of TIMEOUT_INIT ends.
 *
 * A setting of 0 means no limit, and so does debug.pause_at_step (config/hooks.h). */
#ifndef HOLDFAST_TRAINER_RUN_TIMEOUTS_H
#define HOLDFAST_TRAINER_RUN_TIMEOUTS_H

#include "trainer/comm/flight.h"
#include "trainer/config/config.h"

enum timeouts { TIMEOUT_DATA, TIMEOUT_INIT, TIMEOUT_TRAIN, TIMEOUT_SERVER };

#define PREFLIGHT_SECONDS 100

/* The limit of TIMEOUT_INIT; 0: none. */
int64_t timeouts_init_seconds(const struct config *config);
/* Sets the limit of waits that begin from here on. `flight` may be NULL. */
void timeouts_set(struct flight *flight, const struct config *config, enum timeouts phase);

/* The process ends with EXIT_RUN_AGAIN if timeouts_met() is not called within that limit. Once.
 * ERR_BUSY: no thread could be started. */
int timeouts_meet(const struct config *config);
void timeouts_met(void);

#endif
