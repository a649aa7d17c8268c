/* lease.c - the table of loads: what each wants and holds, and for how long.
 *
 * A load is a lease on a checkpoint and on the images that it was lent; a checkpoint's manifest is
 * kept while it is leased. The shards of its plan are wanted until it releases them: images of them
 * stay in memory for it when others are done with them (image.c). A load ends by CloseLoad, with
 * its session, or when nobody asks it for anything for limits.lease_ms. limits.loads bounds their
 * number (ERR_BUSY). */
#include "ckptd/restore/lease.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/session.h"
#include "ckptd/restore/held.h"
#include "ckptd/restore/loads.h"
#include "ckptd/restore/together.h"
#include "ckptd/restore/want.h"
#include "proto/base/report.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- leases ---- */

int load_find(struct load **out, struct service *service, uint64_t number)
{
    for (int64_t i = 0; i < service->config->limit_loads && number != 0; i++) {
        if (service->loads->rows[i].number != number)
            continue;
        *out = &service->loads->rows[i];
        loop_timer(service->loop, &(*out)->timer, service->config->limit_lease_ms);
        return 0;
    }
    return report_error(ERR_NOT_FOUND, "open the load again", "the load is not known");
}

static void let_go(struct load *load, uint32_t shard)
{
    struct image *image = load->shards[shard].held;
    load->shards[shard].held = NULL;
    if (image)
        image_end_reading(image);
}

void load_hold(struct load *load, uint32_t shard, struct image *image)
{
    if (load->shards[shard].held == image)
        return;
    let_go(load, shard); /* an image of the shard that was found to be damaged */
    load->shards[shard].held = image;
    if (image)
        image->readers++;
}

static void release_shard(struct load *load, uint32_t shard)
{
    struct checkpoint *checkpoint = load->checkpoint;
    if (load->shards[shard].wanted)
        checkpoint->uses[shard].loads--;
    load->shards[shard].wanted = false;
    let_go(load, shard);
    if (catalog_image(checkpoint, shard)) /* read for this load, which never asked for it */
        image_drop_unwanted(catalog_image(checkpoint, shard));
}

static void free_plan(struct load *load)
{
    free(load->shards);
    free(load->plan);
    free(load->ranges);
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
    for (int64_t i = 0; i < service->config->limit_loads && session->num_loads > 0; i++) {
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
        const struct image *image = load->shards[shard].held;
        for (uint32_t i = 0; image && i < image->num_segments; i++)
            if (image->segments[i] == segment)
                return true;
    }
    return false;
}

bool restore_lends(const struct session *session, uint32_t segment)
{
    const struct service *service = session->service;
    for (int64_t i = 0; i < service->config->limit_loads; i++) {
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

/* The distinct shards of the items, in their order, and what is needed of each. */
static int note_plan(struct load *load, const struct load_item *items, uint32_t num_items,
                     const struct slice *slices)
{
    struct checkpoint *checkpoint = load->checkpoint;
    uint32_t shards = checkpoint->summary.shards;
    load->shards = calloc((size_t)shards + 1, sizeof *load->shards);
    load->plan = calloc((size_t)shards + 1, sizeof *load->plan);
    if (!checkpoint->uses)
        checkpoint->uses = calloc((size_t)shards + 1, sizeof *checkpoint->uses);
    if (!load->shards || !load->plan || !checkpoint->uses)
        return report_error(ERR_MEMORY, NULL, "no memory for a load");
    int error = want_note(load, items, num_items, slices);
    if (error != 0)
        return error;
    for (uint32_t i = 0; i < num_items; i++) {
        uint32_t shard = items[i].shard;
        if (load->shards[shard].wanted)
            continue;
        load->shards[shard].wanted = true;
        load->plan[load->num_planned++] = shard;
        checkpoint->uses[shard].loads++;
    }
    return 0;
}

/* What is being read is read for this load, too: a READ that begins takes what all need. */
static void join_passes(struct load *load)
{
    for (uint32_t i = 0; i < load->num_planned; i++) {
        struct image *image = catalog_image(load->checkpoint, load->plan[i]);
        if (image && image->state == IMAGE_READING)
            want_ask(load, image);
    }
}

int load_new(struct load **out, struct session *session, struct checkpoint *checkpoint,
             struct storage_hold **hold, const struct load_item *items, uint32_t num_items,
             const struct slice *slices)
{
    struct service *service = session->service;
    struct load *load = NULL;
    for (int64_t i = 0; i < service->config->limit_loads && !load; i++)
        if (service->loads->rows[i].number == 0)
            load = &service->loads->rows[i];
    if (!load)
        return report_error(ERR_BUSY, "raise limits.loads", "all %lld loads are in use",
                            (long long)service->config->limit_loads);
    *load = (struct load){.service = service, .checkpoint = checkpoint, .timer.run = lease_expired};
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
    loop_timer(service->loop, &load->timer, service->config->limit_lease_ms);
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
    if (is_known && error != ERR_BUSY)
        load_end(load);
    if (error == 0)
        rpc_call_reply(call, &reply.base);
}
