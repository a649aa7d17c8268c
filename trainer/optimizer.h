/* optimizer.h - the AdamW update of this rank's shards, with clipping. */
#ifndef HOLDFAST_TRAINER_OPTIMIZER_H
#define HOLDFAST_TRAINER_OPTIMIZER_H

#include "trainer/parallel.h"

struct optimizer_step {
    int64_t update;   /* number of this update, from 1: Adam's bias correction */
    double lr;        /* from schedule_lr */
    double grad_norm; /* of the whole gradient; clipped to config->max_norm */
};

/* Updates parameters and moments from state->grad. Elementwise: needs no communication. */
void optimizer_update(struct state *state, struct kernels *kernels, const struct config *config,
                      const struct optimizer_step *step);

#endif
