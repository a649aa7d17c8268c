/* mark.h - the file that says that a step's directory is unfinished work: who writes a checkpoint
 * makes it, durably, before the first byte of a shard, and takes it away when the manifest is
 * durable. What crashed meanwhile is known by it and by nothing else: shards without a manifest and
 * without this proof are somebody's data, and are never deleted. */
#ifndef HOLDFAST_PROTO_FORMAT_MARK_H
#define HOLDFAST_PROTO_FORMAT_MARK_H

#include "proto/format/shard.h"

#define MARK_NAME "unfinished"
#define MARK_BYTES_MAX 320u /* with a NUL */

/* A line of JSON: run, step, attempt and nonce of the save, and who writes it: the boot id of a
 * ckptd, or 0 of a tool. */
void mark_write(char out[MARK_BYTES_MAX], const struct shard_identity *identity, uint64_t boot_id);
/* Of a part of a save that another node coordinates: what becomes of it that one decides, so no
 * such mark is_of any directory, and nothing under it is removed before it was asked. */
void mark_write_part(char out[MARK_BYTES_MAX], const struct shard_identity *identity,
                     const char *coordinator);
/* True: that is what `text` is. */
#define MARK_NODE_BYTES 33
bool mark_read_part(struct shard_identity *out, char out_coordinator[MARK_NODE_BYTES],
                    const char *directory, const char *text);
/* Is it a mark on the directory "<run>/step-..."? */
bool mark_is_of(const char *directory, const char *text);

#endif
