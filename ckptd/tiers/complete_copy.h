/* complete_copy.h - a node's part of a checkpoint becomes a whole copy; see complete_copy.c.
 * Blocks; any thread. */
#ifndef HOLDFAST_CKPTD_TIERS_COMPLETE_COPY_H
#define HOLDFAST_CKPTD_TIERS_COMPLETE_COPY_H

#include "proto/format/manifest.h"
#include "proto/format/places.h"

#include <stdbool.h>

struct storage;

/* Every shard that the manifest there names is in the directory, with its header, size and checksum
 * table, and synced. ERR_NOT_FOUND, ERR_CORRUPT: one is not, and it stays a part. */
int complete_copy(struct storage *storage, const struct manifest_summary *summary);
/* Is the shard of that file name one that the committed copy here has? True, too, where nobody can
 * tell. Of the summary run, step and attempt are read. */
bool complete_copy_has_shard(struct storage *storage, const struct manifest_summary *place,
                             const char *name);

/* Which node has the shard of that name, as places.json there says. ERR_NOT_FOUND: it is this
 * one's, or nobody's; those of storage. Blocks; any thread. */
int complete_copy_find_shard(char out[PLACES_NODE_BYTES], struct storage *storage,
                             const struct manifest_summary *place, const char *name);

#endif
