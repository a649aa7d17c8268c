/* scrub_read.c - the jobs of the scrub: read some blocks of a checkpoint on a worker and compare
 * each with its checksum. */
#include "ckptd/core/catalog.h"
#include "ckptd/scrub/scrub_private.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "storage/store/store.h"

#include <stdlib.h>

/* A job reads the bytes that the rate allows in this part of a second. */
#define JOBS_PER_SECOND 16u

/* Waits for the next step; no job is in progress. */
void scrub_wait(struct scrub *scrub, int64_t ms)
{
    scrub->is_working = false;
    loop_timer(scrub->service->loop, &scrub->timer, ms);
}

void scrub_start_job(struct scrub *scrub, void (*work)(struct job *), void (*done)(struct event *))
{
    scrub->fault = (struct fault){0};
    scrub->job = (struct job){.work = work, .done.run = done};
    scrub->is_working = true;
    tier_work(scrub->service, scrub->order->tier, &scrub->job);
}

void scrub_close_checkpoint(struct scrub *scrub)
{
    store_shard_close(&scrub->file);
    manifest_free(scrub->manifest);
    places_free(&scrub->places);
    storage_release(scrub_storage(scrub), scrub->lease);
    scrub->manifest = NULL;
    scrub->lease = NULL;
}

/* With the lease it cannot be removed: a missing file was gone before, or is damage. */
static int open_checkpoint(struct scrub *scrub)
{
    char prefix[STORAGE_KEY_MAX];
    const struct manifest_summary *summary = &scrub->summary;
    bool is_shared = scrub->order->is_shared;
    int error = tier_reach(scrub->service, scrub->order->tier);
    scrub->proves_nothing = error != 0;
    if (error != 0)
        return error;
    struct storage *storage = scrub_storage(scrub);
    ERR_TRY(shard_dir_key(prefix, sizeof prefix, summary->run, summary->step, summary->attempt));
    if (is_shared)
        error = store_lease(storage, &scrub->lease, prefix, "ckptd scrubs it\n");
    if (error == 0)
        error = store_read_manifest(&scrub->manifest, storage, summary);
    scrub->proves_nothing = is_shared && error == ERR_NOT_FOUND;
    if (error == 0 && !is_shared)
        error = store_read_places(&scrub->places, storage, summary);
    if (scrub->shard >= summary->shards) /* the place does not exist */
        scrub->shard = scrub->byte = 0;
    return error;
}

/* A place may be of a file with other blocks: only the manifest counts. */
static int open_shard(struct scrub *scrub)
{
    ERR_TRY(store_shard_init(&scrub->file, scrub_storage(scrub), scrub->manifest,
                             (uint32_t)scrub->shard));
    if (scrub->byte % CHECKSUM_BLOCK_BYTES != 0 || scrub->byte >= scrub->file.geometry.table_start)
        scrub->byte = 0;
    return store_shard_open_proven(&scrub->file);
}

static void go_to_next_shard(struct scrub *scrub)
{
    store_shard_close(&scrub->file);
    scrub->byte = 0;
    scrub->is_read = ++scrub->shard >= scrub->summary.shards;
}

static int read_some(struct scrub *scrub)
{
    uint64_t left = scrub->file.geometry.table_start - scrub->byte;
    uint64_t pages = (left + STORAGE_ALIGN - 1) / STORAGE_ALIGN * STORAGE_ALIGN;
    uint64_t bytes = pages < scrub->order->read_bytes ? pages : scrub->order->read_bytes;
    ERR_TRY(storage_transfer(scrub_storage(scrub), STORAGE_READ, scrub->file.object, scrub->byte,
                             scrub->buffer, (uint32_t)bytes));
    scrub->bytes += bytes;
    ERR_TRY(store_shard_check_blocks(&scrub->file, scrub->buffer, scrub->byte, bytes));
    scrub->byte += bytes;
    if (bytes == pages)
        go_to_next_shard(scrub);
    return 0;
}

void scrub_work_read(struct job *job)
{
    struct scrub *scrub = CONTAINER_OF(job, struct scrub, job);
    uint64_t want = (uint64_t)scrub->service->config->scrub_rate / JOBS_PER_SECOND;
    int error = 0;
    do {
        if (!scrub->manifest)
            error = open_checkpoint(scrub);
        if (error == 0 && !places_is_here(&scrub->places, (uint32_t)scrub->shard)) {
            go_to_next_shard(scrub); /* its own node reads it */
            continue;
        }
        if (error == 0 && !scrub->file.object)
            error = open_shard(scrub);
        if (error == 0)
            error = read_some(scrub);
    } while (error == 0 && !scrub->is_read && scrub->bytes < want);
    if (error != 0)
        fault_take(&scrub->fault, error);
    else if (scrub->is_read && scrub->turn.is_aside) /* for which the cursor does not count */
        catalog_note_whole(scrub_storage(scrub), &scrub->summary);
    if (error != 0 || scrub->is_read)
        scrub_close_checkpoint(scrub);
}

void scrub_work_close(struct job *job)
{
    scrub_close_checkpoint(CONTAINER_OF(job, struct scrub, job));
}
