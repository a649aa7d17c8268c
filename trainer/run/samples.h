/* samples.h - the tokens that a rank reads, for training and for validation.
 *
 * A folder of text, on disk or in a bucket, is turned into a tokens file first (corpus/), once per
 * node. The first rank of each node hashes the files in the background (data/proof.h). */
#ifndef HOLDFAST_TRAINER_RUN_SAMPLES_H
#define HOLDFAST_TRAINER_RUN_SAMPLES_H

#include "trainer/run/rank.h"

/* Sets rank->data. ERR_MISMATCH: the tokens were made by another tokenizer than
 * model.hf_assets_path. */
int samples_open(struct rank *rank);
/* Sets rank->validation, if it is enabled. ERR_MISMATCH: its tokenizer is not that of training. */
int samples_open_validation(struct rank *rank);
/* ERR_MISMATCH: some rank has other tokens than rank 0. Collective. */
int samples_check_same(const struct rank *rank);
/* True if the tokens can be opened without tokenizing text. */
bool samples_are_prepared(const struct config *config);

#endif
