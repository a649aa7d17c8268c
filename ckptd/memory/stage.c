/* stage.c - one rank's part of a save: announced ranges become a durable file.
 *
 *   begin ──► create (worker: file reserved, header into the image)
 *     │           │
 *     │ ranges    ▼
 *     └──► a chunk whose every byte is announced ──gate──► hashed + written
 *                                                        │ all
 *                                                        ▼
 *                          table (worker: checksums into the image) ──► last chunks written
 *                                                        │ all, and the rank has announced END
 *                                                        ▼
 *                          compared ──► sync ──► (read back) ──► closed ──► durable
 *
 * announce.c checks the announcements and moves windows: a window holds a part of the file at a
 * time.
 *
 * A rank may report the digests of its tensors at their source, such as a GPU's memory. ckptd
 * compares them with the digests of the received bytes: a copy that changed a bit fails the save.
 *
 * A failed sync is final for that file: ckptd writes the shard once more to a new file, from the
 * image. If that fails too, the store goes offline: ckptd saves nothing more until an operator
 * acts. A window no longer holds the whole shard: then the save fails.
 *
 * Stopping waits for I/O in progress, then removes the file, then reports. */
#include "ckptd/memory/stage.h"
#include "ckptd/core/ledger.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/announce.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/session.h"
#include "ckptd/memory/throttle_queue.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/base/toml.h"
#include "proto/format/shard.h"
#include "proto/wire/arena.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void advance_stage(struct stage *stage);

/* Every failure of a stage passes here, with its fault. A disk error after a failed sync is the
 * disk's second one; a full disk, or a lack of memory, does not count as one. */
static void stage_failed(struct stage *stage, const char *reason)
{
    if (stage->rewritten && (stage->fault.code == ERR_IO || stage->fault.code == ERR_DENIED))
        service_go_offline(stage->service,
                           "the sync of a shard failed, and so did writing it to a new file");
    stage->options.events->failed(stage, reason);
}

static void fail_stage(struct stage *stage, int code, const char *reason)
{
    if (stage->fault.code == 0)
        fault_take(&stage->fault, code);
    stage_failed(stage, reason);
}

/* ---- create ---- */

static int put_header(struct stage *stage)
{
    struct image *image = stage->image;
    uint64_t bytes = image->geometry.data_start;
    uint8_t *header = malloc(bytes);
    if (!header)
        return report_error(ERR_MEMORY, NULL, "no memory for a header of %llu bytes",
                            (unsigned long long)bytes);
    int error = shard_header_write(header, &image->geometry, stage->options.table,
                                   &stage->options.identity);
    if (error == 0) {
        CHECK(shard_header_hash(&stage->header_hash, header, bytes));
        image_put(image, 0, header, bytes);
    }
    free(header);
    return error;
}

/* On a worker. Also for the second file. */
static int create_file(struct stage *stage)
{
    struct service *service = stage->service;
    char key[STORAGE_KEY_MAX];
    int error = shard_key(key, sizeof key, &stage->options.identity);
    if (error == 0)
        error = storage_object_create(service->storage, &stage->image->object, key,
                                      stage->image->geometry.file_bytes);
    if (error == 0 && !stage->rewritten)
        error = put_header(stage);
    return error;
}

static void work_create(struct job *job)
{
    struct stage *stage = CONTAINER_OF(job, struct stage, job);
    int error = stage->options.events->prepare(stage);
    if (error == 0)
        error = create_file(stage);
    if (error != 0)
        fault_take(&stage->job_fault, error);
}

/* Starts the stage's one job. */
static void start_job(struct stage *stage, void (*work)(struct job *), void (*done)(struct event *))
{
    CHECK(!stage->has_job);
    stage->has_job = true;
    stage->job = (struct job){.work = work, .done.run = done};
    loop_work(stage->service->loop, &stage->job);
}

/* The stage of a finished job; NULL if it failed or the save is over: then all is handled. */
static struct stage *end_job(struct event *event, const char *reason)
{
    struct stage *stage = CONTAINER_OF(event, struct stage, job.done);
    stage->has_job = false;
    if (stage->stopping) {
        advance_stage(stage);
        return NULL;
    }
    if (stage->job_fault.code != 0) {
        if (stage->fault.code == 0)
            stage->fault = stage->job_fault;
        stage_failed(stage, reason);
        return NULL;
    }
    return stage;
}

static void created(struct event *event)
{
    struct stage *stage = end_job(event, "its file could not be created");
    if (!stage)
        return;
    stage->created = true;
    struct image *image = stage->image;
    ledger_take(&image->service->ledger, stage->options.promise, image->geometry.file_bytes, 1);
    for (uint32_t i = 0; i < image->num_chunks && i < image->num_rooms; i++) {
        uint64_t start, end;
        image_chunk_range(image, i, &start, &end);
        if (image_chunk(image, i)->unannounced == 0 && start < image->geometry.table_start)
            throttle_queue_start_chunk(image, i);
    }
}

/* ---- table, sync, close ---- */

static void work_table(struct job *job)
{
    struct stage *stage = CONTAINER_OF(job, struct stage, job);
    uint8_t *table = NULL;
    uint64_t bytes;
    int error = image_make_table(&table, &bytes, &stage->table_hash, stage->image);
    if (error == 0)
        image_put(stage->image, stage->image->geometry.table_start, table, bytes);
    else
        fault_take(&stage->job_fault, error);
    free(table);
}

static void table_made(struct event *event)
{
    struct stage *stage = end_job(event, "its checksum table could not be made");
    if (!stage)
        return;
    stage->tabled = true;
    stage->readback = (struct readback){.image = stage->image,
                                        .identity = &stage->options.identity,
                                        .table = stage->options.table,
                                        .table_hash = stage->table_hash};
    for (uint32_t i = stage->image->num_chunks - stage->num_tail; i < stage->image->num_chunks; i++)
        image_write_chunk(stage->image, i);
}

static void work_close(struct job *job)
{
    struct stage *stage = CONTAINER_OF(job, struct stage, job);
    storage_object_close(stage->service->storage, stage->image->object);
}

static void closed(struct event *event)
{
    struct stage *stage = CONTAINER_OF(event, struct stage, job.done);
    stage->image->object = NULL;
    stage->durable = true;
    if (!end_job(event, NULL))
        return;
    stage->options.events->durable(stage);
}

static void work_replace(struct job *job)
{
    struct stage *stage = CONTAINER_OF(job, struct stage, job);
    struct service *service = stage->service;
    char key[STORAGE_KEY_MAX];
    storage_object_close(service->storage, stage->image->object);
    stage->image->object = NULL;
    int error = shard_key(key, sizeof key, &stage->options.identity);
    if (error == 0)
        error = storage_remove(service->storage, key);
    if (error == 0)
        error = create_file(stage);
    if (error != 0)
        fault_take(&stage->job_fault, error);
}

static void replaced(struct event *event)
{
    struct stage *stage = end_job(event, "its file could not be replaced after a failed sync");
    if (!stage)
        return;
    stage->unwritten = stage->image->num_chunks;
    image_rewrite(stage->image);
}

static void shard_read_back(struct event *event);

static void work_read_back(struct job *job)
{
    struct stage *stage = CONTAINER_OF(job, struct stage, job);
    int error = readback_step(&stage->readback, &stage->is_read_back);
    if (error != 0)
        fault_take(&stage->job_fault, error);
}

static void close_or_read(struct stage *stage)
{
    if (stage->is_read_back || !stage->service->config->verify_after_write)
        start_job(stage, work_close, closed);
    else
        start_job(stage, work_read_back, shard_read_back);
}

static void shard_read_back(struct event *event)
{
    struct stage *stage = end_job(event, "its file was read back (storage.verify_after_write)");
    if (stage)
        close_or_read(stage);
}

/* On a thread of the storage. */
static void sync_done(struct storage_request *request)
{
    struct stage *stage = CONTAINER_OF(request, struct stage, sync);
    loop_post(stage->service->loop, &stage->synced);
}

static void synced(struct event *event)
{
    struct stage *stage = CONTAINER_OF(event, struct stage, synced);
    stage->syncing = false;
    if (stage->stopping) {
        advance_stage(stage);
        return;
    }
    if (stage->sync.error == 0) {
        close_or_read(stage);
        return;
    }
    log_warn("stage", "run %s, step %llu: the sync of shard %u failed: %s",
             stage->options.identity.run, (unsigned long long)stage->options.identity.step,
             stage->rank,
             stage->sync.error_number ? strerror(stage->sync.error_number)
                                      : err_text(stage->sync.error));
    if (!stage->rewritten && !stage->image->is_window) {
        stage->rewritten = true;
        start_job(stage, work_replace, replaced);
        return;
    }
    if (stage->image->is_window)
        report_error(
            stage->sync.error, "the next save writes a new file; if it fails too, replace the disk",
            "the sync of shard %u failed, and its bytes are no longer in memory", stage->rank);
    else
        report_error(stage->sync.error, "replace the disk, then restart ckptd",
                     "two syncs of shard %u failed", stage->rank);
    fail_stage(stage, stage->sync.error, "its file could not be synced");
}

static void start_sync(struct stage *stage)
{
    stage->syncing = true;
    stage->sync = (struct storage_request){
        .op = STORAGE_SYNC, .object = stage->image->object, .buffer = -1, .done = sync_done};
    stage->synced = (struct event){.run = synced};
    storage_submit(stage->service->storage, &stage->sync);
}

/* ---- digests of the rank ---- */

/* ERR_CORRUPT names the first tensor whose bytes here have another digest than at the rank. */
static int compare_told(const struct stage *stage)
{
    const struct image *image = stage->image;
    for (uint32_t i = 0; stage->told && i < image->num_tensors; i++) {
        const struct told_digest *told = &stage->told[i];
        if (told->sums != TOLD_BOTH ||
            memcmp(&told->digest, &image->digests[i], sizeof told->digest) == 0)
            continue;
        return report_error(
            ERR_CORRUPT, "if it happens again, test the GPU, its link and the memory of its host",
            "tensor %s of shard %u has another digest in ckptd's memory than at its source",
            image->metas[image->tensors[i].tensor].name, stage->rank);
    }
    return 0;
}

static void compare_and_sync(struct stage *stage)
{
    if (stage->fault.code != 0)
        return; /* it has failed, and is not stopped yet */
    int error = compare_told(stage);
    if (error != 0)
        fail_stage(stage, error, "a copy into ckptd's memory changed its bytes");
    else
        start_sync(stage);
}

/* ---- stopping ---- */

static void work_remove(struct job *job)
{
    struct stage *stage = CONTAINER_OF(job, struct stage, job);
    struct service *service = stage->service;
    char key[STORAGE_KEY_MAX];
    if (stage->image->object)
        storage_object_close(service->storage, stage->image->object);
    stage->image->object = NULL;
    /* A file that cannot be removed now is rubbish that the next start removes. */
    if (shard_key(key, sizeof key, &stage->options.identity) == 0)
        storage_remove(service->storage, key);
}

static void removed(struct event *event)
{
    struct stage *stage = CONTAINER_OF(event, struct stage, job.done);
    stage->has_job = false;
    stage->options.events->stopped(stage);
}

void stage_stop(struct stage *stage)
{
    stage->stopping = true;
    announce_give_up(stage);
    atomic_store(&stage->image->stopped, true);
    throttle_queue_drop(stage->image);
    advance_stage(stage);
}

/* ---- the next step ---- */

static void advance_stage(struct stage *stage)
{
    struct image *image = stage->image;
    if (stage->stopping) {
        if (image->busy > 0 || stage->has_job || stage->syncing || stage->removing)
            return;
        stage->removing = true;
        start_job(stage, work_remove, removed);
        return;
    }
    if (!stage->tabling && stage->unhashed == 0 && stage->unwritten == stage->num_tail) {
        stage->tabling = true;
        start_job(stage, work_table, table_made);
        return;
    }
    if (stage->tabled && stage->unwritten == 0 && stage->ended && !stage->syncing &&
        !stage->has_job && !stage->durable)
        compare_and_sync(stage);
}

/* A chunk was hashed (one that touches the table, the first time), or written, and hashed as
 * well. */
static void chunk_advanced(struct image *image, struct chunk *chunk)
{
    struct stage *stage = image->stage;
    throttle_queue_chunk_ended(chunk);
    if (stage->stopping) {
        advance_stage(stage);
        return;
    }
    if (image->fault.code != 0) {
        if (stage->fault.code == 0)
            stage->fault = image->fault;
        stage_failed(stage, "its file could not be written");
        return;
    }
    if (!stage->tabled && image_chunk_is_tail(image, chunk->index)) {
        stage->unhashed--;
    } else {
        stage->unwritten--;
        chunk->is_written = true;
        stage->options.events->advanced(stage);
    }
    if (image->is_window)
        announce_move_window(stage);
    advance_stage(stage);
}

uint64_t stage_written(const struct stage *stage)
{
    const struct image *image = stage->image;
    uint32_t index = stage->released;
    uint64_t start, end = 0;
    if (!image || stage->stopping || (stage->rewritten && !stage->durable))
        return 0;
    while (index < image->num_chunks && index - stage->released < image->num_rooms &&
           image_chunk(image, index)->is_written)
        index++;
    if (index > 0)
        image_chunk_range(image, index - 1, &start, &end);
    return end;
}

/* ---- announcements ---- */

void stage_entry(struct session *session, const struct arena_entry *entry)
{
    if (entry->kind == ARENA_ENTRY_END)
        session_let_go(session, entry->save);
    struct stage *stage = entry->image < SLOTS_PER_RANK ? session->slot_stages[entry->image] : NULL;
    /* A rank may announce bytes of a save before it hears that it was given up. */
    if (!stage || stage->options.save_id != entry->save || stage->stopping)
        return;
    int error = announce_take(stage, entry);
    if (error != 0) {
        fail_stage(stage, error, "it broke the announcement rules");
        return;
    }
    if (entry->kind == ARENA_ENTRY_END) {
        stage->options.events->ended(stage);
        advance_stage(stage);
    }
}

/* ---- begin ---- */

void stage_leave_session(struct session *session)
{
    for (uint32_t i = 0; i < SLOTS_PER_RANK; i++) {
        if (session->slot_stages[i])
            session->slot_stages[i]->session = NULL;
        session->slot_stages[i] = NULL;
    }
}

void stage_hurry(struct stage *stage)
{
    if (stage->image)
        stage->image->is_urgent = true;
}

int stage_begin(struct stage *stage, const struct stage_options *options, struct session *session,
                uint32_t slot)
{
    struct image *image = session->slots[slot];
    CHECK(image && image->state == IMAGE_SPARE && image->busy == 0 && image->num_segments > 0);
    if (!image->digests)
        image->digests = calloc(options->num_tensors + 1, sizeof *image->digests);
    if (!image->digests || announce_open(stage, options->num_items) != 0)
        return report_error(ERR_MEMORY, NULL, "no memory for the stage of a save");
    memset(image->digests, 0, options->num_tensors * sizeof *image->digests);
    image->state = IMAGE_STAGING;
    image->pass = PASS_STAGE;
    image->fault = (struct fault){0};
    image->shard = session->rank;
    image->tensors = options->tensors;
    image->num_tensors = options->num_tensors;
    image->metas = options->table->tensors;
    image->identity =
        checksum_shard_identity(options->identity.nonce, session->rank, options->identity.shards);
    image->advance = chunk_advanced;
    image->stage = stage;
    image->is_urgent = options->is_urgent;
    atomic_store(&image->stopped, false);
    stage->options = *options;
    stage->service = session->service;
    stage->rank = session->rank;
    stage->session = session;
    stage->slot = slot;
    stage->image = image;
    stage->unwritten = image->num_chunks;
    stage->num_tail = image_tail_chunks(image->service, &image->geometry);
    for (uint32_t i = image->num_chunks - stage->num_tail; i < image->num_chunks; i++) {
        uint64_t start, end;
        image_chunk_range(image, i, &start, &end);
        stage->unhashed += start < image->geometry.table_start;
    }
    announce_start(stage);
    session->slot_stages[slot] = stage;
    session->slot_ids[slot] = options->save_id;
    image->in_hand = true;
    start_job(stage, work_create, created);
    return 0;
}
