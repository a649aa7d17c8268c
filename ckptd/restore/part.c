/* join_part.c - LoadShard of a shard that is larger than the whole pool: part by part.
 *
 *   LoadShard(from) ──► worker: open the file, prove its checksum table ──► chunks of the part that
 *   the load needs read, hashed, proven by the table ──► worker: close the file ──► lent
 *
 * A part is an image that is a window, standing still at a place of the file: whole segments, on a
 * grid of PART_SHARE of the pool, so that several ranks have theirs at once. It belongs to the load
 * it was read for and goes when that asks for the next one, releases the shard or ends. Two ranks
 * that want the same bytes read them twice: parts are for pools so small that shards are saved
 * through windows, where nothing can be kept for a rank that comes later.
 *
 * Beside the segments a part costs the file's checksum table and its sums: 16 bytes per MiB of the
 * shard. Limit: memory: as LoadShard (shard.c). */
#include "ckptd/restore/part.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/core/shard_file.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/pool.h"
#include "ckptd/restore/held.h"
#include "ckptd/restore/lease.h"
#include "ckptd/restore/lend.h"
#include "ckptd/restore/loads.h"
#include "ckptd/restore/pass.h"
#include "ckptd/restore/want.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/format/shard.h"
#include "proto/wire/rpc.h"

#include <stdlib.h>
#include <string.h>

#define PART_SHARE 8u /* a part takes this part of the pool, at least one segment */

bool part_is_needed(const struct checkpoint *checkpoint, uint32_t shard)
{
    const struct service *service = checkpoint->run->service;
    uint64_t bytes = checkpoint->manifest->shards[shard].bytes;
    return image_segments_needed(service, bytes) > pool_size(service->pool);
}

/* ---- lent, or not ---- */

static void fail_part(struct image *image, struct shard_wait *wait)
{
    struct fault fault = image->fault;
    if (lend_note_damage(image, &fault))
        fault.code = ERR_UNAVAILABLE; /* the same call again is served from another tier */
    rpc_call_fail(wait->call, fault_raise(&fault));
    free(wait);
}

static void part_ended(struct event *event)
{
    struct image *image = CONTAINER_OF(event, struct image, job.done);
    struct checkpoint *checkpoint = image->checkpoint;
    struct service *service = image->service;
    struct shard_wait *wait = image->waiting;
    image->waiting = NULL;
    image->in_pass = false;
    if (image->fault.code != 0)
        fail_part(image, wait);
    else
        lend_shard(wait, image);
    pass_drop_asked(image);
    image->readers--; /* the pass itself */
    image->checkpoint = NULL;
    image->state = IMAGE_ENDING; /* it lives as long as the load holds it */
    image_settle(image);
    catalog_unlease(checkpoint);
    service_retry_waiting(service);
}

/* ---- the pass ---- */

static void work_end_part(struct job *job)
{
    pass_close_file(CONTAINER_OF(job, struct image, job));
}

static void end_part(struct image *image)
{
    image->job = (struct job){.work = work_end_part, .done.run = part_ended};
    pass_work(image);
}

static void chunk_advanced(struct image *image, struct chunk *chunk)
{
    pass_take_chunk(image, chunk);
    if (image->busy == 0)
        end_part(image);
}

static void part_opened(struct event *event)
{
    struct image *image = CONTAINER_OF(event, struct image, job.done);
    held_enter_far(image->checkpoint, &image->far_hold);
    if (image->fault.code != 0 || !pass_start_asked(image))
        end_part(image);
}

/* ---- the beginning ---- */

static int new_part(struct image **out, struct checkpoint *checkpoint,
                    const struct shard_wait *wait)
{
    struct service *service = wait->service;
    struct shard_geometry geometry;
    uint32_t segments = pool_size(service->pool) / PART_SHARE;
    int error = file_geometry(&geometry, checkpoint->manifest, wait->shard);
    if (error == 0 && wait->from_byte >= geometry.table_start)
        error = report_error(ERR_INVALID, NULL, "byte %llu of shard %u is no tensor data",
                             (unsigned long long)wait->from_byte, wait->shard);
    if (error == 0)
        error = image_new_window(out, service, &geometry, segments > 0 ? segments : 1);
    if (error != 0)
        return error;
    struct image *image = *out;
    uint32_t chunk = want_chunk(service, wait->from_byte);
    image->num_missing = image->num_chunks;
    image->first_chunk = chunk - chunk % image->num_rooms;
    image->end_chunk = image->first_chunk + image->num_rooms;
    if (image->end_chunk > image->num_chunks)
        image->end_chunk = image->num_chunks;
    for (uint32_t i = image->first_chunk; i < image->end_chunk; i++)
        image_chunk(image, i)->index = i;
    error = image_take_segments(image, (struct pool_owner){.run = checkpoint->run->tag});
    if (error != 0)
        image_free(image);
    return error;
}

struct image *part_held(const struct load *load, const struct shard_wait *wait)
{
    struct image *image = load->shards[wait->shard].held;
    bool has = image && image->is_window &&
               image_has_chunk(image, want_chunk(wait->service, wait->from_byte));
    return has ? image : NULL;
}

int part_load(struct load *load, struct shard_wait *wait)
{
    struct checkpoint *checkpoint = load->checkpoint;
    struct image *image = NULL;
    load_hold(load, wait->shard, NULL); /* the part before */
    int error = new_part(&image, checkpoint, wait);
    if (error != 0)
        return error;
    image->state = IMAGE_READING;
    image->tier = catalog_shard_source(checkpoint, wait->shard);
    image->checkpoint = checkpoint;
    image->shard = wait->shard;
    image->waiting = wait;
    image->in_pass = true;
    image->pass = PASS_READ;
    image->read_until = load->number; /* never lent as from memory */
    image->readers++;
    image->advance = chunk_advanced;
    image->table_hash = checkpoint->manifest->shards[wait->shard].table_hash;
    image->identity =
        checksum_shard_identity(checkpoint->summary.nonce, wait->shard, checkpoint->summary.shards);
    catalog_lease(checkpoint);
    want_ask(load, image);
    want_ask_from(image, wait->from_byte);
    pass_open_file(image, part_opened);
    return 0;
}
