/* berth.h - both ends of a shard's way; see berth.c. Blocks, on the crew, but for what says
 * otherwise. */
#ifndef HOLDFAST_CKPTD_DRAIN_BERTH_H
#define HOLDFAST_CKPTD_DRAIN_BERTH_H

#include "ckptd/drain/cargo.h"

#include <stdint.h>

/* Any thread. */
struct storage *berth_storage(const struct ship *ship, enum tier_index tier);
void berth_part_range(const struct ship *ship, uint64_t index, uint64_t *out_start,
                      uint32_t *out_bytes);
/* Every block of [start, start + bytes) against the table, and what it has of the table.
 * ERR_CORRUPT. */
int berth_prove(const struct ship *ship, const uint8_t *data, uint64_t start, uint64_t bytes);
int berth_hash_part(const struct ship *ship, uint64_t index, const void *data, uint32_t bytes);
/* Proven and hashed, too. */
int berth_read_part(const struct ship *ship, enum tier_index tier, struct storage_object *object,
                    void *data, uint64_t index);
/* Of a save, at another node: the table has its sums from now on. */
int berth_read_early(struct ship *ship, void *data, uint64_t start, uint32_t bytes);
/* Works of the ship's job. */
void berth_prepare(struct job *job);
void berth_prepare_early(struct job *job); /* of a save: nothing is proven */
void berth_end(struct job *job);
void berth_close(struct ship *ship); /* what is open of both */
/* What was made before the commit, and nobody has taken; closed, too. */
void berth_remove_early(struct ship *ship, struct storage *storage,
                        const struct manifest_summary *summary);

#endif
