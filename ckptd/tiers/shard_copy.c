/* shard_copy.c - copies one shard from one tier to another.
 *
 *   crew: source opened, its checksum table verified by the manifest; a file at the target with
 *   that name is kept if every block of it is right; else one is created, with its size
 *    ▼
 *   parts, several at once: read (from the image while it is in memory, else from the file), every
 *   block compared with the table, SHA-256 of the part ──► sent
 *    ▼
 *   crew: synced, closed ──► arrived
 *
 * A damaged file at the target stays until its successor beside it is durable and was read back
 * whole; then that takes its name. In a tier that cannot rename (a bucket, a peer) the file is
 * removed first, after the source was verified: its good blocks may be the last ones.
 *
 * The bytes are verified in the buffer that is sent, so late writes of a rank into an image, or
 * read errors of a disk, are found here and never sent. An image is held only while a part of it is
 * copied: a rank that needs it for its next save waits a few milliseconds at most. A part that is
 * wrong in an image is read from the file; if it is wrong there, the source is damaged.
 *
 * Of a save that is not committed (precommit_copy.c) a part is sent when its chunks are in the file
 * here: the sums by which they were hashed become the table, entry by entry. If the shard is at
 * another node the sums are computed from the received bytes. shard_copy_start() continues after
 * the last of those parts whose entries equal those of the manifest's table.
 *
 * throttle.c delays parts: a rate, and the quiet phases of the ranks, for which a checkpoint waits
 * pace.quiet_wait_ms in all. While a client waits for the checkpoint nothing is delayed.
 *
 * Memory: tier.connections buffers of tier.part_bytes for the far tier, TIER_PEER_PARTS for each
 * peer, but PEER_BUFFERS for all peers together (buffers.h); and 65 bytes per part. */
#include "ckptd/tiers/shard_copy.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/session.h"
#include "ckptd/memory/stage.h"
#include "ckptd/tiers/copy_io.h"
#include "ckptd/tiers/space_check.h"
#include "proto/base/checksum.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "storage/storage.h"

#include <stdlib.h>

#define PEER_BUFFERS 16u /* for all peers, at most, unless one needs more */

/* ---- the end ---- */

static void free_shard(struct shard_copy *copy)
{
    free(copy->file.table);
    free(copy->sums);
    copy->file.table = NULL;
    copy->sums = NULL;
}

static void start_job(struct shard_copy *copy, void (*work)(struct job *),
                      void (*done)(struct event *))
{
    copy->is_working = true;
    copy->job = (struct job){.work = work, .done.run = done};
    tier_work(copy->service, tier_of_crew(copy->from, copy->to), &copy->job);
}

static void ended(struct event *event)
{
    struct shard_copy *copy = CONTAINER_OF(event, struct shard_copy, job.done);
    copy->is_under_way = copy->is_working = false;
    if (copy->is_early) {
        copy->at_rest(copy);
        return;
    }
    free_shard(copy);
    copy->arrived(copy);
}

static void leave_pace(struct shard_copy *copy)
{
    while (copy->num_paced > 0) {
        throttle_leave(&copy->queue->pace, clock_ms());
        copy->num_paced--;
    }
}

static void end(struct shard_copy *copy)
{
    leave_pace(copy);
    copy->is_ending = true;
    start_job(copy, copy_io_end, ended);
}

static void end_if_done(struct shard_copy *copy)
{
    if (copy->is_ending || copy->in_flight > 0)
        return;
    if (copy->fault.code != 0 || copy->num_sent == copy->num_parts) {
        end(copy);
    } else if (copy->is_stopped) {
        copy->is_under_way = false;
        copy->at_rest(copy);
    }
}

/* ---- a part ---- */

static void work_take(struct job *job)
{
    struct part *part = CONTAINER_OF(job, struct part, job);
    struct shard_copy *copy = part->copy;
    int error = 0;
    if (part->image) {
        image_get(part->image, part->start, part->data, part->bytes);
        error = copy_io_prove(copy, part->data, part->start, part->bytes);
        if (error == 0)
            error = copy_io_hash_part(copy, part->index, part->data, part->bytes);
    } else if (copy->is_early) {
        error = copy_io_read_early(copy, part->data, part->start, part->bytes);
    } else {
        error = copy_io_read_part(copy, copy->from, copy->file.object, part->data, part->index);
    }
    if (error != 0)
        fault_take(&part->fault, error);
}

static void work_send(struct job *job)
{
    struct part *part = CONTAINER_OF(job, struct part, job);
    struct shard_copy *copy = part->copy;
    const char *sha256 = tier_is_peer(copy->to) ? NULL : copy->sums[part->index];
    int error = storage_write_hashed(copy_io_storage(copy, copy->to), copy->target, part->start,
                                     part->data, part->bytes, sha256);
    if (error != 0)
        fault_take(&part->fault, error);
}

static void part_read(struct event *event);

/* The image that holds the shard, or NULL. */
static struct image *find_image(const struct shard_copy *copy)
{
    if (copy->is_early)
        return copy->stage ? copy->stage->image : NULL;
    struct image *image =
        copy->is_from_file ? NULL : catalog_image(copy->checkpoint, copy->file.shard);
    bool is_usable = image && image->state == IMAGE_RESIDENT && image->reading.num_missing == 0 &&
                     !image->is_window &&
                     image->table_hash == copy->file.manifest->shards[copy->file.shard].table_hash;
    return is_usable ? image : NULL;
}

static void read_part(struct part *part)
{
    struct shard_copy *copy = part->copy;
    part->image = find_image(copy);
    part->fault = (struct fault){0};
    if (part->image)
        part->image->readers++;
    part->job = (struct job){.work = work_take, .done.run = part_read};
    tier_work(copy->service, tier_of_crew(copy->from, copy->to), &part->job);
}

static void end_part(struct part *part)
{
    part->is_busy = false;
    part->copy->in_flight--;
    part->copy->queue->in_flight--;
    buffers_give(part->copy->queue->buffers, part->data);
}

static void fail_part(struct part *part, bool is_of_source)
{
    struct shard_copy *copy = part->copy;
    struct buffers *buffers = copy->queue->buffers;
    end_part(part);
    if (copy->fault.code == 0) {
        copy->fault = part->fault;
        copy->is_of_source = is_of_source;
    }
    end_if_done(copy);
    buffers_wake_waiters(buffers);
}

static void sent(struct event *event)
{
    struct part *part = CONTAINER_OF(event, struct part, job.done);
    struct shard_copy *copy = part->copy;
    if (part->fault.code != 0) {
        fail_part(part, false);
        return;
    }
    struct copy_queue *queue = copy->queue;
    end_part(part);
    copy->num_sent++;
    copy->bytes_sent += part->bytes;
    buffers_wake_waiters(queue->buffers);
    copy_queue_advance(queue);
    end_if_done(copy);
}

/* Releases the image to its owner. */
static void leave_image(struct part *part)
{
    struct image *image = part->image;
    struct service *service = image->service;
    part->image = NULL;
    image_end_reading(image); /* its save may have been given up, and its rank gone */
    service_retry_waiting(service);
    service_retry_saves(service);
}

static void part_read(struct event *event)
{
    struct part *part = CONTAINER_OF(event, struct part, job.done);
    struct shard_copy *copy = part->copy;
    bool was_image = part->image != NULL;
    if (was_image)
        leave_image(part);
    if (part->fault.code != 0 && was_image && !copy->is_early) {
        copy->is_from_file = true;
        read_part(part);
        return;
    }
    if (part->fault.code != 0 || copy->fault.code != 0) {
        fail_part(part, true);
        return;
    }
    if (was_image)
        copy->bytes_from_memory += part->bytes;
    part->job = (struct job){.work = work_send, .done.run = sent};
    tier_work(copy->service, tier_of_crew(copy->from, copy->to), &part->job);
}

/* ---- when ---- */

static struct part *find_free(struct copy_queue *queue)
{
    for (uint32_t i = 0; i < queue->num_parts_max; i++)
        if (!queue->parts[i].is_busy)
            return &queue->parts[i];
    return NULL;
}

/* True: the part that begins now has its buffer. */
static bool take_buffer(struct part *part, struct copy_queue *queue)
{
    part->data = buffers_take(queue->buffers, &queue->waiter);
    return part->data;
}

/* May the next part begin? */
static bool is_time(struct shard_copy *copy, uint32_t bytes)
{
    struct service *service = copy->service;
    int64_t wait_ms;
    struct copy_queue *queue = copy->queue;
    if (copy->is_early && copy->num_paced == 0 && throttle_is_on(&queue->pace)) {
        throttle_enter(&queue->pace, clock_ms()); /* it queues at this moment */
        copy->num_paced++;
    }
    if (copy->is_hurried || copy->num_paced == 0)
        return true;
    const struct throttle_moment moment = {
        clock_ms(), queue->pace.options.quiet && session_num_busy(service) > 0, queue->in_flight};
    if (throttle_ask(&queue->pace, &moment, bytes, copy->stamp, &wait_ms) == THROTTLE_GO) {
        copy->num_paced--;
        return true;
    }
    if (wait_ms >= 0)
        loop_timer(service->loop, &queue->timer, wait_ms);
    return false;
}

/* Of an uncommitted save: are the bytes final, hashed and in the file? Chunks become so one by one;
 * the table follows all of them. For a file at another node its table proves nothing. */
static bool is_written(const struct shard_copy *copy, uint64_t start, uint64_t bytes)
{
    if (!copy->stage) /* precommit_copy.B5 */
        return start + bytes <= copy->written && start + bytes <= copy->file.geometry.table_start;
    const struct image *image = copy->stage->image;
    uint64_t size = (uint64_t)copy->service->config->block_bytes;
    for (uint64_t i = start / size; i * size < start + bytes; i++)
        if (!image_chunk(image, (uint32_t)i)->is_written)
            return false;
    return true;
}

/* Copies the sums of its blocks into the table, against which they are verified. */
static void note_sums(struct shard_copy *copy, uint64_t start, uint64_t bytes)
{
    const struct image *image = copy->stage->image;
    uint64_t end = start + bytes;
    if (end > copy->file.geometry.table_start)
        end = copy->file.geometry.table_start;
    for (uint64_t at = start; at < end; at += CHECKSUM_BLOCK_BYTES)
        shard_table_put(copy->file.table, at / CHECKSUM_BLOCK_BYTES,
                        image->sums[at / CHECKSUM_BLOCK_BYTES]);
}

static void send_parts(struct shard_copy *copy)
{
    if (!copy->is_under_way || copy->is_ending || copy->is_kept || copy->is_stopped)
        return;
    while (copy->next_part < copy->num_parts && copy->fault.code == 0) {
        struct part *part = find_free(copy->queue);
        uint64_t start;
        uint32_t bytes;
        copy_io_part_range(copy, copy->next_part, &start, &bytes);
        if (!part || !copy->target || (copy->is_early && !is_written(copy, start, bytes)) ||
            !take_buffer(part, copy->queue))
            return;
        if (!is_time(copy, bytes)) {
            buffers_give(copy->queue->buffers, part->data);
            return;
        }
        if (copy->stage)
            note_sums(copy, start, bytes);
        part->copy = copy;
        part->is_busy = true;
        part->index = copy->next_part++;
        part->start = start;
        part->bytes = bytes;
        copy->in_flight++;
        copy->queue->in_flight++;
        read_part(part);
    }
}

void copy_queue_advance(struct copy_queue *queue)
{
    for (struct shard_copy *copy = queue->ships; copy; copy = copy->next)
        send_parts(copy);
}

static void retry_parts(struct timer *timer)
{
    copy_queue_advance(CONTAINER_OF(timer, struct copy_queue, timer));
}

static void use_free_buffer(struct buffers_waiter *waiter)
{
    copy_queue_advance(CONTAINER_OF(waiter, struct copy_queue, waiter));
}

static void prepared(struct event *event)
{
    struct shard_copy *copy = CONTAINER_OF(event, struct shard_copy, job.done);
    struct copy_queue *queue = copy->queue;
    copy->is_working = false;
    space_end(&copy->room, copy->service); /* its promised space is a file now */
    if (copy->is_kept)
        copy->num_sent = copy->num_parts;
    else if (copy->fault.code == 0 && throttle_is_on(&queue->pace) && !copy->is_early) {
        for (; copy->num_paced < copy->num_parts - copy->next_part; copy->num_paced++)
            throttle_enter(&queue->pace, clock_ms());
    }
    copy_queue_advance(queue);
    end_if_done(copy);
}

/* ---- beginning ---- */

/* Resets the fields of the former shard. */
static void reset_shard(struct shard_copy *copy)
{
    CHECK(!copy->is_under_way && copy->in_flight == 0 && copy->num_paced == 0);
    copy->fault = (struct fault){0};
    copy->is_of_source = copy->is_kept = copy->is_from_file = copy->is_ending = false;
    copy->is_replacing = false;
    copy->next_part = copy->num_sent = copy->num_parts = 0;
    copy->is_under_way = true;
}

static int make_sums(struct shard_copy *copy)
{
    uint64_t size = (uint64_t)copy->service->config->tier_part_bytes;
    copy->num_parts = (copy->file.geometry.file_bytes + size - 1) / size;
    copy->sums = calloc(copy->num_parts, sizeof *copy->sums);
    return copy->sums ? 0 : report_error(ERR_MEMORY, NULL, "no memory for hashes of parts");
}

/* Starts the work; with an error the shard has failed already. */
static void start_work(struct shard_copy *copy, int error, void (*work)(struct job *))
{
    const struct config *config = copy->service->config;
    bool is_of_nodes = tier_is_peer(copy->from) || tier_is_peer(copy->to);
    copy->queue->pace.options.write_rate = is_of_nodes ? config->nodes_rate : config->tier_rate;
    if (error != 0) {
        fault_take(&copy->fault, error);
        end(copy);
    } else {
        start_job(copy, work, prepared);
    }
}

void shard_copy_start(struct shard_copy *copy, struct checkpoint *checkpoint,
                      const struct manifest *manifest, uint32_t shard, struct shard_copy *left)
{
    reset_shard(copy);
    copy->checkpoint = checkpoint;
    copy->left = left;
    if (checkpoint->places)
        copy->from = catalog_shard_source(checkpoint, shard);
    int error = store_shard_init(&copy->file, NULL, manifest, shard);
    start_work(copy, error != 0 ? error : make_sums(copy), copy_io_prepare);
}

static int begin_early(struct shard_copy *copy, uint32_t shard,
                       const struct shard_geometry *geometry, const struct manifest *manifest)
{
    reset_shard(copy);
    copy->is_early = true;
    copy->file = (struct store_shard){.manifest = manifest,
                                      .shard = shard,
                                      .identity = checksum_shard_identity(
                                          manifest->summary.nonce, shard, manifest->summary.shards),
                                      .geometry = *geometry};
    copy->stamp = copy->queue->pace.quiet_ms;
    copy->file.table = calloc(1, geometry->file_bytes - geometry->table_start);
    return copy->file.table ? make_sums(copy)
                            : report_error(ERR_MEMORY, NULL, "no memory for a checksum table");
}

void shard_copy_start_early(struct shard_copy *copy, struct stage *stage,
                            const struct manifest *manifest)
{
    int error = begin_early(copy, stage->rank, &stage->image->geometry, manifest);
    copy->stage = stage;
    start_work(copy, error, copy_io_prepare_early);
}

void shard_copy_start_pulled(struct shard_copy *copy, uint32_t rank, enum tier_index from,
                             const struct shard_geometry *geometry, const struct manifest *manifest)
{
    int error = begin_early(copy, rank, geometry, manifest);
    copy->from = from;
    if (error == 0 && copy->to == TIER_LOCAL)
        error = space_promise(&copy->room, copy->service, geometry->file_bytes, 1);
    start_work(copy, error, copy_io_prepare_early);
}

bool shard_copy_is_at_rest(const struct shard_copy *copy)
{
    return !copy->is_working && copy->in_flight == 0;
}

bool shard_copy_stop(struct shard_copy *copy)
{
    copy->stage = NULL;
    copy->is_stopped = true;
    leave_pace(copy);
    if (!shard_copy_is_at_rest(copy))
        return false;
    copy->is_under_way = false;
    return true;
}

void shard_copy_open(struct shard_copy *copy, struct copy_queue *queue)
{
    struct shard_copy **at = &queue->ships;
    *copy = (struct shard_copy){.queue = queue, .service = queue->service, .to = queue->to};
    while (*at)
        at = &(*at)->next;
    *at = copy;
}

void shard_copy_close(struct shard_copy *copy)
{
    struct shard_copy **at = &copy->queue->ships;
    while (*at != copy)
        at = &(*at)->next;
    *at = copy->next;
    copy_io_close(copy);
    space_end(&copy->room, copy->service);
    free_shard(copy);
}

/* ---- the queue ---- */

static int open_buffers(struct copy_queue *queue)
{
    struct service *service = queue->service;
    uint64_t bytes = (uint64_t)service->config->tier_part_bytes;
    if (!tier_is_peer(queue->to))
        return buffers_open(&queue->buffers, queue->num_parts_max, bytes);
    uint32_t each = queue->num_parts_max, all = each * service->config->members.count;
    uint32_t most = each > PEER_BUFFERS ? each : PEER_BUFFERS;
    if (!service->peer_buffers)
        ERR_TRY(buffers_open(&service->peer_buffers, all < most ? all : most, bytes));
    queue->buffers = service->peer_buffers;
    return 0;
}

int copy_queue_open(struct copy_queue *queue, struct service *service, enum tier_index to)
{
    const struct config *config = service->config;
    bool is_peer = tier_is_peer(to);
    uint32_t connections = is_peer ? TIER_PEER_PARTS : (uint32_t)config->tier_connections;
    const struct throttle_options options = {.write_rate =
                                                 is_peer ? config->nodes_rate : config->tier_rate,
                                             .quiet = config->tier_quiet,
                                             .quiet_wait_ms = config->pace_quiet_wait_ms,
                                             .in_flight_max = connections,
                                             .chunk_bytes = (uint32_t)config->tier_part_bytes};
    *queue = (struct copy_queue){.service = service,
                                 .to = to,
                                 .timer.run = retry_parts,
                                 .waiter.wake = use_free_buffer,
                                 .num_parts_max = connections};
    throttle_init(&queue->pace, &options);
    ERR_TRY(open_buffers(queue));
    queue->parts = calloc(connections, sizeof *queue->parts);
    return queue->parts ? 0 : report_error(ERR_MEMORY, NULL, "no memory for parts of shards");
}

void copy_queue_leave(struct copy_queue *queue)
{
    for (uint32_t i = 0; queue->parts && i < queue->num_parts_max; i++)
        if (queue->parts[i].image) {
            queue->parts[i].image->readers--;
            queue->parts[i].image = NULL;
        }
}

void copy_queue_close(struct copy_queue *queue)
{
    if (!tier_is_peer(queue->to))
        buffers_close(queue->buffers);
    queue->buffers = NULL;
    free(queue->parts);
    queue->parts = NULL;
}
