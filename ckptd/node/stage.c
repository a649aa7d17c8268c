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
 * Announcements come from shared memory and are hostile: the caller hands in private copies, and
 * every range is checked here. A range outside the tensors' bytes, or one that touches what was
 * announced before, is a breach that fails the save. What is announced is kept as a sorted list of
 * disjoint intervals; ranks announce mostly in order, so it stays short. Its limit is the number of
 * the rank's items and some; a rank that scatters more is in breach too.
 *
 * An image that is a window holds a part of the file at a time. When its first chunks are in the
 * file it moves on, and the control page tells the rank, which waits for room. What is announced
 * beyond the window is a breach; ckptd goes by its own numbers, never by the page.
 *
 * A rank may say which digests its tensors have where they are copied from, as a GPU's memory. Then
 * they are compared with those of the bytes that came: a copy that changed a bit fails the save.
 *
 * A sync that fails is final for that file: the shard is written once more to a new file, from the
 * image, and if the disk fails that too the store goes offline: nothing more is saved until a
 * person acts. A window does not hold the shard any more: then the save fails.
 *
 * Stopping waits for what is under way, then removes the file, then reports. */
#include "ckptd/node/stage.h"
#include "ckptd/ledger.h"
#include "ckptd/loop.h"
#include "ckptd/node/gate.h"
#include "ckptd/node/image.h"
#include "ckptd/node/readback.h"
#include "ckptd/node/session.h"
#include "ckptd/service.h"
#include "proto/arena.h"
#include "proto/checksum.h"
#include "proto/replica.h"
#include "proto/report.h"
#include "proto/shard.h"
#include "proto/toml.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCATTER_MAX 64u /* intervals allowed beyond the rank's items */

static void advance_stage(struct stage *stage);

/* Every failure of a stage goes through here, with its fault. One of the disk after a failed sync
 * is the disk's second; a full one, or a lack of memory, says nothing about it. */
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

/* ---- the window ---- */

/* Image bytes below this may be written and announced. */
static uint64_t window_end(const struct stage *stage)
{
    const struct image *image = stage->image;
    uint64_t chunk_bytes = (uint64_t)image->service->config->block_bytes;
    return image->is_window ? (stage->released + (uint64_t)image->num_rooms) * chunk_bytes
                            : image->geometry.file_bytes;
}

/* `end` 0: the save was given up, nobody needs to wait any more. */
static void tell_window(struct stage *stage, uint64_t end)
{
    struct session *session = stage->session;
    if (stage->image->is_window && session && session->control)
        arena_window_set(session->control, end > 0 ? stage->options.save_id : 0, end);
}

/* Chunk `index` comes into memory. */
static void open_chunk(struct image *image, uint32_t index)
{
    struct chunk *chunk = image_chunk(image, index);
    uint64_t start, end;
    image_chunk_range(image, index, &start, &end);
    start = start > image->geometry.data_start ? start : image->geometry.data_start;
    end = end < image->geometry.table_start ? end : image->geometry.table_start;
    chunk->index = index;
    chunk->is_written = false;
    chunk->unannounced = end > start ? end - start : 0;
}

/* Moves the window past its leading chunks that are in the file. The last ones stay: they wait for
 * the table, and all of them fit (session.c). */
static void move_window(struct stage *stage)
{
    struct image *image = stage->image;
    uint32_t before = stage->released;
    while (stage->released + stage->num_tail < image->num_chunks &&
           image_chunk(image, stage->released)->is_written) {
        uint32_t next = stage->released++ + image->num_rooms;
        if (next < image->num_chunks)
            open_chunk(image, next);
    }
    if (stage->released != before)
        tell_window(stage, window_end(stage));
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

/* On a worker. Also the second time, for a new file. */
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

/* The stage of a job that ended; NULL when it failed or the save is over: then all is seen to. */
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
            gate_start_chunk(image, i);
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

static void was_read_back(struct event *event);

static void work_read_back(struct job *job)
{
    struct stage *stage = CONTAINER_OF(job, struct stage, job);
    int error = readback_step(stage, &stage->is_read_back);
    if (error != 0)
        fault_take(&stage->job_fault, error);
}

static void close_or_read(struct stage *stage)
{
    if (stage->is_read_back || !stage->service->config->verify_after_write)
        start_job(stage, work_close, closed);
    else
        start_job(stage, work_read_back, was_read_back);
}

static void was_read_back(struct event *event)
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
        report_error(stage->sync.error,
                     "the next save writes a new file; if it fails too, replace the disk",
                     "the sync of shard %u failed, and its bytes have left memory", stage->rank);
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

/* ---- what came, and what its rank has ---- */

/* ERR_CORRUPT names the first tensor of which other bytes came than its rank has digested. */
static int compare_told(const struct stage *stage)
{
    const struct image *image = stage->image;
    for (uint32_t i = 0; stage->told && i < image->num_tensors; i++) {
        const struct told_digest *told = &stage->told[i];
        if (told->sums != TOLD_BOTH ||
            memcmp(&told->digest, &image->digests[i], sizeof told->digest) == 0)
            continue;
        return report_error(
            ERR_CORRUPT, "when it happens again test the GPU, its link and the memory of its host",
            "tensor %s of shard %u has another digest in ckptd's memory than where it was copied "
            "from",
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
    /* What cannot be removed now is rubbish that the next start removes. */
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
    tell_window(stage, 0);
    atomic_store(&stage->image->stopped, true);
    gate_drop(stage->image);
    advance_stage(stage);
}

/* ---- the next step, whatever it is ---- */

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

/* A chunk ended: hashed (one that touches the table, the first time), or written, also hashed. */
static void chunk_advanced(struct image *image, struct chunk *chunk)
{
    struct stage *stage = image->stage;
    gate_chunk_ended(chunk);
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
        move_window(stage);
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

/* Index of the first interval that ends at or after `at`. */
static uint32_t find_interval(const struct stage *stage, uint64_t at)
{
    uint32_t low = 0, high = stage->num_announced;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (stage->announced[middle].end < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Adds [start, end) to what is announced. */
static int add_interval(struct stage *stage, uint64_t start, uint64_t end)
{
    struct interval *list = stage->announced;
    uint32_t at = find_interval(stage, start);
    if (at < stage->num_announced && list[at].end == start) { /* it continues list[at] */
        bool joins = at + 1 < stage->num_announced && list[at + 1].start == end;
        if (at + 1 < stage->num_announced && list[at + 1].start < end)
            return report_error(ERR_INVALID, NULL, "bytes %llu to %llu were announced twice",
                                (unsigned long long)list[at + 1].start, (unsigned long long)end);
        list[at].end = joins ? list[at + 1].end : end;
        if (joins) {
            memmove(&list[at + 1], &list[at + 2], (stage->num_announced - at - 2) * sizeof *list);
            stage->num_announced--;
        }
        return 0;
    }
    if (at < stage->num_announced && list[at].start < end)
        return report_error(ERR_INVALID, NULL, "bytes %llu to %llu were announced twice",
                            (unsigned long long)list[at].start, (unsigned long long)end);
    if (at < stage->num_announced && list[at].start == end) { /* it leads up to list[at] */
        list[at].start = start;
        return 0;
    }
    if (stage->num_announced == stage->max_announced)
        return report_error(ERR_INVALID, "announce in the order of the image",
                            "more than %u separate ranges were announced", stage->max_announced);
    memmove(&list[at + 1], &list[at], (stage->num_announced - at) * sizeof *list);
    list[at] = (struct interval){start, end};
    stage->num_announced++;
    return 0;
}

/* The chunks of [start, end) have fewer bytes to wait for. */
static void count_range(struct stage *stage, uint64_t start, uint64_t end)
{
    struct image *image = stage->image;
    uint64_t chunk_bytes = (uint64_t)stage->service->config->block_bytes;
    stage->unannounced -= end - start;
    while (start < end) {
        uint32_t index = (uint32_t)(start / chunk_bytes);
        uint64_t border = (index + 1) * chunk_bytes;
        uint64_t now = (border < end ? border : end) - start;
        struct chunk *chunk = image_chunk(image, index);
        CHECK(chunk->index == index && chunk->unannounced >= now); /* the intervals are disjoint */
        chunk->unannounced -= now;
        if (chunk->unannounced == 0 && stage->created)
            gate_start_chunk(image, index);
        start += now;
    }
}

static int announce_range(struct stage *stage, uint64_t offset, uint64_t bytes)
{
    const struct shard_geometry *geometry = &stage->image->geometry;
    if (stage->ended)
        return report_error(ERR_INVALID, NULL, "a range was announced after the end");
    if (bytes == 0 || offset < geometry->data_start || offset >= geometry->table_start ||
        bytes > geometry->table_start - offset)
        return report_error(ERR_INVALID, NULL,
                            "the announced range of %llu bytes at %llu is not tensor data",
                            (unsigned long long)bytes, (unsigned long long)offset);
    if (offset + bytes > window_end(stage))
        return report_error(ERR_INVALID, "copy in the order of the image",
                            "the announced range of %llu bytes at %llu is beyond the window, which "
                            "ends at %llu",
                            (unsigned long long)bytes, (unsigned long long)offset,
                            (unsigned long long)window_end(stage));
    int error = add_interval(stage, offset, offset + bytes);
    if (error == 0)
        count_range(stage, offset, offset + bytes);
    return error;
}

static uint32_t replica_words(const struct stage *stage)
{
    return REPLICA_WORDS * stage->options.num_replicas;
}

int stage_take_replicas(struct stage *stage, const uint64_t *words, size_t count)
{
    uint32_t all = replica_words(stage);
    if (stage->ended || count > all - stage->num_replica_words)
        return report_error(ERR_INVALID, "client and ckptd may be of different versions",
                            "%zu words of digests of %u replicas were told %s", count,
                            stage->options.num_replicas,
                            stage->ended ? "after the end" : "and are too many");
    if (!stage->replicas)
        stage->replicas = malloc(all * sizeof *words + 1);
    if (!stage->replicas)
        return report_error(ERR_MEMORY, NULL, "no memory for the digests of %u replicas",
                            stage->options.num_replicas);
    if (count > 0)
        memcpy((uint64_t *)stage->replicas + stage->num_replica_words, words,
               count * sizeof *words);
    stage->num_replica_words += (uint32_t)count;
    return 0;
}

static int announce_end(struct stage *stage)
{
    if (stage->ended)
        return report_error(ERR_INVALID, NULL, "the end was announced twice");
    if (stage->unannounced > 0)
        return report_error(ERR_INVALID, NULL, "%llu bytes had not been announced at the end",
                            (unsigned long long)stage->unannounced);
    if (stage->replicas && stage->num_replica_words < replica_words(stage))
        return report_error(ERR_INVALID, NULL, "digests of replicas had not been told at the end");
    stage->ended = true;
    return 0;
}

/* One of the two sums of the tensor that begins at image byte `offset`. */
static int take_digest(struct stage *stage, uint64_t offset, uint32_t which, uint64_t sum)
{
    const struct image *image = stage->image;
    uint64_t data_start = image->geometry.data_start;
    uint64_t data_byte = offset > data_start ? offset - data_start : 0;
    if (stage->ended)
        return report_error(ERR_INVALID, NULL, "a digest was announced after the end");
    uint32_t at = layout_tensor_at(image->tensors, image->num_tensors, data_byte);
    if (offset < data_start || at == image->num_tensors ||
        image->tensors[at].data_byte != data_byte)
        return report_error(ERR_INVALID, NULL, "a digest was announced of no tensor, at byte %llu",
                            (unsigned long long)offset);
    if (!stage->told)
        stage->told = calloc(image->num_tensors, sizeof *stage->told);
    if (!stage->told)
        return report_error(ERR_MEMORY, NULL, "no memory for the digests of %u tensors",
                            image->num_tensors);
    stage->told[at].digest.sum[which] = sum;
    stage->told[at].sums |= 1u << which;
    return 0;
}

void stage_entry(struct session *session, const struct arena_entry *entry)
{
    if (entry->kind == ARENA_ENTRY_END)
        session_let_go(session, entry->save);
    struct stage *stage = entry->image < SLOTS_PER_RANK ? session->slot_stages[entry->image] : NULL;
    /* A rank may announce for a save that was given up before it heard of it. */
    if (!stage || stage->options.save_id != entry->save || stage->stopping)
        return;
    int error = ERR_INVALID;
    if (entry->kind == ARENA_ENTRY_RANGE)
        error = announce_range(stage, entry->offset, entry->bytes);
    else if (entry->kind == ARENA_ENTRY_END)
        error = announce_end(stage);
    else if (entry->kind == ARENA_ENTRY_DIGEST_0 || entry->kind == ARENA_ENTRY_DIGEST_1)
        error = take_digest(stage, entry->offset, entry->kind - ARENA_ENTRY_DIGEST_0, entry->bytes);
    else if (entry->kind == ARENA_ENTRY_REPLICA)
        error = stage_take_replicas(stage, (const uint64_t[]){entry->offset, entry->bytes}, 2);
    else
        report_error(ERR_INVALID, NULL, "an announcement of unknown kind %u came", entry->kind);
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
    stage->max_announced = options->num_items + SCATTER_MAX;
    stage->announced = calloc(stage->max_announced, sizeof *stage->announced);
    if (!image->digests)
        image->digests = calloc(options->num_tensors + 1, sizeof *image->digests);
    if (!stage->announced || !image->digests) {
        free(stage->announced);
        stage->announced = NULL;
        return report_error(ERR_MEMORY, NULL, "no memory for the stage of a save");
    }
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
    stage->unannounced = image->geometry.table_start - image->geometry.data_start;
    stage->num_tail = image_tail_chunks(image->service, &image->geometry);
    for (uint32_t i = image->num_chunks - stage->num_tail; i < image->num_chunks; i++) {
        uint64_t start, end;
        image_chunk_range(image, i, &start, &end);
        stage->unhashed += start < image->geometry.table_start;
    }
    for (uint32_t i = 0; i < image->num_chunks && i < image->num_rooms; i++)
        open_chunk(image, i);
    tell_window(stage, window_end(stage));
    session->slot_stages[slot] = stage;
    session->slot_ids[slot] = options->save_id;
    image->in_hand = true;
    start_job(stage, work_create, created);
    return 0;
}
