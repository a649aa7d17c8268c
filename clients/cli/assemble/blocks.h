/* blocks.h - the blocks of a loaded checkpoint, each read and verified, and the digests of its
 * tensors from the same bytes. For verify, cp and repair. */
#ifndef HOLDFAST_CLIENTS_BLOCKS_H
#define HOLDFAST_CLIENTS_BLOCKS_H

#include "clients/cli/engine/scan.h"

struct blocks {
    struct checkpoint
        *checkpoint; /* loaded with its tables; shards that are damaged are left out */
    uint32_t first_shard, end_shard;
    struct progress *progress; /* NULL: none */
    void *user;
    /* (optional) Which blocks are read; NULL: all. Caller's thread. */
    bool (*is_wanted)(void *user, uint32_t shard, uint64_t block);
    /* (optional) A block that verified; on a worker's thread. */
    int (*take)(void *user, const struct scan_read *read, const void *data);
    /* One that did not, or could not be read (error_number). Caller's thread. */
    int (*damaged)(void *user, const struct scan_read *read, int error_number);
    /* Results, added to by every run. */
    uint64_t num_blocks, num_bytes;
    struct digest *digests; /* per tensor, of what was read; blocks_free() */
    /* Its own. */
    struct digest **parts; /* per worker */
    uint32_t shard;        /* of the walk, */
    struct shard_file *file;
    uint64_t block; /* and its next block */
};

int blocks_run(struct blocks *blocks);
void blocks_free(struct blocks *blocks);
/* Calls `differs` for every tensor whose digest is not the manifest's. What a shard that could not
 * be read has a part of is left out. ERR_MEMORY. */
int blocks_compare(const struct blocks *blocks, void (*differs)(void *user, const char *tensor),
                   void *user);

/* ---- replica.c ---- */

/* A shard of `from`, which was loaded with its tables, as the new file `key`, synced; what lies
 * there is replaced. Adds to *digests, as of struct blocks, what was written. ERR_CORRUPT, ERR_IO
 * name a block of the source. */
int shard_copy(struct storage *store, const char *key, struct checkpoint *from, uint32_t shard,
               struct digest **digests, struct progress *progress);

#endif
