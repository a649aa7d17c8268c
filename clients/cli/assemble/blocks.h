/* blocks.h - the blocks of a loaded checkpoint, each read and verified, and the digests of its
 * tensors from the same bytes. For verify, cp and repair. */
#ifndef HOLDFAST_CLIENTS_BLOCKS_H
#define HOLDFAST_CLIENTS_BLOCKS_H

#include "clients/cli/engine/scan.h"

struct blocks {
    struct checkpoint *checkpoint; /* loaded with its tables; damaged shards are skipped */
    uint32_t first_shard, end_shard;
    struct progress *progress; /* NULL: none */
    void *user;
    /* (optional) Selects blocks; NULL: all. Caller's thread. */
    bool (*is_wanted)(void *user, uint32_t shard, uint64_t block);
    /* (optional) Receives a verified block; on a worker's thread. */
    int (*take)(void *user, const struct scan_read *read, const void *data);
    /* Receives a damaged or unreadable block (error_number). Caller's thread. */
    int (*damaged)(void *user, const struct scan_read *read, int error_number);
    /* Results; every run adds to them. */
    uint64_t num_blocks, num_bytes;
    struct digest *digests; /* per tensor, of the read bytes; blocks_free() */
    /* Private. */
    struct digest **parts; /* per worker */
    uint32_t shard;        /* of the walk, */
    struct shard_file *file;
    uint64_t block; /* and its next block */
};

int blocks_run(struct blocks *blocks);
void blocks_free(struct blocks *blocks);
/* Calls `differs` for every tensor whose digest is not the manifest's. Skips tensors with a part in
 * an unreadable shard. ERR_MEMORY. */
int blocks_compare(const struct blocks *blocks, void (*differs)(void *user, const char *tensor),
                   void *user);

/* ---- replica.c ---- */

/* Copies a shard of `from`, which was loaded with its tables, to the new file `key`, synced;
 * replaces an existing one. Adds the written bytes to *digests, as in struct blocks. ERR_CORRUPT,
 * ERR_IO name a block of the source. */
int shard_copy(struct storage *store, const char *key, struct checkpoint *from, uint32_t shard,
               struct digest **digests, struct progress *progress);

#endif
