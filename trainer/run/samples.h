/* samples.h - the tokens that a rank reads, for training and for validation.
 *
 * A folder of text, or one that a bucket has, becomes a tokens file first (corpus/), once per node.
 * The first rank of each node has the files hashed in the background (data/proof.h). */
#ifndef HOLDFAST_TRAINER_RUN_SAMPLES_H
#define HOLDFAST_TRAINER_RUN_SAMPLES_H

#include "trainer/run/rank.h"

/* rank->data. ERR_MISMATCH: another tokenizer than model.hf_assets_path made the tokens. */
int samples_open(struct rank *rank);
/* rank->validation, where it is enabled. ERR_MISMATCH: another tokenizer than that of training. */
int samples_open_validation(struct rank *rank);
/* ERR_MISMATCH: some rank has other tokens than rank 0. Collective. */
int samples_check_same(const struct rank *rank);
/* Can the tokens be opened without tokenizing text? */
bool samples_are_prepared(const struct config *config);

#endif
