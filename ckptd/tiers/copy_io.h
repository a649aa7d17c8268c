/* copy_io.h - both ends of a shard's way; see copy_io.c. Blocks, on the crew, but for what says
 * otherwise. */
#ifndef HOLDFAST_CKPTD_TIERS_COPY_IO_H
#define HOLDFAST_CKPTD_TIERS_COPY_IO_H

#include "ckptd/tiers/shard_copy_private.h"

#include <stdint.h>

/* Any thread. */
struct storage *copy_io_storage(const struct shard_copy *copy, enum tier_index tier);
void copy_io_part_range(const struct shard_copy *copy, uint64_t index, uint64_t *out_start,
                        uint32_t *out_bytes);
/* Every block of [start, start + bytes) against the table, and what it has of the table.
 * ERR_CORRUPT. */
int copy_io_prove(const struct shard_copy *copy, const uint8_t *data, uint64_t start,
                  uint64_t bytes);
int copy_io_hash_part(const struct shard_copy *copy, uint64_t index, const void *data,
                      uint32_t bytes);
/* Proven and hashed, too. */
int copy_io_read_part(const struct shard_copy *copy, enum tier_index tier,
                      struct storage_object *object, void *data, uint64_t index);
/* Of a save, at another node: the table has its sums from now on. */
int copy_io_read_early(struct shard_copy *copy, void *data, uint64_t start, uint32_t bytes);
/* Works of the copy's job. */
void copy_io_prepare(struct job *job);
void copy_io_prepare_early(struct job *job); /* of a save: nothing is proven */
void copy_io_end(struct job *job);
void copy_io_close(struct shard_copy *copy); /* what is open of both */
/* What was made before the commit, and nobody has taken; closed, too. */
void copy_io_remove_early(struct shard_copy *copy, struct storage *storage,
                          const struct manifest_summary *summary);

#endif
