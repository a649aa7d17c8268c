/* manifest.h - the place in the data as a manifest keeps it: the object "data" of its "state".
 *
 *     next_sample  global samples so far, of all sources
 *     tokens       tokens so far
 *     seed         of the order
 *     seq_len, start, sources: struct data_place; of each source its hash, name, weight, base, and
 *                  for who reads it draws and epochs
 *
 * Checkpoints of older programs have next_sample and seed alone: one source, from its beginning. */
#ifndef HOLDFAST_TRAINER_DATA_MANIFEST_H
#define HOLDFAST_TRAINER_DATA_MANIFEST_H

#include "proto/base/json.h"
#include "trainer/data/data.h"

/* NULL: no memory. */
json_t *data_state_json(const struct data *data, uint64_t next_sample, uint64_t tokens,
                        int64_t seed);
/* `state`: the manifest's "state"; `run_data`: the description of the data beside it, or NULL.
 * ERR_CORRUPT when the place does not fit together. */
int data_state_read(struct data_place *out, uint64_t *out_tokens, const json_t *state,
                    const json_t *run_data, uint64_t next_sample);
/* What the run is trained on, for the manifest. NULL: no memory. */
json_t *data_run_json(const struct data *data, const char *path);

#endif
