/* pump.c - reads shards into memory: performs what machines/read_plan.c decides.
 *
 *     worker: clean segments, open file, table ──► chunks read, hashed, verified ──► worker: close
 *
 * A pass verifies each block by the checksum table, and that by the manifest. Only ckptd writes to
 * these segments, so verified bytes stay so. An image that lacks chunks has the segments of the
 * whole shard anyway; the image of a part is a window that does not move. A pass keeps its image
 * and its checkpoint. A part costs, beside its segments, the checksum table of the file and its
 * sums: 16 bytes per MiB of the shard.
 *
 * When every shard of a checkpoint was read whole from the local disk, by one load or several that
 * overlap, ckptd notes that the checkpoint is known whole, as after a scrub
 * (proto/format/verified.h). Parts do not count.
 *
 * Bytes are counted as read from the device when they arrive, even if the pass fails. */
#include "ckptd/restore/pump.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/machines/read_plan.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/pool.h"
#include "ckptd/restore/held.h"
#include "ckptd/restore/loads.h"
#include "proto/base/checksum.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/format/shard.h"
#include "storage/storage.h"

#include <stdlib.h>
#include <time.h>

static void perform_action(struct image *image, enum read_action action);

bool pump_is_in_parts(const struct checkpoint *checkpoint, uint32_t shard)
{
    const struct service *service = checkpoint->run->service;
    uint64_t bytes = checkpoint->manifest->shards[shard].bytes;
    return image_segments_needed(service, bytes) > pool_size(service->pool);
}

/* A job that uses the file: it may take long for a file in another tier. */
static void work_on_file(struct image *image, void (*work)(struct job *),
                         void (*done)(struct event *))
{
    image->job = (struct job){.work = work, .done.run = done};
    tier_work(image->service, image->tier, &image->job);
}

/* ---- the file is opened ---- */

static int open_verified(struct image *image)
{
    int error = pool_clean(image->service->pool, image->segments, image->num_segments);
    if (error == 0 && image->needs_far_hold)
        error = held_take_far(&image->far_hold, image->service, &image->checkpoint->summary);
    if (error == 0)
        error = store_shard_init(&image->stored, image_storage(image), image->checkpoint->manifest,
                                 image->shard);
    if (error == 0)
        error = store_shard_open_proven(&image->stored);
    image->object = image->stored.object;
    if (error == ERR_UNAVAILABLE || error == ERR_TIMEOUT)
        error = report_error(error, "start the node again, or load an older step",
                             "shard %u lies on node %s, which does not answer: %s", image->shard,
                             tier_name(image->service, image->tier), report_message());
    return error;
}

static void work_open_file(struct job *job)
{
    struct image *image = CONTAINER_OF(job, struct image, job);
    int error = open_verified(image);
    if (error != 0)
        fault_take(&image->fault, error);
}

static void file_opened(struct event *event)
{
    struct image *image = CONTAINER_OF(event, struct image, job.done);
    held_enter_far(image->checkpoint, &image->far_hold);
    perform_action(image, read_plan_opened(&image->reading, image->fault.code == 0));
}

static void open_file(struct image *image)
{
    image->needs_far_hold = image->tier == TIER_FAR && !image->checkpoint->far_hold;
    work_on_file(image, work_open_file, file_opened);
}

/* ---- chunks ---- */

void pump_start(struct image *image)
{
    uint32_t index;
    bool wakes;
    while (read_plan_start(&image->reading, &index, &wakes)) {
        image_chunk(image, index)->is_awaited = wakes;
        image_start_chunk(image, index);
    }
}

/* Compares the blocks of a chunk that was read and hashed with the table of the file, and its bytes
 * of the table with the table. ERR_CORRUPT names the first block that differs. */
static int check_chunk(const struct image *image, uint32_t index)
{
    const struct shard_geometry *geometry = &image->geometry;
    uint64_t start, end;
    int error = 0;
    image_chunk_range(image, index, &start, &end);
    end = end < geometry->table_start ? end : geometry->table_start;
    for (uint64_t i = start / CHECKSUM_BLOCK_BYTES; i * CHECKSUM_BLOCK_BYTES < end && error == 0;
         i++)
        error = store_shard_check_sum(&image->stored, i, image->sums[i]);
    if (error == 0 && !image_has_table(image, index, image->stored.table))
        error = report_error(ERR_CORRUPT, NULL,
                             "the checksum table of shard-%05u-of-%05u was read twice and differs",
                             image->shard + 1, image->checkpoint->summary.shards);
    return error;
}

/* Was the chunk read, and does it match its checksums? */
static bool verify_chunk(struct image *image, const struct chunk *chunk)
{
    uint64_t start, end;
    if (chunk->request.error != 0)
        return false;
    image_chunk_range(image, chunk->index, &start, &end);
    image->service->loads->bytes_read += end - start;
    int error = check_chunk(image, chunk->index);
    if (error != 0 && image->fault.code == 0)
        fault_take(&image->fault, error);
    return error == 0;
}

static void chunk_advanced(struct image *image, struct chunk *chunk)
{
    struct load_table *loads = image->service->loads;
    bool had_room = read_plan_has_room(&loads->plan, false);
    bool is_there = verify_chunk(image, chunk);
    enum read_action action = read_plan_came(&image->reading, chunk->index, is_there);
    if (!had_room && read_plan_has_room(&loads->plan, false))
        service_retry_waiting(image->service);
    loads->events->grew(image);
    perform_action(image, action);
}

/* ---- the end ---- */

static void work_close_file(struct job *job)
{
    struct image *image = CONTAINER_OF(job, struct image, job);
    store_shard_close(&image->stored);
    image->object = NULL;
    if (image->ends_reading)
        catalog_note_whole(image->service->storage, &image->checkpoint->summary);
}

static void file_closed(struct event *event)
{
    struct image *image = CONTAINER_OF(event, struct image, job.done);
    perform_action(image, read_plan_closed(&image->reading));
}

/* Have loads, with this image, read all of a checkpoint in the local tier that was not known whole?
 * The scrub decides about a suspect. */
static bool has_read_all(const struct image *image)
{
    const struct checkpoint *checkpoint = image->checkpoint;
    if (image->fault.code != 0 || image->reading.num_missing > 0 || image->is_from_elsewhere ||
        !checkpoint->uses || checkpoint->is_suspect || catalog_is_read_back(checkpoint))
        return false;
    checkpoint->uses[image->shard].is_read_here = true;
    uint32_t shard = 0;
    while (shard < checkpoint->summary.shards && checkpoint->uses[shard].is_read_here)
        shard++;
    return shard == checkpoint->summary.shards;
}

static void close_file(struct image *image)
{
    image->ends_reading = has_read_all(image);
    work_on_file(image, work_close_file, file_closed);
}

/* A part lives as long as the load that holds it. */
static void end_part(struct image *image)
{
    image_detach(image);
    image->state = IMAGE_ENDING;
    image_settle(image);
}

static void end_well(struct image *image)
{
    if (image->ends_reading)
        image->checkpoint->copies.local.proven = time(NULL);
    image->read_until = image->service->loads->newest;
    image->state = IMAGE_RESIDENT;
    image->service->loads->events->verified(image);
    if (image->is_window)
        end_part(image);
    else
        image_drop_unwanted(image);
}

static void end_pass(struct image *image, bool is_done)
{
    struct checkpoint *checkpoint = image->checkpoint;
    struct service *service = image->service;
    log_debug("restore", "run %s, step %llu: shard %u read in %lld ms, %u of %u chunks are missing",
              checkpoint->run->name, (unsigned long long)checkpoint->summary.step, image->shard,
              (long long)(clock_ms() - image->pass_begun_ms), image->reading.num_missing,
              image->num_chunks);
    image->readers--;
    if (is_done)
        end_well(image);
    else
        service->loads->events->failed(image);
    catalog_unlease(checkpoint);
    service_retry_waiting(service); /* perhaps no load wants the image any more */
}

static void perform_action(struct image *image, enum read_action action)
{
    switch (action) {
    case READ_OPEN:
        open_file(image);
        break;
    case READ_START:
        pump_start(image);
        break;
    case READ_CLOSE:
        close_file(image);
        break;
    case READ_DONE:
    case READ_FAILED:
        end_pass(image, action == READ_DONE);
        break;
    case READ_NOTHING:
        break;
    }
}

/* ---- the beginning ---- */

/* Asks for the chunks that open loads want and waiting calls need; for a part, those that its own
 * load wants. */
static void ask_all(struct image *image)
{
    const struct service *service = image->service;
    const struct shard_wait *wait = image->waiting;
    for (int64_t i = 0; i < service->config->limit_sessions; i++) {
        const struct load *load = &service->loads->rows[i];
        if (load->number != 0 && load->checkpoint == image->checkpoint &&
            load->reads.shards[image->shard].is_wanted &&
            (!image->is_window || load->number == wait->load))
            read_plan_ask(&image->reading, &load->reads, image->shard);
    }
    for (; wait; wait = wait->next)
        read_plan_ask_from(&image->reading, wait->read.from_byte);
}

void pump_begin(struct image *image)
{
    struct checkpoint *checkpoint = image->checkpoint;
    enum read_action action = read_plan_begin(&image->reading);
    image->state = IMAGE_READING;
    image->tier = catalog_shard_source(checkpoint, image->shard);
    image->is_from_elsewhere |= image->tier != TIER_LOCAL;
    image->pass = PASS_READ;
    image->pass_begun_ms = clock_ms();
    image->readers++;
    catalog_lease(checkpoint);
    image->advance = chunk_advanced;
    image->fault = (struct fault){0};
    atomic_store(&image->stopped, false);
    image->identity = checksum_shard_identity(checkpoint->summary.nonce, image->shard,
                                              checkpoint->summary.shards);
    ask_all(image);
    perform_action(image, action);
}

/* An image without segments: of the whole shard, or of a part that has the byte. */
static int make_image(struct image **out, struct checkpoint *checkpoint, uint32_t shard,
                      const uint64_t *part_byte)
{
    struct service *service = checkpoint->run->service;
    struct store_shard file;
    ERR_TRY(store_shard_init(&file, NULL, checkpoint->manifest, shard));
    if (part_byte && *part_byte >= file.geometry.table_start)
        return report_error(ERR_INVALID, NULL, "byte %llu of shard %u is no tensor data",
                            (unsigned long long)*part_byte, shard);
    uint32_t segments = part_byte ? read_plan_part_segments(pool_size(service->pool)) : UINT32_MAX;
    ERR_TRY(image_new(out, service, &file.geometry, segments));
    struct image *image = *out;
    struct read_shard *reading = &image->reading;
    const struct read_file chunks = reading->file;
    if (part_byte)
        read_plan_part(reading, &service->loads->plan, &chunks, reading->chunks, image->num_rooms,
                       *part_byte);
    else
        read_plan_shard(reading, &service->loads->plan, &chunks, reading->chunks);
    for (uint32_t i = reading->first; i < reading->end; i++)
        image_chunk(image, i)->index = i;
    return 0;
}

int pump_read(struct checkpoint *checkpoint, uint32_t shard, struct shard_wait *waiting)
{
    bool is_part = pump_is_in_parts(checkpoint, shard);
    struct image *image = NULL;
    ERR_TRY(make_image(&image, checkpoint, shard, is_part ? &waiting->read.from_byte : NULL));
    /* Reclaiming memory depends on the shard and its calls. */
    image->state = IMAGE_READING;
    image->checkpoint = checkpoint;
    image->shard = shard;
    image->waiting = waiting;
    int error = image_take_segments(image, (struct pool_owner){.run = checkpoint->run->tag});
    if (error == 0 && !is_part)
        error = image_enter_checkpoint(image, checkpoint, shard);
    if (error != 0) {
        image_detach(image);
        image_free(image);
        return error;
    }
    image->table_hash = checkpoint->manifest->shards[shard].table_hash;
    pump_begin(image);
    return 0;
}

/* ---- reading ahead ---- */

/* False: there is no shard to read ahead, or no memory for it. */
static bool read_next(struct service *service)
{
    struct read_next next = {0};
    uint32_t shard;
    for (int64_t i = 0; i < service->config->limit_sessions; i++) {
        struct load *load = &service->loads->rows[i];
        bool is_taken = load->number == 0 || load->checkpoint->damaged;
        while (!is_taken && read_plan_at(&shard, &next, &load->reads)) {
            const struct image *image = catalog_image(load->checkpoint, shard);
            is_taken = read_plan_offer(&next, &load->reads, image ? &image->reading : NULL);
        }
    }
    if (!next.load)
        return false;
    struct checkpoint *checkpoint = CONTAINER_OF(next.load, struct load, reads)->checkpoint;
    struct image *image = catalog_image(checkpoint, next.shard);
    if (image) {
        pump_begin(image);
        return true;
    }
    int error = pump_read(checkpoint, next.shard, NULL);
    if (error != 0 && error != ERR_BUSY)
        read_plan_pass_over(&next);
    return error != ERR_BUSY;
}

void pump_read_ahead(struct service *service)
{
    while (!service->draining &&
           read_plan_has_room(&service->loads->plan, service->loads->starved != NULL))
        if (!read_next(service))
            return;
}
