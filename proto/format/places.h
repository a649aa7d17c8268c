/* places.h - the small file beside a manifest that says on which nodes the shards lie, where they
 * are not all in that directory: ranks of several nodes saved them, each at its own ckptd.
 *
 * Every node that holds a shard has the manifest and this file. It names the node that it lies on
 * itself ("here"), so whoever reads a store, without a ckptd too, knows which shards must be there,
 * and where the others are. A directory without it holds all of its checkpoint. */
#ifndef HOLDFAST_PROTO_FORMAT_PLACES_H
#define HOLDFAST_PROTO_FORMAT_PLACES_H

#include "proto/format/manifest.h"
#include "proto/format/origin.h"

#include <stdbool.h>
#include <stdint.h>

#define PLACES_NODES_MAX 1024u /* in a file; of a run fewer: ckptd/machines/members.h */
#define PLACES_NODE_BYTES 33   /* of a name, with its NUL */
#define PLACES_BYTES_MAX (1u << 20)

struct places {
    char here[PLACES_NODE_BYTES];
    uint32_t num_nodes, num_shards;   /* 0 shards: there is no such file, and all are here */
    char (*nodes)[PLACES_NODE_BYTES]; /* owned */
    uint16_t *shards;                 /* which of `nodes` each is on; owned */
};

/* Room for so many, which the caller fills. ERR_MEMORY. */
int places_make(struct places *out, uint32_t num_nodes, uint32_t num_shards);
int places_copy(struct places *out, const struct places *places);

/* The text, to be freed, of a checkpoint with that nonce. ERR_MEMORY. */
int places_write(char **out, const struct places *places, const char *nonce);
/* ERR_CORRUPT: it is no such file, or one of another checkpoint than the summary's. */
int places_read(struct places *out, const char *text, size_t bytes,
                const struct manifest_summary *summary);
/* "<run>/step-.../places.json", as manifest_key. */
int places_key(char *out, size_t size, const struct manifest_summary *summary);
bool places_is_here(const struct places *places, uint32_t shard);
void places_free(struct places *places);

#endif
