/* optimizer.h - the AdamW update of this rank's shards, with clipping. */
#ifndef HOLDFAST_TRAINER_OPTIMIZER_H
#define HOLDFAST_TRAINER_OPTIMIZER_H

#include "trainer/parallel/parallel.h"

struct optimizer_step {
    int64_t update;   /* number of this update, from 1: Adam's bias correction */
    double lr;        /* from schedule_lr */
    double grad_norm; /* of the whole gradient; clipped to config->max_norm */
};

/* First the arguments of an update, then the update of a block's parameters and moments from
 * state->grad. Elementwise, without communication. A block may be updated when a save has copied
 * it. */
void optimizer_begin(struct state *state, struct lane *lane, const struct config *config,
                     const struct optimizer_step *step);
void optimizer_update(struct state *state, struct kernels *kernels, struct lane *lane,
                      uint32_t block);

#endif
