/* places.h - the small file beside a manifest that lists the nodes of the shards, when some are not
 * in that directory: ranks of several nodes saved them, each at its own ckptd.
 *
 * Every node that holds a shard has the manifest and this file. "here" names the node of the
 * directory. So every reader of a store, also without a ckptd, knows which shards must be there,
 * and which nodes have the others. A directory without this file holds all of its checkpoint. */
#ifndef HOLDFAST_PROTO_FORMAT_PLACES_H
#define HOLDFAST_PROTO_FORMAT_PLACES_H

#include "proto/format/manifest.h"
#include "proto/format/origin.h"

#include <stdbool.h>
#include <stdint.h>

#define PLACES_NODES_MAX 1024u /* in a file; a run has fewer: ckptd/machines/members.h */
#define PLACES_NODE_BYTES 33   /* of a name, with its NUL */
#define PLACES_BYTES_MAX (1u << 20)

struct places {
    char here[PLACES_NODE_BYTES];
    uint32_t num_nodes, num_shards;   /* 0 shards: there is no such file, and all shards are here */
    char (*nodes)[PLACES_NODE_BYTES]; /* owned */
    uint16_t *shards;                 /* the index in `nodes` of each shard; owned */
};

/* Allocates both lists; the caller fills them. ERR_MEMORY. */
int places_make(struct places *out, uint32_t num_nodes, uint32_t num_shards);
int places_copy(struct places *out, const struct places *places);

/* The text for a checkpoint with that nonce; the caller frees it. ERR_MEMORY. */
int places_write(char **out, const struct places *places, const char *nonce);
/* ERR_CORRUPT: it is no such file, or it belongs to another checkpoint than the summary. */
int places_read(struct places *out, const char *text, size_t bytes,
                const struct manifest_summary *summary);
/* "<run>/step-.../places.json", as manifest_key. */
int places_key(char *out, size_t size, const struct manifest_summary *summary);
bool places_is_here(const struct places *places, uint32_t shard);
void places_free(struct places *places);

#endif
