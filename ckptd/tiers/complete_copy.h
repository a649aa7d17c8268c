/* complete_copy.h - completes a node's part of a checkpoint to a whole copy; see complete_copy.c.
 * Blocks; any thread. */
#ifndef HOLDFAST_CKPTD_TIERS_COMPLETE_COPY_H
#define HOLDFAST_CKPTD_TIERS_COMPLETE_COPY_H

#include "proto/format/manifest.h"
#include "proto/format/places.h"

#include <stdbool.h>

struct storage;

/* Checks that every shard of the manifest is in the directory, with its header, size and checksum
 * table, and synced; then removes places.json. ERR_NOT_FOUND, ERR_CORRUPT: a shard is not; the copy
 * stays a part. */
int complete_copy(struct storage *storage, const struct manifest_summary *summary);
/* Does the committed copy here have the shard of that file name? Also true if that cannot be read.
 * Reads run, step and attempt of the summary. */
bool complete_copy_has_shard(struct storage *storage, const struct manifest_summary *place,
                             const char *name);

/* Finds the node that has the shard of that name, by places.json. ERR_NOT_FOUND: this node has it,
 * or none; errors of storage. Blocks; any thread. */
int complete_copy_find_shard(char out[PLACES_NODE_BYTES], struct storage *storage,
                             const struct manifest_summary *place, const char *name);

#endif
