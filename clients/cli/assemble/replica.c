/* replica.c - copies a shard of one store to a new file of another, byte for byte; see blocks.h.
 *
 * Every block is verified before it is written. The checksum table is written last, after a sync: a
 * file with a complete table has all blocks. */
#include "clients/cli/assemble/blocks.h"

#include <stdlib.h>
#include <string.h>

struct replica {
    struct checkpoint *from;
    struct storage *store; /* of the new file */
    struct storage_object *object;
    unsigned char *tail; /* its last block and its table */
    uint64_t tail_start, tail_bytes;
};

static int write_block(void *user, const struct scan_read *read, const void *data)
{
    struct replica *replica = user;
    uint64_t start, bytes;
    shard_block(&start, &bytes, &read->file->stored.geometry, read->block);
    if (read->block + 1 < read->file->stored.geometry.num_blocks)
        return storage_transfer(replica->store, STORAGE_WRITE, replica->object, start,
                                (void *)(uintptr_t)data, (uint32_t)bytes);
    memcpy(replica->tail, data, bytes);
    return 0;
}

static int fail_damaged(void *user, const struct scan_read *read, int error_number)
{
    struct replica *replica = user;
    if (error_number == 0)
        atomic_store(&read->file->has_bad_block, true);
    int error = report_error(error_number != 0 ? ERR_IO : ERR_CORRUPT, DAMAGE_HINT,
                             "block %llu %s%s", (unsigned long long)read->block,
                             error_number != 0 ? "could not be read: " : "is damaged",
                             error_number != 0 ? strerror(error_number) : "");
    return checkpoint_fail(replica->from, read->file->stored.shard, error);
}

static int sync_object(struct replica *replica)
{
    return storage_transfer(replica->store, STORAGE_SYNC, replica->object, 0, NULL, 0);
}

static int write_tail(struct replica *replica, const struct shard_file *file)
{
    const struct shard_geometry *geometry = &file->stored.geometry;
    memcpy(replica->tail + (geometry->table_start - replica->tail_start), file->stored.table,
           geometry->file_bytes - geometry->table_start);
    int error = sync_object(replica);
    for (uint64_t done = 0; error == 0 && done < replica->tail_bytes; done += SCAN_BLOCK) {
        uint64_t rest = replica->tail_bytes - done;
        error = storage_transfer(replica->store, STORAGE_WRITE, replica->object,
                                 replica->tail_start + done, replica->tail + done,
                                 (uint32_t)(rest < SCAN_BLOCK ? rest : SCAN_BLOCK));
    }
    return error == 0 ? sync_object(replica) : error;
}

static int write_file(struct replica *replica, uint32_t shard, struct digest **digests,
                      struct progress *progress)
{
    const struct shard_file *file = &replica->from->shards[shard];
    struct blocks blocks = {.checkpoint = replica->from,
                            .first_shard = shard,
                            .end_shard = shard + 1,
                            .progress = progress,
                            .digests = *digests,
                            .user = replica,
                            .take = write_block,
                            .damaged = fail_damaged};
    replica->tail_start = (file->stored.geometry.num_blocks - 1) * CHECKSUM_BLOCK_BYTES;
    replica->tail_bytes = file->stored.geometry.file_bytes - replica->tail_start;
    replica->tail = aligned_alloc(SHARD_ALIGN, replica->tail_bytes);
    int error = replica->tail != NULL
                    ? blocks_run(&blocks)
                    : report_error(ERR_MEMORY, NULL, "no memory for a shard's end");
    if (error == 0)
        error = write_tail(replica, file);
    free(replica->tail);
    *digests = blocks.digests;
    return error;
}

int shard_copy(struct storage *store, const char *key, struct checkpoint *from, uint32_t shard,
               struct digest **digests, struct progress *progress)
{
    struct replica replica = {.from = from, .store = store};
    int error = storage_remove(store, key); /* left by an earlier try */
    if (error != 0 && error != ERR_NOT_FOUND)
        return error;
    ERR_TRY(storage_object_create(store, &replica.object, key,
                                  from->shards[shard].stored.geometry.file_bytes));
    error = write_file(&replica, shard, digests, progress);
    storage_object_close(store, replica.object);
    return error;
}
