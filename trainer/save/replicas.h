/* replicas.h - do all copies of a tensor hold the same bits, along dp_replicate, cp and tp, and
 * of a tied matrix on both ends of a pipeline?
 *
 * Each replica writes a part of a checkpoint, so one that has come apart from the others (a bit of
 * memory that flipped, a defect of a host) would make a checkpoint that no rank ever held. Training
 * cannot see it: every replica goes on from its own bits. */
#ifndef HOLDFAST_TRAINER_REPLICAS_H
#define HOLDFAST_TRAINER_REPLICAS_H

#include "trainer/parallel/parallel.h"

struct replicas;

/* Room for the digests of all, so that no comparison lacks it. Without any copy *out is NULL, which
 * the others take. The arguments are borrowed. ERR_MEMORY. */
int replicas_open(struct replicas **out, const struct mesh *mesh, const struct state *state,
                  struct kernels *kernels);
void replicas_close(struct replicas *replicas);
/* Compares digests of parameters and moments, tensor by tensor. ERR_ABORTED names the first tensor
 * that differs, two ranks that hold different copies of it, and the first element where these
 * differ: on all ranks the same code, the text on one. The device reads what has a copy once; two
 * numbers of each tensor leave it.
 * A state that no rank holds must not be saved, and nobody should train on from it: unlike a save
 * that fails this ends training. Collective. */
int replicas_compare(struct replicas *replicas);

#endif
