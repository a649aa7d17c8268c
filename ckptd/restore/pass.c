/* pass.c - proves an image: every block hashed, the table compared with the manifest's hash of it.
 *
 *   READ    worker: zero, open the file ──► chunks read and hashed ──► worker: table ──► proven
 *   VERIFY  chunks hashed where they lie in memory                 ──► worker: table ──► proven
 *
 * A pass keeps its image and its checkpoint. What it proves holds until a writer may touch the
 * image again: an image whose writer was connected when the pass began is proven for the calls that
 * wait for this pass and for no other.
 *
 * Bytes are counted as read from the device when they arrive, whatever becomes of the pass. */
#include "ckptd/restore/restore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the end ---- */

static void pass_ended(struct event *event)
{
    struct image *image = CONTAINER_OF(event, struct image, job.done);
    struct checkpoint *checkpoint = image->checkpoint;
    struct service *service = image->service;
    log_debug("restore", "run %s, step %llu: shard %u %s in %lld ms", checkpoint->run->name,
              (unsigned long long)checkpoint->summary.step, image->shard,
              image->state == IMAGE_READING ? "read" : "verified",
              (long long)(loop_now_ms() - image->pass_begun_ms));
    image->in_pass = false;
    image->readers--;
    if (image->fault.code != 0) {
        shard_failed(image);
    } else {
        if (image->state == IMAGE_READING)
            image->read_until = service->next_load;
        image->state = IMAGE_RESIDENT;
        image->verified = !image->had_writer;
        shard_proven(image);
        load_settle(image);
    }
    lease_drop(checkpoint);
    restore_wake(service); /* nobody may want the image any more */
}

static void work_end_pass(struct job *job)
{
    struct image *image = CONTAINER_OF(job, struct image, job);
    if (image->object)
        storage_object_close(image->service->storage, image->object);
    image->object = NULL;
    free(image->stored_table);
    image->stored_table = NULL;
    int error = image->fault.code == 0 ? image_check_table(image, image->table_hash) : 0;
    if (error != 0)
        fault_take(&image->fault, error);
}

static void end_pass(struct image *image)
{
    image->job = (struct job){.work = work_end_pass, .done.run = pass_ended};
    loop_work(image->service->loop, &image->job);
}

int pass_check_chunks(const struct image *image, uint32_t first, uint32_t end)
{
    uint64_t per_chunk = (uint64_t)image->service->config->block_bytes / CHECKSUM_BLOCK_BYTES;
    int error = 0;
    for (uint64_t i = first * per_chunk;
         i < image->geometry.num_blocks && i < end * per_chunk && error == 0; i++)
        error = file_check_block(image->stored_table, &image->geometry, i, image->sums[i],
                                 &image->checkpoint->summary, image->shard);
    return error;
}

/* A chunk was read: what is proven may reach further. */
static void prove_chunk(struct image *image, struct chunk *chunk)
{
    uint64_t start, end;
    image_chunk_range(image, chunk->index, &start, &end);
    image->service->stats.bytes_read += end - start;
    int error = pass_check_chunks(image, chunk->index, chunk->index + 1);
    if (error != 0 && image->fault.code == 0)
        fault_take(&image->fault, error);
    chunk->is_proven = error == 0;
    while (image->end_chunk < image->num_chunks && image_chunk(image, image->end_chunk)->is_proven)
        image->end_chunk++;
    shard_grew(image);
}

static void chunk_advanced(struct image *image, struct chunk *chunk)
{
    struct service *service = image->service;
    if (image->pass == PASS_READ && chunk->error == 0)
        prove_chunk(image, chunk);
    if (--service->chunks_in_passes + 1 == ahead_chunks(service))
        restore_wake(service);
    if (image->busy == 0)
        end_pass(image);
}

/* ---- the beginning ---- */

static void hold_for_pass(struct image *image)
{
    image->in_pass = true;
    image->pass_begun_ms = loop_now_ms();
    image->had_writer = image->session != NULL || image->in_hand;
    image->readers++;
    lease_take(image->checkpoint);
    image->service->chunks_in_passes += image->num_chunks;
    image->advance = chunk_advanced;
    image->fault = (struct fault){0};
    atomic_store(&image->stopped, false);
    image->identity = checksum_shard_identity(image->checkpoint->summary.nonce, image->shard,
                                              image->checkpoint->summary.shards);
}

int pass_open_file(struct image *image)
{
    const struct manifest_summary *summary = &image->checkpoint->summary;
    struct storage *storage = image->service->storage;
    int error = pool_clean(image->service->pool, image->segments, image->num_segments);
    if (error == 0)
        error =
            file_open(&image->object, storage, summary, image->shard, image->geometry.file_bytes);
    if (error == 0)
        error = file_read_table(&image->stored_table, storage, image->object, &image->geometry,
                                image->table_hash, summary, image->shard);
    return error;
}

static void work_open_file(struct job *job)
{
    struct image *image = CONTAINER_OF(job, struct image, job);
    int error = pass_open_file(image);
    if (error != 0)
        fault_take(&image->fault, error);
}

static void file_opened(struct event *event)
{
    struct image *image = CONTAINER_OF(event, struct image, job.done);
    if (image->fault.code == 0) {
        image_start_all(image, PASS_READ);
        return;
    }
    image->service->chunks_in_passes -= image->num_chunks;
    end_pass(image);
}

/* The chunks with which another part can be lent wake the service thread. */
static void await_parts(struct image *image)
{
    uint64_t start, end, part = shard_lend_bytes(image->service);
    for (uint32_t i = 0; i < image->num_chunks; i++) {
        image_chunk_range(image, i, &start, &end);
        image_chunk(image, i)->is_awaited = start / part != end / part;
    }
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
    error = image_take_segments(image, checkpoint->run);
    if (error == 0)
        error = image_enter_checkpoint(image, checkpoint, shard);
    if (error != 0) {
        image_detach(image);
        image_free(image);
        return error;
    }
    image->table_hash = checkpoint->manifest->shards[shard].table_hash;
    await_parts(image);
    hold_for_pass(image);
    image->job = (struct job){.work = work_open_file, .done.run = file_opened};
    loop_work(service->loop, &image->job);
    return 0;
}

void pass_verify(struct image *image)
{
    CHECK(image->state == IMAGE_RESIDENT && !image->in_pass);
    hold_for_pass(image);
    image_start_all(image, PASS_VERIFY);
}
