/* shape.h - the shape of the model that a configuration asks for. */
#ifndef HOLDFAST_TRAINER_MODEL_SHAPE_H
#define HOLDFAST_TRAINER_MODEL_SHAPE_H

#include "proto/model/model_shape.h"
#include "trainer/config/config.h"

/* From model.flavor, or model.config in its place; then single keys of the section. `tokens_vocab`:
 * of the tokens file, which the model's vocabulary must not be below; 0: not known. ERR_INVALID. */
int shape_of_settings(struct model_shape *out, const struct config *config, uint32_t tokens_vocab);
/* Whether nothing but the tokens file says how large the vocabulary is. */
bool shape_has_vocab_of_tokens(const struct config *config);
/* What the log calls the model: its flavor or its file. */
const char *shape_name(const struct config *config);

#endif
