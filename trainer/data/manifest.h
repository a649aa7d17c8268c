/* manifest.h - the position in the data in a manifest: the object "data" of its "state".
 *
 *     next_sample  global samples so far, of all sources
 *     tokens       tokens so far
 *     seed         of the order
 *     seq_len, start, sources: struct data_place; of each source its hash, name, weight, base, and
 *     for readers draws and epochs
 *
 * Checkpoints of older programs have only next_sample and seed: one source, from its beginning. */
#ifndef HOLDFAST_TRAINER_DATA_MANIFEST_H
#define HOLDFAST_TRAINER_DATA_MANIFEST_H

#include "proto/base/json.h"
#include "trainer/data/data.h"

/* NULL: no memory. */
json_t *data_state_json(const struct data *data, uint64_t next_sample, uint64_t tokens,
                        int64_t seed);
/* `state`: the manifest's "state"; `run_data`: the manifest's description of the data, or NULL.
 * ERR_CORRUPT: the place is inconsistent. */
int data_state_read(struct data_place *out, uint64_t *out_tokens, const json_t *state,
                    const json_t *run_data, uint64_t next_sample);
/* The description of the run's data, for the manifest. NULL: no memory. */
json_t *data_run_json(const struct data *data, const char *path);

#endif
