/* scrub_read.c - what the scrub does on a worker: reads some blocks of a checkpoint and holds each
 * against its checksum, and writes the cursor. */
#include "ckptd/core/catalog.h"
#include "ckptd/core/service.h"
#include "ckptd/core/shard_file.h"
#include "ckptd/keep/scrub_private.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "storage/store/store.h"

#include <stdlib.h>

#define JOBS_PER_SECOND 16u /* a job reads what the rate allows in this part of a second */

static void close_shard(struct scrub *scrub)
{
    storage_object_close(scrub->service->storage, scrub->object);
    free(scrub->table);
    scrub->object = NULL;
    scrub->table = NULL;
}

void scrub_close_checkpoint(struct scrub *scrub)
{
    close_shard(scrub);
    manifest_free(scrub->manifest);
    places_free(&scrub->places);
    scrub->manifest = NULL;
}

static int open_shard(struct scrub *scrub)
{
    struct storage *storage = scrub->service->storage;
    uint32_t shard = (uint32_t)scrub->at.shard;
    int error = 0;
    if (!scrub->manifest) {
        error = store_read_manifest(&scrub->manifest, storage, &scrub->summary);
        if (error == 0)
            error = store_read_places(&scrub->places, storage, &scrub->summary);
    }
    if (error == 0 && !places_is_here(&scrub->places, shard))
        return 0; /* its node reads it */
    if (error == 0)
        error = file_geometry(&scrub->geometry, scrub->manifest, shard);
    if (error == 0)
        error = file_open_proven(&scrub->object, &scrub->table, storage, scrub->manifest, shard,
                                 &scrub->geometry);
    return error;
}

static int read_block(struct scrub *scrub)
{
    const struct manifest_summary *summary = &scrub->summary;
    uint32_t shard = (uint32_t)scrub->at.shard;
    uint64_t start, bytes;
    shard_block(&start, &bytes, &scrub->geometry, scrub->at.block);
    uint64_t pages = (bytes + STORAGE_ALIGN - 1) / STORAGE_ALIGN * STORAGE_ALIGN;
    int error = storage_transfer(scrub->service->storage, STORAGE_READ, scrub->object, start,
                                 scrub->buffer, (uint32_t)pages);
    if (error != 0)
        return error;
    scrub->bytes += pages;
    uint64_t identity = checksum_shard_identity(summary->nonce, shard, summary->shards);
    return file_check_block(scrub->table, &scrub->geometry, scrub->at.block,
                            checksum_block(scrub->buffer, bytes, identity, scrub->at.block),
                            summary, shard);
}

/* To the next block, of the next shard where this one ends. */
static void step_on(struct scrub *scrub)
{
    if (++scrub->at.block < scrub->geometry.num_blocks)
        return;
    close_shard(scrub);
    scrub->at.block = 0;
    scrub->is_read = ++scrub->at.shard >= scrub->summary.shards;
}

void scrub_work_read(struct job *job)
{
    struct scrub *scrub = CONTAINER_OF(job, struct scrub, job);
    uint64_t want = (uint64_t)scrub->service->config->scrub_rate / JOBS_PER_SECOND;
    int error = 0;
    scrub->bytes = 0;
    do {
        if (!scrub->object)
            error = open_shard(scrub);
        /* A cursor may be of a file that was cut otherwise: only the manifest's word counts. */
        if (error == 0 && scrub->at.block >= scrub->geometry.num_blocks)
            scrub->at.block = 0;
        if (error == 0 && !scrub->object) {
            scrub->at.block = 0;
            scrub->is_read = ++scrub->at.shard >= scrub->summary.shards;
            continue;
        }
        if (error == 0)
            error = read_block(scrub);
        if (error == 0)
            step_on(scrub);
    } while (error == 0 && !scrub->is_read && scrub->bytes < want);
    if (error != 0)
        fault_take(&scrub->fault, error);
    else if (scrub->is_read && scrub->is_aside) /* of which the cursor says nothing */
        catalog_note_whole(scrub->service->storage, &scrub->summary);
    if (error != 0 || scrub->is_read)
        scrub_close_checkpoint(scrub);
}

void scrub_work_save(struct job *job)
{
    struct scrub *scrub = CONTAINER_OF(job, struct scrub, job);
    int error = scrub_keep(scrub->service->storage, &scrub->note);
    if (error != 0)
        fault_take(&scrub->fault, error);
}
