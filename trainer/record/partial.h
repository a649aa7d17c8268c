/* partial.h - initial weights of a model that fits only in part: checkpoint.partial.
 *
 * The model may have another vocabulary, more or fewer layers, and be tied or not. It takes the
 * source's tensors with the same name and shape, and the common rows of embedding and output.
 * Tensors that the source lacks, and those that checkpoint.partial_fresh names, start as in a new
 * model. Rows above the source's vocabulary do so, too, or start as the mean of the source's rows
 * (checkpoint.partial_rows).
 *
 * Rank 0 chooses the tensors and adds up the rows, one after the other in double; all ranks get its
 * numbers. So the initial weights have the same bits on every mesh. A run's own checkpoint is never
 * taken in part. */
#ifndef HOLDFAST_TRAINER_RECORD_PARTIAL_H
#define HOLDFAST_TRAINER_RECORD_PARTIAL_H

#include "clients/ckpt.h"
#include "trainer/comm/comm.h"
#include "trainer/config/config.h"
#include "trainer/model/model.h"

#include <stdio.h>

struct state;

struct partial {
    const struct model_table *model; /* borrowed */
    bool has_means;
    struct partial_rows {
        uint64_t taken; /* rows of each tensor, from the first on; 0: a fresh tensor */
        uint64_t theirs;
    } * rows;     /* [num_tensors] */
    float *means; /* [2, dim]: of the first and the last tensor */
};

/* ERR_MISMATCH: the shape of the model of `source` is not that of `ours`, and does not fit in part
 * where that is allowed. The error has the hint `hint`, and the key that may help. */
int partial_check_shape(const struct config *config, const struct model_shape *ours,
                        const struct model_shape *theirs, const char *source, const char *hint);
/* NULL: there is none with that name. */
const struct ckpt_tensor_info *partial_find(const struct ckpt_metadata *metadata, const char *name);
/* Chooses the tensors to take from a checkpoint. ERR_MISMATCH: a tensor has another width or type,
 * or none fits; ERR_INVALID: checkpoint.partial_fresh names no tensor. To be closed, also after an
 * error. */
int partial_choose(struct partial *out, const struct config *config,
                   const struct model_table *model, const struct ckpt_metadata *metadata);
/* Prints a line for each tensor, with those of equal layers in one: taken, fresh and ignored. */
void partial_print(FILE *out, const struct partial *partial, const struct ckpt_metadata *metadata);
/* Calls partial_choose for that checkpoint on rank 0, which logs the result, and sends it and the
 * means to all ranks. Collective. To be closed likewise. */
int partial_open(struct partial *out, const struct config *config, const struct model_table *model,
                 struct comm *world, struct ckpt *ckpt, int64_t step, int64_t attempt);
void partial_close(struct partial *partial);
bool partial_is_whole(const struct partial *partial, uint32_t tensor);
/* Limits a tensor of a load to the part that is taken: `of` is the model's tensor. Returns false if
 * nothing is taken. */
bool partial_clip(const struct partial *partial, struct ckpt_tensor *tensor, uint32_t of);
/* Writes the means into the rows after the loaded ones. */
int partial_fill(const struct partial *partial, const struct state *state);

#endif
