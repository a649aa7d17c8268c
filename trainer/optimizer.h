/* optimizer.h - the AdamW update of this rank's shards, with clipping. */
#ifndef HOLDFAST_TRAINER_OPTIMIZER_H
#define HOLDFAST_TRAINER_OPTIMIZER_H

#include "trainer/parallel/parallel.h"

struct copier;

struct optimizer_step {
    int64_t update;        /* number of this update, from 1: Adam's bias correction */
    double lr;             /* from schedule_lr */
    double grad_norm;      /* of the whole gradient; clipped to config->max_norm */
    struct copier *copier; /* a save's: lets each slice go when it is copied; NULL: there is none */
};

/* Updates parameters and moments from state->grad. Elementwise: needs no communication.
 * A slice is changed only when step->copier has let it go. */
void optimizer_update(struct state *state, struct kernels *kernels, struct lane *lane,
                      const struct config *config, const struct optimizer_step *step);

#endif
