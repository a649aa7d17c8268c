/* copy_io.h - reads the source and writes the target of a shard copy; see copy_io.c. Blocks, on the
 * crew, except where stated otherwise. */
#ifndef HOLDFAST_CKPTD_TIERS_COPY_IO_H
#define HOLDFAST_CKPTD_TIERS_COPY_IO_H

#include "ckptd/tiers/shard_copy_private.h"

#include <stdint.h>

/* Any thread. */
struct storage *copy_io_storage(const struct shard_copy *copy, enum tier_index tier);
void copy_io_part_range(const struct shard_copy *copy, uint64_t index, uint64_t *out_start,
                        uint32_t *out_bytes);
/* Verifies every block of [start, start + bytes) against the table, and the bytes of the table in
 * that range. ERR_CORRUPT. */
int copy_io_prove(const struct shard_copy *copy, const uint8_t *data, uint64_t start,
                  uint64_t bytes);
int copy_io_hash_part(const struct shard_copy *copy, uint64_t index, const void *data,
                      uint32_t bytes);
/* Verifies and hashes the part as well. */
int copy_io_read_part(const struct shard_copy *copy, enum tier_index tier,
                      struct storage_object *object, void *data, uint64_t index);
/* Reads a shard of an uncommitted save at another node, and puts its sums into the table. */
int copy_io_read_early(struct shard_copy *copy, void *data, uint64_t start, uint32_t bytes);
/* For the copy's job. */
void copy_io_prepare(struct job *job);
void copy_io_prepare_early(struct job *job); /* of an uncommitted save: nothing is verified */
void copy_io_end(struct job *job);
void copy_io_close(struct shard_copy *copy); /* closes source and target */
/* Removes a file that was made before the commit and that no replication continues; closes it as
 * well. */
void copy_io_remove_early(struct shard_copy *copy, struct storage *storage,
                          const struct manifest_summary *summary);

#endif
