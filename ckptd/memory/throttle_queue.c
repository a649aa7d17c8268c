/* throttle_queue.c - delays the chunks of saves for throttling, and starts them.
 *
 *   stage.c: a chunk is ready ──► gate ──throttle.c says when──► hashed + written ──► ended
 *                                  │ ▲
 *                                  │ └── a timer, a chunk that ended, a rank that became quiet
 *                                  └──── a client waits for the save: at once
 *
 * Chunks wait in the order in which they became ready, those of all saves in one list. A save is no
 * longer delayed as soon as something waits for it: a WaitSave that may wait, a rank without a free
 * image for its next save, or with a full window, a new attempt that settles older saves, SIGTERM.
 * Throttling protects training; it never delays a save that somebody waits for. Loads never come
 * here, nor does the rare second write of a shard whose sync failed.
 *
 * Phases are read from the ranks' control pages, where a rank may write anything: any value but
 * ARENA_PHASE_BUSY means that it is not busy. One busy rank delays the chunks of all: memory and
 * disk belong to the node.
 *
 * A chunk is in flight until it is hashed and written: with throttling the disk waits for hashing
 * that is late by the depth of its queue. Without a rate and quiet phases nothing is counted and
 * nothing waits here. */
#include "ckptd/memory/throttle_queue.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/machines/throttle.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/session.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include <stdlib.h>

#define WINDOW_CHUNKS_MIN 4u
/* One of so many reports wakes the service thread, as does the last of an image in progress. */
#define REPORTS_AWAITED 8u

static void start_due_later(struct timer *timer);

int throttle_queue_open(struct service *service)
{
    const struct config *config = service->config;
    struct throttle_options options = {
        .write_rate = config->pace_write_rate,
        .quiet = config->pace_quiet,
        .quiet_wait_ms = config->pace_quiet_wait_ms,
        .in_flight_max = config->queue_depth > WINDOW_CHUNKS_MIN ? (uint32_t)config->queue_depth
                                                                 : WINDOW_CHUNKS_MIN,
        .chunk_bytes = (uint32_t)config->block_bytes,
    };
    service->throttle_queue = calloc(1, sizeof *service->throttle_queue);
    if (!service->throttle_queue)
        return report_error(ERR_MEMORY, NULL, "no memory for the gate");
    throttle_init(&service->throttle_queue->pace, &options);
    service->throttle_queue->service = service;
    service->throttle_queue->timer.run = start_due_later;
    return 0;
}

void throttle_queue_close(struct service *service)
{
    free(service->throttle_queue);
    service->throttle_queue = NULL;
}

/* ---- delays ---- */

static bool is_urgent(const struct chunk *chunk)
{
    const struct image *image = chunk->image;
    return image->is_urgent || image->is_window || image->service->draining;
}

/* Checks at most once a millisecond: the table of sessions may be long, and chunks end often. */
static bool is_busy(struct service *service, int64_t now_ms)
{
    struct throttle_queue *gate = service->throttle_queue;
    if (gate->pace.options.quiet && gate->checked_ms != now_ms) {
        gate->checked_ms = now_ms;
        gate->busy = session_num_busy(service) > 0;
    }
    return gate->busy;
}

static uint32_t bytes_of(const struct chunk *chunk)
{
    uint64_t start_chunk, end;
    image_chunk_range(chunk->image, chunk->index, &start_chunk, &end);
    return (uint32_t)(end - start_chunk);
}

/* ---- starting ---- */

/* Takes *at out of the list. */
static struct chunk *take_out(struct throttle_queue *gate, struct chunk **at, struct chunk *before)
{
    struct chunk *chunk = *at;
    *at = chunk->next_held;
    if (gate->last == chunk)
        gate->last = before;
    chunk->next_held = NULL;
    gate->num_held--;
    return chunk;
}

static void start_chunk(struct throttle_queue *gate, struct chunk *chunk)
{
    chunk->is_paced = true;
    chunk->is_awaited = ++gate->num_started % REPORTS_AWAITED == 0;
    gate->in_flight++;
    image_start_chunk(chunk->image, chunk->index);
}

/* Starts the chunks that may begin, oldest first; sets a timer for the next. */
static void start_due(struct service *service)
{
    struct throttle_queue *gate = service->throttle_queue;
    while (gate->first) {
        int64_t wait_ms, now_ms = clock_ms();
        struct throttle_moment moment = {now_ms, is_busy(service, now_ms), gate->in_flight};
        if (throttle_ask(&gate->pace, &moment, bytes_of(gate->first), gate->first->stamp,
                         &wait_ms) != THROTTLE_GO) {
            if (wait_ms >= 0)
                loop_timer(service->loop, &gate->timer, wait_ms);
            return;
        }
        start_chunk(gate, take_out(gate, &gate->first, NULL));
    }
    loop_timer_cancel(service->loop, &gate->timer);
}

static void start_due_later(struct timer *timer)
{
    start_due(CONTAINER_OF(timer, struct throttle_queue, timer)->service);
}

void throttle_queue_phase_changed(struct service *service)
{
    service->throttle_queue->checked_ms = -1;
    start_due(service);
}

/* Takes out the chunks of `image`; with NULL takes out the urgent ones and starts them. */
static void take_out_all(struct service *service, const struct image *image)
{
    struct throttle_queue *gate = service->throttle_queue;
    struct chunk **at = &gate->first, *before = NULL;
    while (*at) {
        bool chosen = image ? (*at)->image == image : is_urgent(*at);
        if (!chosen) {
            before = *at;
            at = &before->next_held;
            continue;
        }
        struct chunk *chunk = take_out(gate, at, before);
        throttle_leave(&gate->pace, clock_ms());
        if (!image)
            start_chunk(gate, chunk);
    }
}

void throttle_queue_hurry(struct service *service)
{
    take_out_all(service, NULL);
}

void throttle_queue_drop(struct image *image)
{
    take_out_all(image->service, image);
}

/* ---- adding and ending ---- */

void throttle_queue_start_chunk(struct image *image, uint32_t index)
{
    struct service *service = image->service;
    struct throttle_queue *gate = service->throttle_queue;
    struct chunk *chunk = image_chunk(image, index);
    if (!throttle_is_on(&gate->pace) || is_urgent(chunk)) {
        image_start_chunk(image, index);
        return;
    }
    chunk->stamp = throttle_enter(&gate->pace, clock_ms());
    chunk->next_held = NULL;
    if (gate->first)
        gate->last->next_held = chunk;
    else
        gate->first = chunk;
    gate->last = chunk;
    /* With chunks before it, it waits for the events that start those. */
    if (gate->num_held++ == 0)
        start_due(service);
}

void throttle_queue_chunk_ended(struct chunk *chunk)
{
    struct service *service = chunk->image->service;
    if (!chunk->is_paced)
        return;
    chunk->is_paced = chunk->is_awaited = false;
    service->throttle_queue->in_flight--;
    start_due(service);
}
