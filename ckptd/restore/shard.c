/* shard.c - LoadShard: performs the decisions of machines/read_plan.c for a call.
 *
 *   LoadShard ──► in memory ──► lent at once
 *             └─► a pass over it is in progress, or begins now (pump.c) ──► lent
 *
 * A shard from disk is lent as far as it is verified, in one piece: the ranks copy while the rest
 * is read. Bytes before the requested one are not lent, even in the same segment: they may not have
 * been read. Calls for one shard share one pass. A shard that is larger than the pool is lent in
 * parts.
 *
 * The image of a save is in segments that ranks mapped, and ckptd cannot know which processes still
 * map them: bytes that ckptd verified there could change before or during a reader's copy. So ckptd
 * verifies none of it and lends it whole, with the checksums by which the reader verifies its own
 * copies. If these do not match, the reader asks for the file, and the image is dropped. A reader
 * that does not verify is lent the file as well.
 *
 * If a shard is damaged or missing on disk, ckptd reads it from the next tier that has the
 * checkpoint whole. Without such a tier it quarantines the checkpoint: the calls fail with
 * ERR_CORRUPT, and later loads pass it over.
 *
 * Limit: memory: a LoadShard waits limits.load_wait_ms for segments, in order, then ERR_BUSY. */
#include "ckptd/restore/shard.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/pool.h"
#include "ckptd/restore/lease.h"
#include "ckptd/restore/loads.h"
#include "ckptd/restore/pump.h"
#include "proto/base/report.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdlib.h>

static void begin_wait(struct shard_wait *wait);

/* ---- lending ---- */

/* Answers with the bytes of the image from the requested one on, in one piece, and frees `wait`. */
static void lend_shard(struct shard_wait *wait, struct image *image)
{
    Holdfast__V1__LoadShardReply reply = HOLDFAST__V1__LOAD_SHARD_REPLY__INIT;
    uint64_t segment = pool_segment_bytes(wait->service->pool);
    uint64_t start = image->reading.first * image->reading.file.chunk_bytes;
    uint64_t skip = (wait->read.from_byte - start) / segment;
    struct load *load;
    int error = load_find(&load, wait->service, wait->load);
    if (error != 0) {
        rpc_call_fail(wait->call, error);
        free(wait);
        return;
    }
    load_hold(load, wait->shard, image);
    reply.segments = image->segments + skip;
    reply.part_start = start + skip * segment;
    reply.part_bytes = read_plan_lend_end(&wait->read, &image->reading) - reply.part_start;
    reply.n_segments = (reply.part_bytes + segment - 1) / segment;
    reply.bytes = image->geometry.file_bytes;
    if (image->run) {
        reply.table_start = image->geometry.table_start;
        reply.table_hash = image->table_hash;
        reply.identity = image->identity;
    }
    /* The answer is not "memory" if the bytes were read while this load was open, whichever load
     * they were read for. */
    bool from_memory = image->state != IMAGE_READING && load->number > image->read_until;
    reply.tier = from_memory ? "memory" : (char *)(uintptr_t)tier_name(wait->service, image->tier);
    rpc_call_reply(wait->call, &reply.base);
    free(wait);
}

static struct shard_wait *take_waiting(struct image *image)
{
    struct shard_wait *first = image->waiting;
    image->waiting = NULL;
    return first;
}

void shard_verified(struct image *image)
{
    struct shard_wait *wait = take_waiting(image);
    while (wait) {
        struct shard_wait *next = wait->next;
        lend_shard(wait, image);
        wait = next;
    }
}

void shard_grew(struct image *image)
{
    struct shard_wait **at = &image->waiting;
    while (*at) {
        struct shard_wait *wait = *at;
        if (!read_plan_may_lend(&wait->read, &image->reading)) {
            at = &wait->next;
            continue;
        }
        *at = wait->next;
        lend_shard(wait, image);
    }
}

/* Notes damage of the image's file, which makes the fault ERR_CORRUPT. True: only the copy in that
 * tier is damaged, and another tier has the checkpoint whole. */
static bool note_damage(const struct image *image, struct fault *fault)
{
    struct checkpoint *checkpoint = image->checkpoint;
    if (!read_plan_is_damage(fault->code, image->tier))
        return false;
    if (image->tier == TIER_LOCAL && checkpoint->uses)
        checkpoint->uses[image->shard].is_bad_here = true;
    if (!checkpoint->damaged && !copies_at(checkpoint, image->tier)->is_damaged)
        catalog_damage(checkpoint, image->tier, fault);
    fault->code = ERR_CORRUPT;
    return !checkpoint->damaged;
}

void shard_failed(struct image *image)
{
    struct fault fault = image->fault;
    struct shard_wait *wait = take_waiting(image);
    bool is_elsewhere = note_damage(image, &fault);
    image_leave_checkpoint(image);
    while (wait) {
        struct shard_wait *next = wait->next;
        if (!is_elsewhere) {
            rpc_call_fail(wait->call, fault_raise(&fault));
            free(wait);
        } else {
            begin_wait(wait);
        }
        wait = next;
    }
}

/* ---- waiting for memory ---- */

static void fail_wait(struct shard_wait *wait, int error)
{
    loop_timer_cancel(wait->service->loop, &wait->timer);
    rpc_call_fail(wait->call, error);
    free(wait);
}

static void starve(struct shard_wait *wait)
{
    struct service *service = wait->service;
    struct shard_wait **at = &service->loads->starved;
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
    struct shard_wait **at = &wait->service->loads->starved;
    while (*at != wait)
        at = &(*at)->next;
    *at = wait->next;
    fail_wait(wait, report_error(ERR_BUSY, "enlarge memory.pool_bytes, or load with fewer ranks",
                                 "no memory became free for shard %u within limits.load_wait_ms",
                                 wait->shard));
}

void shard_retry_starved(struct service *service)
{
    struct shard_wait *wait = service->loads->starved;
    service->loads->starved = NULL;
    while (wait) {
        struct shard_wait *next = wait->next;
        begin_wait(wait); /* it waits again, in the same order, while memory is short */
        wait = next;
    }
}

/* ---- the call ---- */

/* The call waits for the next pass over the image, or for the one in progress. */
static void wait_for(struct image *image, struct shard_wait *wait)
{
    wait->next = image->waiting;
    image->waiting = wait;
}

/* While its file is opened or closed the call waits for the end of the pass: a reader that has all
 * it needs then leaves an idle image, whose memory a save may take. */
static void join_pass(struct shard_wait *wait, struct image *image)
{
    wait_for(image, wait);
    read_plan_ask_from(&image->reading, wait->read.from_byte);
    pump_start(image);
    if (image->reading.state == READ_RUNNING)
        shard_grew(image);
}

/* The load releases its former image, whose memory may be needed. */
static void make_image(struct shard_wait *wait, struct load *load)
{
    load_hold(load, wait->shard, NULL);
    int error = pump_read(load->checkpoint, wait->shard, wait);
    if (error == ERR_BUSY)
        starve(wait);
    else if (error != 0)
        fail_wait(wait, error);
    else
        loop_timer_cancel(wait->service->loop, &wait->timer);
}

static void drop_image(const struct shard_wait *wait, struct image *image)
{
    const struct checkpoint *checkpoint = image->checkpoint;
    if (image->run && wait->read.from_file)
        log_error("restore",
                  "run %s, step %llu: shard %u was changed in memory after the save; it is read "
                  "from disk",
                  checkpoint->run->name, (unsigned long long)checkpoint->summary.step,
                  image->shard);
    image_leave_checkpoint(image);
}

/* Lends the requested bytes, or reads them, or waits for them. */
static void answer_call(struct shard_wait *wait, struct load *load)
{
    const struct checkpoint *checkpoint = load->checkpoint;
    const struct manifest_shard *saved = &checkpoint->manifest->shards[wait->shard];
    struct image *image = catalog_image(checkpoint, wait->shard), *held = load->held[wait->shard];
    const struct read_found found = {.image = image ? &image->reading : NULL,
                                     .part = held && held->is_window ? &held->reading : NULL,
                                     .is_of_save = image && image->run,
                                     .is_right = image && image->table_hash == saved->table_hash,
                                     .is_in_parts = pump_is_in_parts(checkpoint, wait->shard),
                                     .bytes = saved->bytes};
    enum read_answer due =
        read_plan_call(&wait->read, &found, (uint64_t)wait->service->config->block_bytes);
    wait->next = NULL;
    if (due == READ_ANSWER_REPLACE)
        drop_image(wait, image);
    if (due == READ_ANSWER_REPLACE || due == READ_ANSWER_MAKE || due == READ_ANSWER_MAKE_PART) {
        make_image(wait, load);
        return;
    }
    if (due == READ_ANSWER_BEYOND) {
        fail_wait(wait, report_error(ERR_INVALID, NULL, "byte %llu of shard %u lies beyond its end",
                                     (unsigned long long)wait->read.from_byte, wait->shard));
        return;
    }
    loop_timer_cancel(wait->service->loop, &wait->timer);
    if (due == READ_ANSWER_WAIT) {
        join_pass(wait, image);
    } else if (due == READ_ANSWER_READ) {
        wait_for(image, wait);
        pump_begin(image);
    } else {
        lend_shard(wait, due == READ_ANSWER_LEND_PART ? held : image);
    }
}

static void begin_wait(struct shard_wait *wait)
{
    struct load *load;
    int error = load_find(&load, wait->service, wait->load);
    if (error == 0 && load->checkpoint->damaged)
        error = report_error(ERR_CORRUPT, "load another step", "the checkpoint is damaged: %s",
                             load->checkpoint->damage);
    if (error != 0)
        fail_wait(wait, error);
    else
        answer_call(wait, load);
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
                                .read = {.from_byte = request->from_byte,
                                         .checks = request->checks,
                                         .from_file = request->from_file},
                                .timer.run = starved_to_death};
    begin_wait(wait);
}

void shard_fail_starved(struct service *service)
{
    while (service->loads->starved) {
        struct shard_wait *wait = service->loads->starved;
        service->loads->starved = wait->next;
        fail_wait(wait, report_error(ERR_UNAVAILABLE, NULL, "ckptd ends"));
    }
}
