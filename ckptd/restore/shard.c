/* shard.c - LoadShard: shards are lent when they are proven, or for the reader to prove.
 *
 *   LoadShard ──► in memory ──► lent at once
 *             └─► a pass over it is under way, or started now (pass.c) ──► lent
 *
 * A shard that comes from disk is lent as far as it is proven, LEND_BYTES or more at a time, or as
 * much as comes in one piece: the ranks copy while the rest is read. What lies before the byte that
 * is asked for is not lent, even where it shares a segment with it: it may not have been read.
 *
 * What was read is lent when every block was hashed and compared, whatever tier it came from; only
 * ckptd writes to its segments. Calls for one shard share one pass.
 *
 * The image of a save lies in segments that ranks mapped, and ckptd cannot know who maps them
 * still: what it verified there could be changed before, or while, a reader copies it. So ckptd
 * verifies nothing of it; the reader verifies its own copies. Where they do not fit, it asks for
 * the file, and the image is dropped. To a reader that does not verify such an image is not lent at
 * all.
 *
 * Damage on disk, a shard that is missing or
 * cannot be read, has the next tier read that has the checkpoint whole; without one it quarantines
 * the checkpoint: ERR_CORRUPT now, and passed over from then on.
 *
 * A shard that is larger than the pool is lent in parts (join_part.c).
 *
 * Limit: memory: a LoadShard waits limits.load_wait_ms for segments, in order, then ERR_BUSY. */
#include "ckptd/restore/shard.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/image.h"
#include "ckptd/restore/lease.h"
#include "ckptd/restore/lend.h"
#include "ckptd/restore/loads.h"
#include "ckptd/restore/part.h"
#include "ckptd/restore/pass.h"
#include "ckptd/restore/want.h"
#include "proto/base/report.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void begin_wait(struct shard_wait *wait);

/* ---- lent, or not ---- */

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

/* Is there as much as is lent at once, or all that comes in one piece? */
static bool may_lend(struct shard_wait *wait, const struct image *image)
{
    if (!image_has_chunk(image, want_chunk(wait->service, wait->from_byte)))
        return false;
    return lend_end(wait, image) >= wait->from_byte + pass_lend_bytes(wait->service) ||
           wait->end_chunk >= image->end_chunk || !image_chunk(image, wait->end_chunk)->is_asked;
}

void shard_grew(struct image *image)
{
    struct shard_wait **at = &image->waiting;
    while (*at && image->state == IMAGE_READING && image->fault.code == 0) {
        struct shard_wait *wait = *at;
        if (!may_lend(wait, image)) {
            at = &wait->next;
            continue;
        }
        *at = wait->next;
        lend_shard(wait, image);
    }
}

void shard_failed(struct image *image)
{
    struct fault fault = image->fault;
    struct shard_wait *wait = take_waiting(image);
    bool is_elsewhere = lend_note_damage(image, &fault);
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
                                 "no memory became free for shard %u in limits.load_wait_ms",
                                 wait->shard));
}

void shard_retry_starved(struct service *service)
{
    struct shard_wait *wait = service->loads->starved;
    service->loads->starved = NULL;
    while (wait) {
        struct shard_wait *next = wait->next;
        begin_wait(wait); /* starves again, in the same order, while memory is short */
        wait = next;
    }
}

/* ---- the call ---- */

/* A read for the call was started, or there is an error. */
static void started(struct shard_wait *wait, int error)
{
    if (error == ERR_BUSY)
        starve(wait);
    else if (error != 0)
        fail_wait(wait, error);
    else
        loop_timer_cancel(wait->service->loop, &wait->timer);
}

/* Lent at once, or when the pass is over that is under way or starts now. */
static void lend_or_read(struct shard_wait *wait, struct image *image)
{
    loop_timer_cancel(wait->service->loop, &wait->timer);
    if (!image->in_pass && image_has_chunk(image, want_chunk(wait->service, wait->from_byte))) {
        lend_shard(wait, image);
        return;
    }
    wait->next = image->waiting;
    image->waiting = wait;
    if (!image->in_pass) {
        pass_begin(image);
        return;
    }
    want_ask_from(image, wait->from_byte);
    if (image->busy > 0) /* before and after that a worker has the fault */
        shard_grew(image);
}

/* Is the image of use to this call? Else the file decides. One that a pass reads is. */
static bool may_use(const struct shard_wait *wait, const struct image *image)
{
    const struct checkpoint *checkpoint = image->checkpoint;
    if (image->in_pass)
        return true;
    if (image->run && wait->from_file)
        log_error("restore",
                  "run %s, step %llu: shard %u was changed in memory after the save; it is read "
                  "from disk",
                  checkpoint->run->name, (unsigned long long)checkpoint->summary.step,
                  image->shard);
    return image->table_hash == checkpoint->manifest->shards[image->shard].table_hash &&
           (!image->run || (wait->checks && !wait->from_file));
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
    struct checkpoint *checkpoint = load->checkpoint;
    struct image *image = catalog_image(checkpoint, wait->shard);
    uint64_t bytes = checkpoint->manifest->shards[wait->shard].bytes;
    if (wait->from_byte >= bytes) {
        fail_wait(wait, report_error(ERR_INVALID, NULL, "byte %llu of shard %u lies behind its end",
                                     (unsigned long long)wait->from_byte, wait->shard));
        return;
    }
    wait->next = NULL;
    wait->end_chunk = want_chunk(wait->service, wait->from_byte);
    if (!image && part_is_needed(checkpoint, wait->shard)) {
        struct image *part = part_held(load, wait);
        if (part)
            lend_or_read(wait, part);
        else
            started(wait, part_load(load, wait));
        return;
    }
    if (image && !may_use(wait, image)) {
        image_leave_checkpoint(image);
        image = NULL;
    }
    if (!image) {
        /* What the load was lent before has left the checkpoint; its memory may be what is short.
         */
        load_hold(load, wait->shard, NULL);
        started(wait, pass_read(checkpoint, wait->shard, wait));
        return;
    }
    lend_or_read(wait, image);
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
                                .from_byte = request->from_byte,
                                .checks = request->checks,
                                .from_file = request->from_file,
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
