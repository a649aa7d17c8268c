/* axes.h - over each axis of the mesh: is a buffer whole, cut, a partial sum or another by rank?
 *
 * check.c walks the programs. Here each operation's calls change the state of its buffer; a buffer
 * in another state than its use wants is refused. Ranks that differ in other axes than the pipeline
 * have the same program, so one of each stage stands for all. Parameters, gradients and sums are
 * those of the block's matrices: matrices that tensor parallel leaves whole are checked by the
 * model. */
#ifndef HOLDFAST_TRAINER_PLAN_AXES_H
#define HOLDFAST_TRAINER_PLAN_AXES_H

#include "trainer/plan/program.h"

struct axes;

/* NULL: no memory. `options` must outlive it. */
struct axes *axes_new(const struct program_options *options);
void axes_free(struct axes *axes);
/* Runs one operation of a rank of the pipeline. Returns NULL, or the reason why it is wrong; the
 * text is valid until the next call. */
const char *axes_run(struct axes *axes, uint32_t rank, const struct op *op);
/* Call after the last operation: checks that a block's parameters are in the state in which the
 * step found them. Returns as axes_run(). */
const char *axes_end(struct axes *axes, uint32_t block);

#endif
