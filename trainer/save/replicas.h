/* replicas.h - checks that all copies of a tensor have the same bits, along dp_replicate, cp and
 * tp. A tied matrix is checked on both ends of a pipeline.
 *
 * Each replica writes a part of a checkpoint. If one differs (a flipped bit of memory, a defect of
 * a host), the checkpoint is a mix that no rank ever held. Training does not notice: every replica
 * continues from its own bits. */
#ifndef HOLDFAST_TRAINER_REPLICAS_H
#define HOLDFAST_TRAINER_REPLICAS_H

#include "trainer/parallel/parallel.h"

struct replicas;

/* Allocates room for the digests of all, so that no comparison fails for lack of memory. Without
 * copies *out is NULL, which the other functions accept. The arguments are borrowed. ERR_MEMORY. */
int replicas_open(struct replicas **out, const struct mesh *mesh, const struct state *state,
                  struct kernels *kernels);
void replicas_close(struct replicas *replicas);
/* Compares digests of parameters and moments, tensor by tensor. ERR_ABORTED names the first tensor
 * that differs, two ranks that hold different copies of it, and the first element where these
 * differ. All ranks return the same code, one has the text. The device reads parts with copies once
 * and returns two numbers for each tensor. Different copies must not be saved or trained further:
 * unlike a failed save this ends training. Collective. */
int replicas_compare(struct replicas *replicas);

#endif
