/* blocks.c - reads every block of a checkpoint, and computes the digests of its tensors; see
 * blocks.h. */
#include "clients/cli/assemble/blocks.h"

#include <stdlib.h>
#include <string.h>

/* ---- the walk ---- */

/* Takes the next readable shard, for the time that the walk is in it. */
static int open_next_shard(struct blocks *blocks)
{
    while (blocks->shard < blocks->end_shard &&
           blocks->checkpoint->shards[blocks->shard].damage != NULL)
        blocks->shard++;
    return blocks->shard < blocks->end_shard
               ? shard_take(&blocks->file, blocks->checkpoint, blocks->shard)
               : 0;
}

static void leave_shard(struct blocks *blocks)
{
    if (blocks->file != NULL)
        shard_drop(blocks->file);
    blocks->file = NULL;
    blocks->block = 0;
    blocks->shard++;
}

static int next_block(void *user, struct scan_read *out)
{
    struct blocks *blocks = user;
    for (;;) {
        if (blocks->file == NULL)
            ERR_TRY(open_next_shard(blocks));
        if (blocks->file == NULL)
            return SCAN_END;
        uint64_t end = blocks->file->stored.geometry.num_blocks;
        while (blocks->block < end && blocks->is_wanted != NULL &&
               !blocks->is_wanted(blocks->user, blocks->shard, blocks->block))
            blocks->block++;
        if (blocks->block < end)
            break;
        leave_shard(blocks);
    }
    uint64_t start, bytes;
    ERR_TRY(shard_take(&out->file, blocks->checkpoint, blocks->shard));
    out->block = blocks->block++;
    shard_block(&start, &bytes, &out->file->stored.geometry, out->block);
    blocks->num_blocks++;
    blocks->num_bytes += bytes;
    return SCAN_READ;
}

static int process_block(void *user, uint32_t worker, const struct scan_read *read,
                         const void *data)
{
    struct blocks *blocks = user;
    const struct shard_file *file = read->file;
    uint64_t start, bytes;
    shard_block(&start, &bytes, &file->stored.geometry, read->block);
    for (uint32_t i = shard_tensor_at(file, start); i < file->num_tensors; i++) {
        const struct shard_tensor *tensor = &file->tensors[i];
        const struct tensor_meta *meta =
            &blocks->checkpoint->manifest->table->tensors[tensor->tensor];
        uint64_t begin = file->stored.geometry.data_start + tensor->data_byte;
        uint64_t from = begin > start ? begin : start, end = begin + tensor->bytes;
        end = end < start + bytes ? end : start + bytes;
        if (begin >= start + bytes)
            break;
        uint32_t size = dtype_bytes(meta->dtype);
        box_digest(&blocks->parts[worker][tensor->tensor], &tensor->box, meta,
                   (from - begin) / size, (end - from) / size,
                   (const unsigned char *)data + (from - start));
    }
    return blocks->take != NULL ? blocks->take(blocks->user, read, data) : 0;
}

static int process_damaged(void *user, const struct scan_read *read, int error_number)
{
    struct blocks *blocks = user;
    return blocks->damaged(blocks->user, read, error_number);
}

/* ---- digests ---- */

static size_t num_digests(const struct blocks *blocks)
{
    return (size_t)blocks->checkpoint->manifest->table->num_tensors + 1;
}

static int allocate_digests(struct blocks *blocks)
{
    uint32_t num_workers = scan_workers();
    bool is_short = false;
    if (blocks->digests == NULL)
        blocks->digests = calloc(num_digests(blocks), sizeof *blocks->digests);
    blocks->parts = calloc(num_workers, sizeof *blocks->parts);
    for (uint32_t i = 0; blocks->parts != NULL && i < num_workers; i++) {
        blocks->parts[i] = calloc(num_digests(blocks), sizeof **blocks->parts);
        is_short = is_short || blocks->parts[i] == NULL;
    }
    return blocks->digests != NULL && blocks->parts != NULL && !is_short
               ? 0
               : report_error(ERR_MEMORY, NULL, "no memory for the digests");
}

static void merge_digests(struct blocks *blocks)
{
    for (uint32_t worker = 0; worker < scan_workers(); worker++)
        for (size_t i = 0; i + 1 < num_digests(blocks); i++)
            digest_merge(&blocks->digests[i], &blocks->parts[worker][i]);
}

static void free_parts(struct blocks *blocks)
{
    for (uint32_t i = 0; blocks->parts != NULL && i < scan_workers(); i++)
        free(blocks->parts[i]);
    free(blocks->parts);
    blocks->parts = NULL;
}

int blocks_run(struct blocks *blocks)
{
    const struct scan_hooks hooks = {.user = blocks,
                                     .next = next_block,
                                     .take = process_block,
                                     .damaged = process_damaged,
                                     .progress = blocks->progress};
    struct scan *scan = NULL;
    blocks->shard = blocks->first_shard;
    blocks->block = 0;
    int error = allocate_digests(blocks);
    if (error == 0)
        error = scan_open(&scan, blocks->checkpoint->store);
    if (error == 0)
        error = scan_run(scan, &hooks);
    if (blocks->file != NULL)
        leave_shard(blocks);
    if (error == 0)
        merge_digests(blocks);
    scan_close(scan);
    free_parts(blocks);
    return error;
}

void blocks_free(struct blocks *blocks)
{
    free(blocks->digests);
    blocks->digests = NULL;
}

/* Marks the tensors with a part in a shard that could not be read. */
static int find_unread(bool *unread, const struct checkpoint *checkpoint)
{
    const struct manifest *manifest = checkpoint->manifest;
    for (uint32_t shard = 0; shard < manifest->summary.shards; shard++) {
        struct shard_tensor *tensors = NULL;
        uint32_t count = 0;
        uint64_t bytes;
        if (checkpoint->shards[shard].damage == NULL)
            continue;
        ERR_TRY(layout_shard_tensors(&tensors, &count, &bytes, manifest->table, shard));
        for (uint32_t i = 0; i < count; i++)
            unread[tensors[i].tensor] = true;
        free(tensors);
    }
    return 0;
}

int blocks_compare(const struct blocks *blocks, void (*differs)(void *user, const char *tensor),
                   void *user)
{
    const struct manifest *manifest = blocks->checkpoint->manifest;
    bool *unread = calloc(num_digests(blocks), sizeof *unread);
    int error = unread != NULL ? find_unread(unread, blocks->checkpoint)
                               : report_error(ERR_MEMORY, NULL, "no memory for the digests");
    for (uint32_t i = 0; i < manifest->table->num_tensors && error == 0; i++) {
        if (!unread[i] &&
            memcmp(&blocks->digests[i], &manifest->digests[i], sizeof *blocks->digests) != 0)
            differs(user, manifest->table->tensors[i].name);
    }
    free(unread);
    return error;
}
