/* partial.h - initial weights of a model that fits only in part: checkpoint.partial.
 *
 * A model of another vocabulary, of more or fewer layers, tied or not, takes the tensors that it
 * shares with the source by name and shape, and of embedding and output the rows that both have.
 * Tensors that the source lacks, and those that checkpoint.partial_fresh names, begin as those of a
 * new model. Rows above the source's vocabulary begin so, too, or as the mean of the source's rows
 * (checkpoint.partial_rows).
 *
 * Rank 0 looks and adds the rows up, one after the other in double; all ranks get its numbers. So
 * what a run begins with has the same bits on every mesh. A run's own checkpoint is never taken in
 * part. */
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
        uint64_t taken; /* of each tensor, from the first on; 0: it is fresh */
        uint64_t theirs;
    } * rows;     /* [num_tensors] */
    float *means; /* [2, dim]: of the first tensor and of the last */
};

/* ERR_MISMATCH: the shape of the model of `source` is not ours, nor in part where that is asked
 * for. The hint is `hint`, and the key where that helps. */
int partial_check_shape(const struct config *config, const struct model_shape *ours,
                        const struct model_shape *theirs, const char *source, const char *hint);
/* NULL: it has none of that name. */
const struct ckpt_tensor_info *partial_find(const struct ckpt_metadata *metadata, const char *name);
/* What is taken of a checkpoint. ERR_MISMATCH: a tensor has another width or type, or none fits;
 * ERR_INVALID: checkpoint.partial_fresh names no tensor. To be closed, also after an error. */
int partial_choose(struct partial *out, const struct config *config,
                   const struct model_table *model, const struct ckpt_metadata *metadata);
/* A line for each tensor, those of alike layers in one: what is taken, fresh and left. */
void partial_print(FILE *out, const struct partial *partial, const struct ckpt_metadata *metadata);
/* partial_choose of that checkpoint on rank 0, which logs it, with the means, for all. Collective.
 * To be closed likewise. */
int partial_open(struct partial *out, const struct config *config, const struct model_table *model,
                 struct comm *world, struct ckpt *ckpt, int64_t step, int64_t attempt);
void partial_close(struct partial *partial);
bool partial_is_whole(const struct partial *partial, uint32_t tensor);
/* Of what a load is to fill, the part that is taken: `of` is the model's tensor. False: nothing. */
bool partial_clip(const struct partial *partial, struct ckpt_tensor *tensor, uint32_t of);
/* Puts the means into the rows behind those that were loaded. */
int partial_fill(const struct partial *partial, const struct state *state);

#endif
