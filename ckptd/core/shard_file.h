/* shard_file.h - the file of a committed shard; see shard_file.c. Blocks; any thread. */
#ifndef HOLDFAST_CKPTD_CORE_SHARD_FILE_H
#define HOLDFAST_CKPTD_CORE_SHARD_FILE_H

#include "proto/format/manifest.h"
#include "proto/format/shard.h"
#include "storage/storage.h"

#include <stdint.h>

int file_geometry(struct shard_geometry *out, const struct manifest *manifest, uint32_t shard);
/* ERR_CORRUPT when it has another size. */
int file_open(struct storage_object **out, struct storage *storage,
              const struct manifest_summary *summary, uint32_t shard, uint64_t want_bytes);
/* The same of one that is committed: its header fits the manifest, and so does its table, whose
 * whole pages go to fresh memory, *out_table. ERR_CORRUPT. Object and table, where they are not
 * NULL, are the caller's to close and free, also after an error. */
int file_open_proven(struct storage_object **out, uint8_t **out_table, struct storage *storage,
                     const struct manifest *manifest, uint32_t shard,
                     const struct shard_geometry *geometry);
/* Is `sum` what that table has for the block? ERR_CORRUPT. */
int file_check_block(const uint8_t *table, const struct shard_geometry *geometry, uint64_t block,
                     uint64_t sum, const struct manifest_summary *summary, uint32_t shard);
/* Are the shards that a manifest names in the store, with its headers, sizes and checksum tables?
 * `summary` says where it lies. ERR_NOT_FOUND, ERR_CORRUPT. */
int file_check_all(struct storage *storage, const struct manifest_summary *summary,
                   const void *text, size_t bytes);

#endif
