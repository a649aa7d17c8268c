/* readback.h - what storage.verify_after_write does with a shard; see readback.c. */
#ifndef HOLDFAST_CKPTD_MEMORY_READBACK_H
#define HOLDFAST_CKPTD_MEMORY_READBACK_H

#include <stdbool.h>
#include <stdint.h>

struct digest;
struct image;
struct layout_table;
struct shard_identity;

/* All but the last two is said before the first step, and borrowed. */
struct readback {
    struct image *image; /* with the file, open */
    const struct shard_identity *identity;
    const struct layout_table *table;
    uint64_t table_hash;    /* of its checksums */
    uint64_t num_blocks;    /* read so far */
    struct digest *digests; /* per tensor; owned: free() */
};

/* Reads some more of the file, which is written and synced, and compares. On a worker.
 * *out_is_over: all of it was as it was hashed. ERR_CORRUPT, ERR_MEMORY, and errors of the disk. */
int readback_step(struct readback *readback, bool *out_is_over);

#endif
