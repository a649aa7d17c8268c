/* axes.h - over each axis of the mesh: is a buffer whole, cut, a partial sum or another by rank?
 *
 * check.c goes through the programs; here each operation's calls change what its buffer is, and a
 * buffer that is not as its use wants it is refused. Ranks that differ in other axes than the
 * pipeline have the same program, so one of each stage stands for all. Parameters, gradients and
 * sums are those of the block's matrices: what tensor parallel leaves whole is the model's. */
#ifndef HOLDFAST_TRAINER_PLAN_AXES_H
#define HOLDFAST_TRAINER_PLAN_AXES_H

#include "trainer/plan/program.h"

struct axes;

/* Where no memory is, NULL. `options` outlives it. */
struct axes *axes_new(const struct program_options *options);
void axes_free(struct axes *axes);
/* An operation of a rank of the pipeline: NULL, or the reason why it is wrong, which lives until
 * the next call. */
const char *axes_run(struct axes *axes, uint32_t rank, const struct op *op);
/* Behind all: the parameters of a block are as the step has found them. Likewise. */
const char *axes_end(struct axes *axes, uint32_t block);

#endif
