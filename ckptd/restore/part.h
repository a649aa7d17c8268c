/* join_part.h - shards that are larger than the pool, part by part; see join_part.c. */
#ifndef HOLDFAST_CKPTD_RESTORE_PART_H
#define HOLDFAST_CKPTD_RESTORE_PART_H

#include <stdbool.h>
#include <stdint.h>

struct checkpoint;
struct load;
struct shard_wait;
struct image;

/* Of a checkpoint whose manifest is there. */
bool part_is_needed(const struct checkpoint *checkpoint, uint32_t shard);
/* The part that the load has, when it holds the byte that is needed, or NULL. */
struct image *part_held(const struct load *load, const struct shard_wait *wait);
/* Reads the part around wait->from_byte, lends it and frees `wait`. ERR_BUSY: no memory for it now.
 */
int part_load(struct load *load, struct shard_wait *wait);

#endif
