/* shard.c - LoadShard: shards that are proven before they are lent.
 *
 *   LoadShard ──► in memory, verified ──► lent at once
 *             └─► in memory: VERIFY pass, else READ pass ──► table, manifest ──► lent
 *
 * Nothing is lent whose every block was not hashed and compared, whatever tier it came from. An
 * image whose writer is still connected is verified for each LoadShard, because the writer may
 * still write; without a writer once is enough. Calls for one shard share one pass.
 *
 * Damage in memory drops the image and reads the file. Damage on disk, a shard that is missing or
 * cannot be read, quarantines the checkpoint: ERR_CORRUPT now, and passed over from then on.
 *
 * Limit: memory: a LoadShard waits limits.load_wait_ms for segments, in order, then ERR_BUSY. */
#include "ckptd/restore/restore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- passes ---- */

static void begin_wait(struct shard_wait *wait);

static void lend(struct shard_wait *wait, struct image *image)
{
    struct load *load;
    int error = load_find(&load, wait->service, wait->load);
    if (error != 0) {
        rpc_call_fail(wait->call, error);
        free(wait);
        return;
    }
    if (!load->held[wait->shard]) {
        load->held[wait->shard] = image;
        image->readers++;
    }
    Holdfast__V1__LoadShardReply reply = HOLDFAST__V1__LOAD_SHARD_REPLY__INIT;
    reply.segments = image->segments;
    reply.n_segments = image->num_segments;
    reply.bytes = image->geometry.file_bytes;
    reply.tier = wait->from_memory ? "memory" : "local";
    rpc_call_reply(wait->call, &reply.base);
    free(wait);
}

static struct shard_wait *take_waiting(struct image *image)
{
    struct shard_wait *first = image->waiting;
    image->waiting = NULL;
    return first;
}

static void pass_succeeded(struct image *image)
{
    struct shard_wait *wait = take_waiting(image);
    if (image->state == IMAGE_READING) {
        image->service->stats.bytes_read += image->geometry.file_bytes;
        image->state = IMAGE_RESIDENT;
    }
    image->verified = image->session == NULL;
    while (wait) {
        struct shard_wait *next = wait->next;
        lend(wait, image);
        wait = next;
    }
}

/* The image is not what the manifest says, or could not be read. */
static void pass_failed(struct image *image)
{
    struct checkpoint *checkpoint = image->checkpoint;
    struct fault fault = image->fault;
    struct shard_wait *wait = take_waiting(image);
    bool from_disk = image->state == IMAGE_READING;
    bool damage = fault.code == ERR_CORRUPT || fault.code == ERR_NOT_FOUND || fault.code == ERR_IO;
    if (!from_disk)
        log_error("restore",
                  "run %s, step %llu: shard %u was changed in memory after the save; it "
                  "is read from disk: %s",
                  checkpoint->run->name, (unsigned long long)checkpoint->summary.step, image->shard,
                  fault.message);
    else if (damage && !checkpoint->damaged)
        catalog_damage(checkpoint, &fault);
    if (damage)
        fault.code = ERR_CORRUPT;
    image_leave_checkpoint(image);
    while (wait) {
        struct shard_wait *next = wait->next;
        if (from_disk) {
            rpc_call_fail(wait->call, fault_raise(&fault));
            free(wait);
        } else {
            begin_wait(wait);
        }
        wait = next;
    }
}

static void pass_ended(struct event *event)
{
    struct image *image = CONTAINER_OF(event, struct image, job.done);
    struct checkpoint *checkpoint = image->checkpoint;
    struct service *service = image->service;
    image->readers--; /* the pass itself */
    if (image->fault.code == 0)
        pass_succeeded(image);
    else
        pass_failed(image);
    lease_drop(checkpoint);
    restore_wake(service); /* nobody may want the image any more */
}

static void work_end_pass(struct job *job)
{
    struct image *image = CONTAINER_OF(job, struct image, job);
    const struct manifest *manifest = image->checkpoint->manifest;
    if (image->object)
        storage_object_close(image->service->storage, image->object);
    image->object = NULL;
    int error = image->fault.code == 0
                    ? image_check_table(image, manifest->shards[image->shard].table_hash)
                    : 0;
    if (error != 0)
        fault_take(&image->fault, error);
}

static void end_pass(struct image *image)
{
    image->job = (struct job){.work = work_end_pass, .done.run = pass_ended};
    loop_work(image->service->loop, &image->job);
}

static void chunk_advanced(struct image *image, struct chunk *chunk)
{
    (void)chunk;
    if (image->busy == 0)
        end_pass(image);
}

/* A pass keeps its image and its checkpoint until pass_ended. */
static void hold_for_pass(struct image *image)
{
    image->readers++;
    lease_take(image->checkpoint);
    image->advance = chunk_advanced;
    image->fault = (struct fault){0};
    atomic_store(&image->stopped, false);
    image->identity = checksum_shard_identity(image->checkpoint->summary.nonce, image->shard,
                                              image->checkpoint->summary.shards);
}

/* On a worker. */
static void work_open_file(struct job *job)
{
    struct image *image = CONTAINER_OF(job, struct image, job);
    const struct manifest_summary *summary = &image->checkpoint->summary;
    struct shard_identity identity = {.step = summary->step,
                                      .attempt = summary->attempt,
                                      .shard = image->shard,
                                      .shards = summary->shards};
    char key[STORAGE_KEY_MAX];
    uint64_t bytes = 0;
    snprintf(identity.run, sizeof identity.run, "%s", summary->run);
    pool_clean(image->service->pool, image->segments, image->num_segments);
    int error = shard_key(key, sizeof key, &identity);
    if (error == 0)
        error = storage_object_open(image->service->storage, &image->object, key, &bytes);
    if (error == 0 && bytes != image->geometry.file_bytes)
        error =
            report_error(ERR_CORRUPT, NULL, "shard %u has %llu bytes instead of %llu", image->shard,
                         (unsigned long long)bytes, (unsigned long long)image->geometry.file_bytes);
    if (error != 0)
        fault_take(&image->fault, error);
}

static void file_opened(struct event *event)
{
    struct image *image = CONTAINER_OF(event, struct image, job.done);
    if (image->fault.code != 0)
        end_pass(image);
    else
        image_start_all(image, PASS_READ);
}

/* ERR_BUSY: no memory now. */
static int start_read(struct load *load, uint32_t shard)
{
    struct checkpoint *checkpoint = load->checkpoint;
    const struct manifest_shard *entry = &checkpoint->manifest->shards[shard];
    struct shard_tensor *tensors = NULL;
    struct shard_geometry geometry;
    struct image *image = NULL;
    uint32_t count;
    uint64_t bytes;
    int error = layout_shard_tensors(&tensors, &count, &bytes, checkpoint->manifest->table, shard);
    free(tensors);
    if (error == 0)
        error = shard_geometry_derive(&geometry, entry->data_start, bytes);
    if (error == 0)
        error = image_new(&image, load->service, &geometry);
    if (error != 0)
        return error;
    error = image_take_segments(image, checkpoint->run);
    if (error != 0) {
        image_free(image);
        return error;
    }
    image->state = IMAGE_READING;
    image->checkpoint = checkpoint;
    image->shard = shard;
    checkpoint->images[shard] = image;
    hold_for_pass(image);
    image->job = (struct job){.work = work_open_file, .done.run = file_opened};
    loop_work(load->service->loop, &image->job);
    return 0;
}

/* ---- LoadShard ---- */

static void fail_wait(struct shard_wait *wait, int error)
{
    loop_timer_cancel(wait->service->loop, &wait->timer);
    rpc_call_fail(wait->call, error);
    free(wait);
}

static void starve(struct shard_wait *wait)
{
    struct service *service = wait->service;
    struct shard_wait **at = &service->starved;
    while (*at)
        at = &(*at)->next;
    wait->next = NULL;
    *at = wait;
    if (!wait->timer.armed)
        loop_timer(service->loop, &wait->timer, service->config->limit_load_wait_ms);
}

static void starved_to_death(struct timer *timer)
{
    struct shard_wait *wait = CONTAINER_OF(timer, struct shard_wait, timer);
    struct shard_wait **at = &wait->service->starved;
    while (*at != wait)
        at = &(*at)->next;
    *at = wait->next;
    fail_wait(wait, report_error(ERR_BUSY, "enlarge memory.pool_bytes, or load with fewer ranks",
                                 "no memory became free for shard %u in limits.load_wait_ms",
                                 wait->shard));
}

static void wake_starved(struct timer *timer)
{
    struct service *service = CONTAINER_OF(timer, struct service, wake_timer);
    struct shard_wait *wait = service->starved;
    service->starved = NULL;
    while (wait) {
        struct shard_wait *next = wait->next;
        begin_wait(wait); /* starves again, in the same order, while memory is short */
        wait = next;
    }
}

void restore_wake(struct service *service)
{
    /* By a timer: whoever gives memory back is in the middle of something. */
    service->wake_timer.run = wake_starved;
    if (service->starved && !service->wake_timer.armed)
        loop_timer(service->loop, &service->wake_timer, 0);
}

/* Finds out what the call needs, and starts it or waits for it. */
static void begin_wait(struct shard_wait *wait)
{
    struct load *load;
    int error = load_find(&load, wait->service, wait->load);
    if (error == 0 && load->checkpoint->damaged)
        error = report_error(ERR_CORRUPT, "load another step", "the checkpoint is damaged: %s",
                             load->checkpoint->damage);
    if (error != 0) {
        fail_wait(wait, error);
        return;
    }
    struct image *image = load->checkpoint->images[wait->shard];
    wait->from_memory = image && image->state == IMAGE_RESIDENT;
    bool under_way = image && (image->state == IMAGE_READING || image->waiting);
    if (image && !under_way && (image->verified || load->held[wait->shard] == image)) {
        loop_timer_cancel(wait->service->loop, &wait->timer);
        lend(wait, image);
        return;
    }
    if (!image) {
        error = start_read(load, wait->shard);
        if (error != 0) {
            error == ERR_BUSY ? starve(wait) : fail_wait(wait, error);
            return;
        }
        image = load->checkpoint->images[wait->shard];
    } else if (!under_way) {
        hold_for_pass(image);
        image_start_all(image, PASS_VERIFY);
    }
    loop_timer_cancel(wait->service->loop, &wait->timer);
    wait->next = image->waiting;
    image->waiting = wait;
}

void restore_load_shard(struct service *service, struct rpc_call *call,
                        const Holdfast__V1__LoadShardRequest *request)
{
    struct load *load;
    struct shard_wait *wait = NULL;
    int error = service_check_open(service);
    if (error == 0)
        error = load_find(&load, service, request->load);
    if (error == 0 && request->shard >= load->checkpoint->summary.shards)
        error = report_error(ERR_INVALID, NULL, "shard %u of %u does not exist", request->shard,
                             load->checkpoint->summary.shards);
    if (error == 0 && (wait = calloc(1, sizeof *wait)) == NULL)
        error = report_error(ERR_MEMORY, NULL, "no memory to wait for a shard");
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    *wait = (struct shard_wait){.service = service,
                                .call = call,
                                .load = request->load,
                                .shard = request->shard,
                                .timer.run = starved_to_death};
    begin_wait(wait);
}

void shard_fail_starved(struct service *service)
{
    while (service->starved) {
        struct shard_wait *wait = service->starved;
        service->starved = wait->next;
        fail_wait(wait, report_error(ERR_UNAVAILABLE, NULL, "ckptd ends"));
    }
}
