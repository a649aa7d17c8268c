/* readback.h - storage.verify_after_write for a shard; see readback.c. */
#ifndef HOLDFAST_CKPTD_MEMORY_READBACK_H
#define HOLDFAST_CKPTD_MEMORY_READBACK_H

#include <stdbool.h>
#include <stdint.h>

struct digest;
struct image;
struct layout_table;
struct shard_identity;

/* The caller sets all but the last two fields before the first step; pointers are borrowed. */
struct readback {
    struct image *image; /* its file is open */
    const struct shard_identity *identity;
    const struct layout_table *table;
    uint64_t table_hash;    /* of its checksums */
    uint64_t num_blocks;    /* read so far */
    struct digest *digests; /* per tensor; owned: free() */
};

/* Reads the next part of the file, which is written and synced, and compares it. On a worker.
 * *out_is_over: all of it equals the hashed bytes. ERR_CORRUPT, ERR_MEMORY, and errors of the
 * disk. */
int readback_step(struct readback *readback, bool *out_is_over);

#endif
