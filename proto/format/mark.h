/* mark.h - the file that marks a step's directory as unfinished work. The writer of a checkpoint
 * makes it, durably, before the first byte of a shard, and removes it when the manifest is durable.
 * Only a mark proves that a crash left these shards. Shards without a manifest and without a mark
 * may be a user's data, and are never deleted. */
#ifndef HOLDFAST_PROTO_FORMAT_MARK_H
#define HOLDFAST_PROTO_FORMAT_MARK_H

#include "proto/format/shard.h"

#define MARK_NAME "unfinished"
#define MARK_BYTES_MAX 320u /* with the NUL */

/* A line of JSON: run, step, attempt and nonce of the save, and its writer: the boot id of a ckptd,
 * or 0 of a tool. */
void mark_write(char out[MARK_BYTES_MAX], const struct shard_identity *identity, uint64_t boot_id);
/* The mark for a part of a save that another node coordinates. The coordinator decides the outcome,
 * so mark_is_of() is false for such a mark, and ckptd asks the coordinator before it removes
 * anything there. */
void mark_write_part(char out[MARK_BYTES_MAX], const struct shard_identity *identity,
                     const char *coordinator);
/* True: `text` is such a mark. */
#define MARK_NODE_BYTES 33
bool mark_read_part(struct shard_identity *out, char out_coordinator[MARK_NODE_BYTES],
                    const char *directory, const char *text);
/* Is `text` a mark of the directory "<run>/step-..."? */
bool mark_is_of(const char *directory, const char *text);

#endif
