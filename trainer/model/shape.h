/* shape.h - the shape of the model that a configuration asks for. */
#ifndef HOLDFAST_TRAINER_MODEL_SHAPE_H
#define HOLDFAST_TRAINER_MODEL_SHAPE_H

#include "proto/model/model_shape.h"
#include "trainer/config/config.h"

/* From model.flavor, or model.config in its place; then single keys of the section. `tokens_vocab`:
 * the vocabulary of the tokens file, at most the model's; 0: not known. ERR_INVALID. */
int shape_of_settings(struct model_shape *out, const struct config *config, uint32_t tokens_vocab);
/* True if only the tokens file gives the size of the vocabulary. */
bool shape_has_vocab_of_tokens(const struct config *config);
/* The model's name in the log: its flavor or its file. */
const char *shape_name(const struct config *config);

#endif
