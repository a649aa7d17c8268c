/* image.c - the bytes of a shard in memory, with the passes that hash, write and read them.
 *
 * An image is a list of pool segments and a row of chunks. A chunk is the unit of I/O, whole
 * checksum blocks, and lies in one segment, so each transfer is one request from one fixed buffer.
 * A pass takes chunks through their steps:
 *
 *     STAGE    write; beside it worker: hash the blocks, add the digests
 *     REWRITE  write
 *     READ     read; then worker: hash the blocks
 *
 * and each chunk ends with one event on the service thread, even after an error. Every block is
 * hashed once, in the memory that is written (or lent). The device does not wait for the hashing of
 * a STAGE, which gets little processor time while ranks copy: only the table does. So a chunk that
 * touches the table is only hashed, and written after all others were hashed; stage.c does that
 * with image_write_chunk. A load reads chunk by chunk, as it needs them: an image for a READ may
 * hold only parts of its file.
 *
 * An image may be a window: its segments and chunks are a ring over the file, and stage.c moves it.
 *
 * reclaim.c reclaims unused memory. */
#include "ckptd/memory/image.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/pool.h"
#include "proto/base/array.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/format/shard.h"
#include "proto/layout/layout.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- geometry ---- */

void image_chunk_range(const struct image *image, uint32_t index, uint64_t *out_start,
                       uint64_t *out_end)
{
    uint64_t bytes = (uint64_t)image->service->config->block_bytes;
    *out_start = index * bytes;
    *out_end = *out_start + bytes;
    if (*out_end > image->geometry.file_bytes)
        *out_end = image->geometry.file_bytes;
}

bool image_chunk_is_tail(const struct image *image, uint32_t index)
{
    uint64_t start, end;
    image_chunk_range(image, index, &start, &end);
    return end > image->geometry.table_start;
}

uint32_t image_tail_chunks(const struct service *service, const struct shard_geometry *geometry)
{
    uint64_t bytes = (uint64_t)service->config->block_bytes;
    return (uint32_t)((geometry->file_bytes + bytes - 1) / bytes - geometry->table_start / bytes);
}

struct chunk *image_chunk(const struct image *image, uint32_t index)
{
    return &image->chunks[index % image->num_rooms];
}

uint32_t image_segments_needed(const struct service *service, uint64_t file_bytes)
{
    uint64_t segment = pool_segment_bytes(service->pool);
    uint64_t needed = (file_bytes + segment - 1) / segment;
    CHECK(needed < UINT32_MAX); /* SHARD_TABLE_BYTES_MAX, and a segment has 1 MiB or more */
    return (uint32_t)needed;
}

/* The pool segment of a byte of the file; in a window, the segment that it shares with others. */
static uint32_t segment_of(const struct image *image, uint64_t offset)
{
    uint64_t index = offset / pool_segment_bytes(image->service->pool);
    CHECK(image->num_segments > 0 && (index < image->num_segments || image->is_window));
    return image->segments[index % image->num_segments];
}

static uint8_t *address(const struct image *image, uint64_t offset)
{
    uint64_t segment = pool_segment_bytes(image->service->pool);
    return pool_base(image->service->pool, segment_of(image, offset)) + offset % segment;
}

/* The part of [offset, offset + bytes) that lies in the segment of `offset`. */
static uint64_t in_segment(const struct image *image, uint64_t offset, uint64_t bytes)
{
    uint64_t segment = pool_segment_bytes(image->service->pool);
    uint64_t left = segment - offset % segment;
    return left < bytes ? left : bytes;
}

void image_put(struct image *image, uint64_t offset, const void *data, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        uint64_t now = in_segment(image, offset + done, bytes - done);
        memcpy(address(image, offset + done), (const uint8_t *)data + done, now);
        done += now;
    }
}

void image_get(const struct image *image, uint64_t offset, void *out, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        uint64_t now = in_segment(image, offset + done, bytes - done);
        memcpy((uint8_t *)out + done, address(image, offset + done), now);
        done += now;
    }
}

/* ---- hashing, on a worker ---- */

/* Digests of the tensor bytes in [start, end) of the file, at `data`. Elements never straddle the
 * border: borders are multiples of 8, and so is the place of every tensor of 8-byte elements, and
 * so on down. */
static void add_digests(struct image *image, struct digest *digests, const uint8_t *data,
                        uint64_t start, uint64_t end)
{
    uint64_t skip = start < image->geometry.data_start ? image->geometry.data_start - start : 0;
    if (start + skip >= end)
        return;
    uint64_t from = start + skip - image->geometry.data_start;
    uint64_t to = end - image->geometry.data_start;
    data += skip;
    for (uint32_t i = layout_tensor_at(image->tensors, image->num_tensors, from);
         i < image->num_tensors; i++) {
        const struct shard_tensor *tensor = &image->tensors[i];
        if (tensor->data_byte >= to)
            break;
        const struct tensor_meta *meta = &image->metas[tensor->tensor];
        uint32_t size = dtype_bytes(meta->dtype);
        uint64_t first = tensor->data_byte > from ? tensor->data_byte : from;
        uint64_t last = tensor->data_byte + tensor->bytes;
        last = last < to ? last : to;
        struct digest part = {{0, 0}};
        box_digest(&part, &tensor->box, meta, (first - tensor->data_byte) / size,
                   (last - first) / size, data + (first - from));
        pthread_mutex_lock(&image->mutex);
        digest_merge(&digests[i], &part);
        pthread_mutex_unlock(&image->mutex);
    }
}

struct block_at {
    struct image *image;
    uint64_t start; /* of the block in the file */
};

static void add_piece(void *user, size_t at, size_t bytes)
{
    const struct block_at *block = user;
    uint64_t start = block->start + at;
    add_digests(block->image, block->image->digests, address(block->image, start), start,
                start + bytes);
}

/* Digests are computed before the checksum, piece by piece: they take longer than memory needs to
 * deliver the bytes. */
static void hash_chunk(struct chunk *chunk)
{
    struct image *image = chunk->image;
    uint64_t start, end;
    image_chunk_range(image, chunk->index, &start, &end);
    if (end > image->geometry.table_start)
        end = image->geometry.table_start;
    for (uint64_t at = start; at < end;) {
        uint64_t block = at / CHECKSUM_BLOCK_BYTES, block_start, bytes;
        shard_block(&block_start, &bytes, &image->geometry, block);
        CHECK(block_start == at && at + bytes <= end);
        const uint8_t *data = address(image, at);
        struct block_at here = {image, at};
        image->sums[block] =
            image->pass == PASS_STAGE
                ? checksum_block_beside(data, bytes, image->identity, block, add_piece, &here)
                : checksum_block(data, bytes, image->identity, block);
        at += bytes;
    }
}

bool image_fits(struct image *image, uint64_t block, const uint8_t *data, struct digest *digests)
{
    uint64_t start, bytes;
    shard_block(&start, &bytes, &image->geometry, block);
    add_digests(image, digests, data, start, start + bytes);
    return checksum_block(data, bytes, image->identity, block) == image->sums[block];
}

/* ---- the steps of a chunk ---- */

/* Ends a step; the last one reports the chunk. The service thread is woken when the pass's last
 * chunk ends, after an error, for a window, which moves with each chunk, and for chunks that
 * throttle_queue.c awaits. */
static void end_step(struct chunk *chunk)
{
    struct image *image = chunk->image;
    if (atomic_fetch_sub(&chunk->steps, 1) > 1)
        return;
    loop_post_counted(image->service->loop, &chunk->reported, &image->unfinished,
                      chunk->request.error != 0 || image->is_window || chunk->is_awaited);
}

/* Formats the error of a chunk's transfer. */
static void explain_chunk(struct fault *out, const struct chunk *chunk)
{
    const struct storage_request *request = &chunk->request;
    out->code = request->error;
    snprintf(out->message, sizeof out->message, "a block could not be %s",
             request->op == STORAGE_READ ? "read" : "written");
    snprintf(out->detail, sizeof out->detail, "byte %llu of shard %u: %s",
             (unsigned long long)request->offset, chunk->image->shard,
             request->error_number ? strerror(request->error_number) : err_text(request->error));
}

/* On the service thread. */
static void chunk_reported(struct event *event)
{
    struct chunk *chunk = CONTAINER_OF(event, struct chunk, reported);
    struct image *image = chunk->image;
    image->busy--;
    if (chunk->request.error != 0 && image->fault.code == 0)
        explain_chunk(&image->fault, chunk);
    image->advance(image, chunk);
}

/* On a thread of the storage. */
static void chunk_transferred(struct storage_request *request)
{
    struct chunk *chunk = CONTAINER_OF(request, struct chunk, request);
    if (request->error == 0 && request->op == STORAGE_READ)
        loop_work(chunk->image->service->loop, &chunk->job); /* its next step runs there */
    else
        end_step(chunk);
}

struct storage *image_storage(const struct image *image)
{
    const struct service *service = image->service;
    return image->tier == TIER_LOCAL ? service->storage : service->tiers[image->tier].storage;
}

static void transfer_chunk(struct chunk *chunk, enum storage_op op)
{
    struct image *image = chunk->image;
    uint64_t start, end;
    image_chunk_range(image, chunk->index, &start, &end);
    chunk->request = (struct storage_request){
        .op = op,
        .object = image->object,
        .offset = start,
        .data = address(image, start),
        .bytes = (uint32_t)(end - start),
        .buffer = image->tier == TIER_LOCAL ? (int32_t)segment_of(image, start) : -1,
        .given_up = &image->stopped,
        .done = chunk_transferred,
    };
    storage_submit(image_storage(image), &chunk->request);
}

/* On a worker. */
static void work_chunk(struct job *job)
{
    struct chunk *chunk = CONTAINER_OF(job, struct chunk, job);
    if (!atomic_load(&chunk->image->stopped))
        hash_chunk(chunk);
    end_step(chunk);
}

/* Prepares the chunk for that many steps. */
static struct chunk *take_chunk(struct image *image, uint32_t index, uint32_t steps)
{
    struct chunk *chunk = image_chunk(image, index);
    CHECK(chunk->index == index);
    chunk->request.error = 0;
    atomic_store(&chunk->steps, steps);
    image->busy++;
    atomic_fetch_add(&image->unfinished, 1);
    return chunk;
}

void image_write_chunk(struct image *image, uint32_t index)
{
    transfer_chunk(take_chunk(image, index, 1), STORAGE_WRITE);
}

void image_start_chunk(struct image *image, uint32_t index)
{
    bool reads = image->pass == PASS_READ;
    bool writes = image->pass == PASS_REWRITE ||
                  (image->pass == PASS_STAGE && !image_chunk_is_tail(image, index));
    bool hashes = image->pass == PASS_STAGE;
    struct chunk *chunk = take_chunk(image, index, (uint32_t)reads + writes + hashes);
    if (reads || writes)
        transfer_chunk(chunk, reads ? STORAGE_READ : STORAGE_WRITE);
    if (hashes)
        loop_work(image->service->loop, &chunk->job);
}

void image_rewrite(struct image *image)
{
    CHECK(image->busy == 0 && !image->is_window);
    image->pass = PASS_REWRITE;
    image->fault = (struct fault){0};
    for (uint32_t i = 0; i < image->num_chunks; i++)
        image_start_chunk(image, i);
}

/* ---- the table ---- */

int image_make_table(uint8_t **out, uint64_t *out_bytes, uint64_t *out_hash,
                     const struct image *image)
{
    uint64_t bytes = image->geometry.file_bytes - image->geometry.table_start;
    uint8_t *table = malloc(bytes);
    if (!table)
        return report_error(ERR_MEMORY, NULL, "no memory for a checksum table of %llu bytes",
                            (unsigned long long)bytes);
    *out_hash = shard_table_write(table, &image->geometry, image->sums);
    *out = table;
    *out_bytes = bytes;
    return 0;
}

bool image_has_table(const struct image *image, uint32_t index, const uint8_t *table)
{
    uint64_t start, end, table_start = image->geometry.table_start;
    image_chunk_range(image, index, &start, &end);
    start = start > table_start ? start : table_start;
    return start >= end ||
           memcmp(address(image, start), table + (start - table_start), end - start) == 0;
}

/* ---- life ---- */

int image_new(struct image **out, struct service *service, const struct shard_geometry *geometry,
              uint32_t max_segments)
{
    uint64_t chunk_bytes = (uint64_t)service->config->block_bytes;
    uint32_t needed = image_segments_needed(service, geometry->file_bytes);
    uint64_t num_chunks = (geometry->file_bytes + chunk_bytes - 1) / chunk_bytes;
    if (num_chunks > UINT32_MAX)
        return report_error(ERR_SPACE, "raise storage.block_bytes",
                            "a file of %llu bytes has too many blocks",
                            (unsigned long long)geometry->file_bytes);
    struct image *image = calloc(1, sizeof *image);
    if (!image)
        return report_error(ERR_MEMORY, NULL, "no memory for an image");
    pthread_mutex_init(&image->mutex, NULL);
    image->service = service;
    image->geometry = *geometry;
    image->num_chunks = (uint32_t)num_chunks;
    image->is_window = max_segments < needed;
    image->max_segments = image->is_window ? max_segments : needed;
    image->num_rooms = image->num_chunks;
    if (image->is_window)
        image->num_rooms =
            (uint32_t)(image->max_segments * (pool_segment_bytes(service->pool) / chunk_bytes));
    image->chunks = calloc(image->num_rooms, sizeof *image->chunks);
    image->reading.file = (struct read_file){.file_bytes = geometry->file_bytes,
                                             .data_start = geometry->data_start,
                                             .table_start = geometry->table_start,
                                             .chunk_bytes = chunk_bytes};
    image->reading.chunks = calloc(image->num_rooms, sizeof *image->reading.chunks);
    image->sums = calloc(geometry->num_blocks, sizeof *image->sums);
    image->segments = calloc(image->max_segments, sizeof *image->segments);
    image->generations = calloc(image->max_segments, sizeof *image->generations);
    image->next = service->images;
    if (image->next)
        image->next->prev = image;
    service->images = image;
    if (!image->chunks || !image->reading.chunks || !image->sums || !image->segments ||
        !image->generations) {
        image_free(image);
        return report_error(ERR_MEMORY, NULL, "no memory for an image of %llu bytes",
                            (unsigned long long)geometry->file_bytes);
    }
    for (uint32_t i = 0; i < image->num_rooms; i++) {
        struct chunk *chunk = &image->chunks[i];
        chunk->image = image;
        chunk->index = i;
        chunk->job.work = work_chunk;
        chunk->reported.run = chunk_reported;
    }
    *out = image;
    return 0;
}

void image_free(struct image *image)
{
    struct service *service = image->service;
    CHECK(image->busy == 0 && image->readers == 0 && !image->checkpoint && !image->object);
    if (image->slot)
        *image->slot = NULL;
    if (image->prev)
        image->prev->next = image->next;
    else
        service->images = image->next;
    if (image->next)
        image->next->prev = image->prev;
    pool_give(service->pool, image->segments, image->num_segments);
    pthread_mutex_destroy(&image->mutex);
    free(image->segments);
    free(image->generations);
    free(image->chunks);
    free(image->reading.chunks);
    free(image->sums);
    free(image->digests);
    free(image);
}

bool image_settle(struct image *image)
{
    struct service *service = image->service;
    bool idle = image->state == IMAGE_SPARE || image->state == IMAGE_ENDING;
    if (!idle || image->slot || image->checkpoint || image->readers > 0 || image->busy > 0 ||
        image->in_hand)
        return false;
    image_free(image);
    service_retry_waiting(service);
    return true;
}

void image_let_go(struct image *image)
{
    struct service *service = image->service;
    if (!image->in_hand)
        return;
    image->in_hand = false;
    if (!image_settle(image))
        service_retry_waiting(service); /* it may be reclaimed */
}

int image_enter_checkpoint(struct image *image, struct checkpoint *checkpoint, uint32_t shard)
{
    if (!checkpoint->images)
        checkpoint->images = calloc(checkpoint->summary.shards, sizeof(struct image *));
    if (!checkpoint->images)
        return report_error(ERR_MEMORY, NULL, "no memory for the images of a checkpoint");
    CHECK(!checkpoint->images[shard]);
    checkpoint->images[shard] = image;
    checkpoint->num_images++;
    image->checkpoint = checkpoint;
    image->shard = shard;
    return 0;
}

void image_detach(struct image *image)
{
    struct checkpoint *checkpoint = image->checkpoint;
    image->checkpoint = NULL;
    if (!checkpoint || catalog_image(checkpoint, image->shard) != image)
        return; /* a part of a shard, or an image that was never entered */
    checkpoint->images[image->shard] = NULL;
    if (--checkpoint->num_images > 0)
        return;
    free(checkpoint->images); /* the list of checkpoints may be long, and few are in memory */
    checkpoint->images = NULL;
}

void image_leave_checkpoint(struct image *image)
{
    image_detach(image);
    image->state = IMAGE_SPARE;
    image_settle(image);
}

bool image_is_wanted(const struct image *image)
{
    const struct checkpoint *checkpoint = image->checkpoint;
    return checkpoint && checkpoint->uses && checkpoint->uses[image->shard].loads > 0;
}

void image_drop_unwanted(struct image *image)
{
    const struct checkpoint *checkpoint = image->checkpoint;
    if (image->state == IMAGE_RESIDENT && image->readers == 0 && !image_is_wanted(image) &&
        checkpoint != catalog_newest(checkpoint->run))
        image_leave_checkpoint(image);
}

void image_end_reading(struct image *image)
{
    image->readers--;
    if (image->state == IMAGE_RESIDENT)
        image_drop_unwanted(image);
    else
        image_settle(image);
}
