/* store_key.h - keys of the files in a store that another node may name; see store_key.c. */
#ifndef HOLDFAST_CKPTD_CORE_STORE_KEY_H
#define HOLDFAST_CKPTD_CORE_STORE_KEY_H

#include "ckptd/core/checkpoint.h"
#include "proto/format/manifest.h"

#include <stdbool.h>
#include <stdint.h>

/* The allowed kinds of keys, by operation. */
enum store_key_kind {
    STORE_KEY_NONE,
    STORE_KEY_ANY,   /* in a run, or the root: for reading and listing */
    STORE_KEY_SHARD, /* of a checkpoint */
    STORE_KEY_SMALL, /* a manifest, a mark, an origin, an attempt */
    STORE_KEY_LEASE
};

/* ERR_DENIED: operations of that kind do not allow this key. */
int store_key_check(enum store_key_kind kind, const char *key);
/* Run, step and attempt of the key "<run>/step-.../NAME". False: it is no such key. */
bool store_key_parse(struct manifest_summary *out, const char **out_name, const char *key);
/* The same of the directory itself, of a file in it, and of a lease on it. */
bool store_key_parse_checkpoint(struct manifest_summary *out, const char *key);
/* "<run>/attempts/NUMBER"; */
void store_key_of_attempt(char out[STORAGE_KEY_MAX], const char *run, uint64_t attempt);
/* parses that number. */
bool store_key_parse_attempt(char run[RUN_NAME_MAX + 1], uint64_t *out, const char *key);
/* "<run>/attempts/NUMBER.held" (sets.h)? */
bool store_key_is_held(const char *key);

#endif
