/* seed.h - debug.seed = -1: rank 0 draws a seed for a new run; later starts keep it.
 *
 * The seed is stored with the configuration in each checkpoint. So a resumed run has the samples
 * and the noise of its first start. A run with the same seed, given as a number, has the same
 * bits. */
#ifndef HOLDFAST_TRAINER_SEED_H
#define HOLDFAST_TRAINER_SEED_H

#include "trainer/comm/comm.h"
#include "trainer/config/config.h"

/* Sets the seed in this rank's configuration, unless one is given. Call before parts that depend on
 * it are opened. Collective. ERR_UNAVAILABLE: no ckptd to ask for the run's seed. */
int seed_settle(struct config *config, struct comm *world);

#endif
