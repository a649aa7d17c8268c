/* lease.c - the table of loads: the shards that each wants and holds, and for how long.
 *
 * A load is a lease on a checkpoint and on the images lent to it. ckptd keeps the manifest of a
 * leased checkpoint. A load wants the shards of its plan until it releases them: their images stay
 * in memory for it when other loads have released them (image.c). A load ends by CloseLoad, with
 * its session, or when no call names it for LOAD_IDLE_MS. limits.sessions bounds the number of
 * loads (ERR_BUSY). */
#include "ckptd/restore/lease.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/session.h"
#include "ckptd/restore/held.h"
#include "ckptd/restore/loads.h"
#include "ckptd/restore/pump.h"
#include "ckptd/restore/together.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOAD_IDLE_MS 600000 /* a load that no call names for this long ends */

/* ---- leases ---- */

int load_find(struct load **out, struct service *service, uint64_t number)
{
    for (int64_t i = 0; i < service->config->limit_sessions && number != 0; i++) {
        if (service->loads->rows[i].number != number)
            continue;
        *out = &service->loads->rows[i];
        loop_timer(service->loop, &(*out)->timer, LOAD_IDLE_MS);
        return 0;
    }
    return report_error(ERR_NOT_FOUND, "open the load again", "the load is not known");
}

static void let_go(struct load *load, uint32_t shard)
{
    struct image *image = load->held[shard];
    load->held[shard] = NULL;
    if (image)
        image_end_reading(image);
}

void load_hold(struct load *load, uint32_t shard, struct image *image)
{
    if (load->held[shard] == image)
        return;
    let_go(load, shard); /* an image of the shard that was found to be damaged */
    load->held[shard] = image;
    if (image)
        image->readers++;
}

static void release_shard(struct load *load, uint32_t shard)
{
    struct checkpoint *checkpoint = load->checkpoint;
    if (read_plan_release(&load->reads, shard))
        checkpoint->uses[shard].loads--;
    let_go(load, shard);
    if (catalog_image(checkpoint, shard)) /* read for this load, which never asked for it */
        image_drop_unwanted(catalog_image(checkpoint, shard));
}

static void free_plan(struct load *load)
{
    free(load->held);
    free(load->reads.shards);
    free(load->reads.order);
    free(load->reads.ranges);
}

void load_end(struct load *load)
{
    struct session *session = load->session;
    for (uint32_t i = 0; i < load->checkpoint->summary.shards; i++)
        release_shard(load, i);
    service_retry_waiting(load->service);
    free_plan(load);
    loop_timer_cancel(load->service->loop, &load->timer);
    together_end(&load->together);
    held_leave(load->checkpoint);
    catalog_unlease(load->checkpoint);
    load->number = 0;
    load->service->catalog->events->changed(load->service);
    if (!session)
        return;
    session->num_loads--;
    if (!session->is_rank && session->num_loads == 0)
        session_end(session, "its last load was closed");
}

void restore_end_session(struct session *session)
{
    struct service *service = session->service;
    for (int64_t i = 0; i < service->config->limit_sessions && session->num_loads > 0; i++) {
        struct load *load = &service->loads->rows[i];
        if (load->number == 0 || load->session != session)
            continue;
        load->session = NULL;
        session->num_loads--;
        load_end(load);
    }
    together_leave(session);
}

static bool holds_segment(const struct load *load, uint32_t segment)
{
    for (uint32_t shard = 0; shard < load->checkpoint->summary.shards; shard++) {
        const struct image *image = load->held[shard];
        for (uint32_t i = 0; image && i < image->num_segments; i++)
            if (image->segments[i] == segment)
                return true;
    }
    return false;
}

bool restore_lends(const struct session *session, uint32_t segment)
{
    const struct service *service = session->service;
    for (int64_t i = 0; i < service->config->limit_sessions; i++) {
        const struct load *load = &service->loads->rows[i];
        if (load->number != 0 && load->session == session && holds_segment(load, segment))
            return true;
    }
    return false;
}

static void lease_expired(struct timer *timer)
{
    struct load *load = CONTAINER_OF(timer, struct load, timer);
    log_warn("restore", "run %s: a load of step %llu was idle for too long and ended",
             load->checkpoint->run->name, (unsigned long long)load->checkpoint->summary.step);
    load_end(load);
}

/* ---- wanted shards ---- */

/* The chunks of its shard that hold the part which the item names. */
static struct read_range range_of(const struct load *load, const struct load_item *item,
                                  const struct tensor_meta *tensor)
{
    uint64_t first, end, chunk = (uint64_t)load->service->config->block_bytes;
    uint64_t start = load->checkpoint->manifest->shards[item->shard].data_start + item->data_byte;
    box_span(&first, &end, &item->saved, &item->part, tensor->dims, dtype_bytes(tensor->dtype));
    return (struct read_range){(uint32_t)((start + first) / chunk),
                               (uint32_t)((start + end - 1) / chunk) + 1};
}

static int note_plan(struct load *load, const struct load_item *items, uint32_t num_items,
                     const struct slice *slices)
{
    struct checkpoint *checkpoint = load->checkpoint;
    struct read_load *reads = &load->reads;
    size_t shards = checkpoint->summary.shards;
    load->held = calloc(shards + 1, sizeof(struct image *));
    *reads = (struct read_load){.checkpoint = checkpoint,
                                .shards = calloc(shards + 1, sizeof *reads->shards),
                                .order = calloc(shards + 1, sizeof *reads->order),
                                .ranges = calloc((size_t)num_items + 1, sizeof *reads->ranges)};
    if (!checkpoint->uses)
        checkpoint->uses = calloc(shards + 1, sizeof *checkpoint->uses);
    if (!load->held || !reads->shards || !reads->order || !reads->ranges || !checkpoint->uses)
        return report_error(ERR_MEMORY, NULL, "no memory for a load");
    for (uint32_t i = 0; i < num_items; i++)
        read_plan_add(reads, items[i].shard,
                      range_of(load, &items[i], &slices[items[i].slice].tensor));
    read_plan_added(reads);
    struct read_range *less =
        realloc(reads->ranges, ((size_t)reads->num_ranges + 1) * sizeof *less);
    if (less)
        reads->ranges = less;
    for (uint32_t i = 0; i < reads->num_planned; i++) {
        uint32_t shard = reads->order[i];
        reads->shards[shard].is_in_parts = pump_is_in_parts(checkpoint, shard);
        checkpoint->uses[shard].loads++;
    }
    return 0;
}

/* Passes in progress also read for this load. */
static void join_passes(struct load *load)
{
    for (uint32_t i = 0; i < load->reads.num_planned; i++) {
        uint32_t shard = load->reads.order[i];
        struct image *image = catalog_image(load->checkpoint, shard);
        if (!image || image->state != IMAGE_READING)
            continue;
        read_plan_ask(&image->reading, &load->reads, shard);
        pump_start(image);
    }
}

int load_new(struct load **out, struct session *session, struct checkpoint *checkpoint,
             struct storage_hold **hold, const struct load_item *items, uint32_t num_items,
             const struct slice *slices)
{
    struct service *service = session->service;
    struct load *load = NULL;
    for (int64_t i = 0; i < service->config->limit_sessions && !load; i++)
        if (service->loads->rows[i].number == 0)
            load = &service->loads->rows[i];
    if (!load)
        return report_error(ERR_BUSY, "raise limits.sessions", "all %lld loads are in use",
                            (long long)service->config->limit_sessions);
    *load = (struct load){.service = service,
                          .checkpoint = checkpoint,
                          .opened_ms = clock_ms(),
                          .timer.run = lease_expired};
    int error = note_plan(load, items, num_items, slices);
    if (error != 0) {
        free_plan(load);
        return error;
    }
    load->number = ++service->loads->newest;
    load->session = session;
    session->num_loads++;
    catalog_lease(checkpoint);
    held_enter(checkpoint, hold);
    loop_timer(service->loop, &load->timer, LOAD_IDLE_MS);
    join_passes(load);
    *out = load;
    return 0;
}

/* ---- calls ---- */

void restore_release_shard(struct service *service, struct rpc_call *call,
                           const Holdfast__V1__ReleaseShardRequest *request)
{
    Holdfast__V1__ReleaseShardReply reply = HOLDFAST__V1__RELEASE_SHARD_REPLY__INIT;
    struct load *load;
    int error = load_find(&load, service, request->load);
    if (error == 0 && request->shard >= load->checkpoint->summary.shards)
        error = report_error(ERR_INVALID, NULL, "shard %u does not exist", request->shard);
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    release_shard(load, request->shard);
    service_retry_waiting(service);
    rpc_call_reply(call, &reply.base);
}

void restore_close_load(struct service *service, struct rpc_call *call,
                        const Holdfast__V1__CloseLoadRequest *request)
{
    Holdfast__V1__CloseLoadReply reply = HOLDFAST__V1__CLOSE_LOAD_REPLY__INIT;
    struct load *load;
    int error = load_find(&load, service, request->load);
    bool is_known = error == 0;
    if (is_known && request->is_loaded && load->together.run)
        error = together_loaded(&load->together);
    if (error != 0)
        rpc_call_fail(call, error);
    if (is_known && error != ERR_BUSY) {
        int64_t took_ms = clock_ms() - load->opened_ms;
        histogram_add(&service->loads->seconds, took_ms);
        histogram_add(&load->checkpoint->run->load_seconds, took_ms);
        load_end(load);
    }
    if (error == 0)
        rpc_call_reply(call, &reply.base);
}
