/* store_key.h - the names of the files in a store, as another node may ask for them; see
 * store_key.c. */
#ifndef HOLDFAST_CKPTD_CORE_STORE_KEY_H
#define HOLDFAST_CKPTD_CORE_STORE_KEY_H

#include "ckptd/core/checkpoint.h"
#include "proto/format/manifest.h"

#include <stdbool.h>
#include <stdint.h>

/* What a key may be, by what is done with it. */
enum store_key_kind {
    STORE_KEY_NONE,
    STORE_KEY_ANY,   /* in a run, or the root: to look */
    STORE_KEY_SHARD, /* of a checkpoint */
    STORE_KEY_SMALL, /* a manifest, a mark, an origin, an attempt */
    STORE_KEY_LEASE
};

/* ERR_DENIED: no node does with this key what is done with those of that kind. */
int store_key_check(enum store_key_kind kind, const char *key);
/* The summary's place, by the key "<run>/step-.../NAME". False: it is no such key. */
bool store_key_parse(struct manifest_summary *out, const char **out_name, const char *key);
/* Likewise of the directory itself, of what is in it, and of a lease on it. */
bool store_key_parse_checkpoint(struct manifest_summary *out, const char *key);
/* "<run>/attempts/NUMBER", */
void store_key_of_attempt(char out[STORAGE_KEY_MAX], const char *run, uint64_t attempt);
/* and the number of one. */
bool store_key_parse_attempt(char run[RUN_NAME_MAX + 1], uint64_t *out, const char *key);
/* "<run>/attempts/NUMBER.held" (sets.h)? */
bool store_key_is_held(const char *key);

#endif
