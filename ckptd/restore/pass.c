/* pass.c - reads an image: every block hashed and held against the table that the manifest proves.
 *
 *   READ    worker: clean, open file and table ──► chunks read, hashed, proven ──► worker: close
 *
 * A READ takes the chunks that are asked for (want.c) and not there, each once: those of the open
 * loads and waiting calls when it begins, and what is asked for until it ends. When that comes
 * while the file is being closed, it is opened again. So an image may be sparse: resident and
 * proven, with chunks missing; a load that needs one of them has another READ begin. Only its
 * reading is sparse: it has the segments of the whole shard. Only ckptd writes to these segments,
 * so what a pass proves holds. Images of saves are never read (lend.c).
 *
 * A pass keeps its image and its checkpoint.
 *
 * Of a checkpoint whose shards were all read whole from the local disk so, by one load or several
 * that overlap, it is noted that it is known whole, as of one that the scrub has read
 * (proto/format/verified.h). What is read in parts (join_part.c) does not count.
 *
 * Bytes are counted as read from the device when they arrive, whatever becomes of the pass. */
#include "ckptd/restore/pass.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/core/shard_file.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/pool.h"
#include "ckptd/restore/held.h"
#include "ckptd/restore/loads.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/format/shard.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LEND_BYTES (64ull << 20)
#define DEPTHS_MAX 4u

uint64_t pass_lend_bytes(const struct service *service)
{
    uint64_t segment = pool_segment_bytes(service->pool);
    return segment < LEND_BYTES ? segment : LEND_BYTES;
}

uint32_t pass_chunks_max(const struct service *service)
{
    return DEPTHS_MAX * (uint32_t)service->config->queue_depth;
}

static const struct pass_events *events_of(const struct image *image)
{
    return image->service->loads->events;
}

static void open_file(struct image *image);

/* A job that uses the file: it may wait long for a far one. */
void pass_work(struct image *image)
{
    tier_work(image->service, image->tier, &image->job);
}

/* ---- the end ---- */

static void end_well(struct image *image)
{
    if (image->ends_reading)
        image->checkpoint->copies.local.proven = time(NULL);
    image->read_until = image->service->loads->newest;
    image->state = IMAGE_RESIDENT;
    events_of(image)->verified(image);
    image_drop_unwanted(image);
}

static void pass_ended(struct event *event)
{
    struct image *image = CONTAINER_OF(event, struct image, job.done);
    struct checkpoint *checkpoint = image->checkpoint;
    struct service *service = image->service;
    if (image->fault.code == 0 && image->num_asked > 0) { /* since the last chunk came */
        open_file(image);
        return;
    }
    log_debug("restore", "run %s, step %llu: shard %u read in %lld ms, %u of %u chunks are missing",
              checkpoint->run->name, (unsigned long long)checkpoint->summary.step, image->shard,
              (long long)(loop_now_ms() - image->pass_begun_ms), image->num_missing,
              image->num_chunks);
    pass_drop_asked(image);
    image->in_pass = false;
    image->readers--;
    if (image->fault.code != 0)
        events_of(image)->failed(image);
    else
        end_well(image);
    catalog_unlease(checkpoint);
    service_retry_waiting(service); /* nobody may want the image any more */
}

void pass_close_file(struct image *image)
{
    if (image->object)
        storage_object_close(image_storage(image), image->object);
    image->object = NULL;
    free(image->stored_table);
    image->stored_table = NULL;
}

static void work_end_pass(struct job *job)
{
    struct image *image = CONTAINER_OF(job, struct image, job);
    pass_close_file(image);
    if (image->ends_reading)
        catalog_note_whole(image->service->storage, &image->checkpoint->summary);
}

/* Of a checkpoint that is not known whole: have loads, with this image, read all of it in the local
 * tier? A suspect is the scrub's. */
static bool has_read_all(const struct image *image)
{
    const struct checkpoint *checkpoint = image->checkpoint;
    if (image->fault.code != 0 || image->num_missing > 0 || image->is_from_elsewhere ||
        !checkpoint->uses || checkpoint->is_suspect || catalog_is_read_back(checkpoint))
        return false;
    checkpoint->uses[image->shard].is_read_here = true;
    uint32_t shard = 0;
    while (shard < checkpoint->summary.shards && checkpoint->uses[shard].is_read_here)
        shard++;
    return shard == checkpoint->summary.shards;
}

static void end_pass(struct image *image)
{
    image->ends_reading = has_read_all(image);
    image->job = (struct job){.work = work_end_pass, .done.run = pass_ended};
    pass_work(image);
}

/* ---- chunks ---- */

/* The blocks of a chunk that was read and hashed, against the table of the file; and what it has of
 * the table itself. ERR_CORRUPT names the first block that differs. */
static int check_chunk(const struct image *image, uint32_t index)
{
    const struct shard_geometry *geometry = &image->geometry;
    const uint8_t *table = image->stored_table + geometry->table_start % STORAGE_ALIGN;
    uint64_t start, end;
    int error = 0;
    image_chunk_range(image, index, &start, &end);
    end = end < geometry->table_start ? end : geometry->table_start;
    for (uint64_t i = start / CHECKSUM_BLOCK_BYTES; i * CHECKSUM_BLOCK_BYTES < end && error == 0;
         i++)
        error = file_check_block(image->stored_table, geometry, i, image->sums[i],
                                 &image->checkpoint->summary, image->shard);
    if (error == 0 && !image_has_table(image, index, table))
        error = report_error(ERR_CORRUPT, NULL,
                             "the checksum table of shard-%05u-of-%05u was read twice and differs",
                             image->shard + 1, image->checkpoint->summary.shards);
    return error;
}

void pass_take_chunk(struct image *image, struct chunk *chunk)
{
    struct service *service = image->service;
    uint64_t start, end;
    image_chunk_range(image, chunk->index, &start, &end);
    chunk->is_asked = false;
    image->num_asked--;
    if (--service->loads->chunks_in_passes + 1 == pass_chunks_max(service))
        service_retry_waiting(service);
    if (chunk->request.error != 0)
        return;
    service->loads->bytes_read += end - start;
    int error = check_chunk(image, chunk->index);
    if (error != 0 && image->fault.code == 0)
        fault_take(&image->fault, error);
    chunk->is_proven = error == 0;
    image->num_missing -= chunk->is_proven;
}

static void chunk_advanced(struct image *image, struct chunk *chunk)
{
    pass_take_chunk(image, chunk);
    events_of(image)->grew(image);
    if (image->busy == 0)
        end_pass(image);
}

void pass_ask(struct image *image, uint32_t first, uint32_t end)
{
    uint64_t chunk_start, chunk_end, before, part = pass_lend_bytes(image->service);
    first = first > image->first_chunk ? first : image->first_chunk;
    end = end < image->end_chunk ? end : image->end_chunk;
    for (uint32_t i = first; i < end; i++) {
        struct chunk *chunk = image_chunk(image, i);
        if (chunk->is_asked || image_has_chunk(image, i))
            continue;
        image_chunk_range(image, i, &chunk_start, &chunk_end);
        before = image->asked_bytes;
        image->asked_bytes += chunk_end - chunk_start;
        /* The chunks with which another part can be lent wake the service thread. */
        chunk->is_awaited = before / part != image->asked_bytes / part;
        chunk->is_asked = true;
        image->num_asked++;
        image->service->loads->chunks_in_passes++;
        /* The file is open, and stays so until all have come; one that fails takes no more. */
        if (image->busy > 0 && image->fault.code == 0)
            image_start_chunk(image, i);
    }
}

bool pass_start_asked(struct image *image)
{
    bool any = image->num_asked > 0;
    uint32_t left = image->num_asked;
    for (uint32_t i = 0; i < image->num_rooms && left > 0; i++) {
        if (!image->chunks[i].is_asked)
            continue;
        left--;
        image_start_chunk(image, image->chunks[i].index);
    }
    return any;
}

void pass_drop_asked(struct image *image)
{
    image->service->loads->chunks_in_passes -= image->num_asked;
    image->num_asked = 0;
}

/* ---- the beginning ---- */

static void hold_for_pass(struct image *image)
{
    image->pass = PASS_READ;
    image->in_pass = true;
    image->pass_begun_ms = loop_now_ms();
    image->readers++;
    catalog_lease(image->checkpoint);
    image->asked_bytes = 0;
    image->advance = chunk_advanced;
    image->fault = (struct fault){0};
    atomic_store(&image->stopped, false);
    image->identity = checksum_shard_identity(image->checkpoint->summary.nonce, image->shard,
                                              image->checkpoint->summary.shards);
}

static int open_proven(struct image *image)
{
    int error = pool_clean(image->service->pool, image->segments, image->num_segments);
    if (error == 0 && image->needs_far_hold)
        error = held_take_far(&image->far_hold, image->service, &image->checkpoint->summary);
    if (error == 0)
        error = file_open_proven(&image->object, &image->stored_table, image_storage(image),
                                 image->checkpoint->manifest, image->shard, &image->geometry);
    if (error == ERR_UNAVAILABLE || error == ERR_TIMEOUT)
        error = report_error(error, "start the node again, or load an older step",
                             "shard %u lies on node %s, which does not answer: %s", image->shard,
                             tier_name(image->service, image->tier), report_message());
    return error;
}

static void work_open_file(struct job *job)
{
    struct image *image = CONTAINER_OF(job, struct image, job);
    int error = open_proven(image);
    if (error != 0)
        fault_take(&image->fault, error);
}

static void file_opened(struct event *event)
{
    struct image *image = CONTAINER_OF(event, struct image, job.done);
    held_enter_far(image->checkpoint, &image->far_hold);
    if (image->fault.code != 0 || !pass_start_asked(image))
        end_pass(image);
}

void pass_open_file(struct image *image, void (*opened)(struct event *))
{
    image->needs_far_hold = image->tier == TIER_FAR && !image->checkpoint->far_hold;
    image->job = (struct job){.work = work_open_file, .done.run = opened};
    pass_work(image);
}

static void open_file(struct image *image)
{
    pass_open_file(image, file_opened);
}

static void begin_read(struct image *image)
{
    image->state = IMAGE_READING;
    image->tier = catalog_shard_source(image->checkpoint, image->shard);
    image->is_from_elsewhere |= image->tier != TIER_LOCAL;
    hold_for_pass(image);
    events_of(image)->begins(image);
    open_file(image);
}

int pass_read(struct checkpoint *checkpoint, uint32_t shard, struct shard_wait *waiting)
{
    struct service *service = checkpoint->run->service;
    struct shard_geometry geometry;
    struct image *image = NULL;
    int error = file_geometry(&geometry, checkpoint->manifest, shard);
    if (error == 0)
        error = image_new(&image, service, &geometry);
    if (error != 0)
        return error;
    /* What it is read for decides what may be reclaimed for it. */
    image->state = IMAGE_READING;
    image->checkpoint = checkpoint;
    image->shard = shard;
    image->waiting = waiting;
    error = image_take_segments(image, (struct pool_owner){.run = checkpoint->run->tag});
    if (error == 0)
        error = image_enter_checkpoint(image, checkpoint, shard);
    if (error != 0) {
        image_detach(image);
        image_free(image);
        return error;
    }
    image->table_hash = checkpoint->manifest->shards[shard].table_hash;
    image->num_missing = image->end_chunk = image->num_chunks;
    begin_read(image);
    return 0;
}

void pass_begin(struct image *image)
{
    CHECK(image->state == IMAGE_RESIDENT && !image->in_pass && image->num_missing > 0);
    begin_read(image);
}
