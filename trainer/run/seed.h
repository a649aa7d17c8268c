/* seed.h - debug.seed = -1: rank 0 draws a seed for a run that begins; later starts keep it.
 *
 * The seed is stored with the configuration in each checkpoint. So a resumed run has the samples
 * and the noise of its first start, and a run of the same seed, given by its number, the same bits.
 */
#ifndef HOLDFAST_TRAINER_SEED_H
#define HOLDFAST_TRAINER_SEED_H

#include "trainer/comm/comm.h"
#include "trainer/config/config.h"

/* Puts the seed into this rank's configuration; leaves one that is given. Before anything is opened
 * that depends on it. Collective. ERR_UNAVAILABLE: no ckptd to ask for the run's seed. */
int seed_settle(struct config *config, struct comm *world);

#endif
