/* lease.c - the table of loads: what each holds, and for how long.
 *
 * A load is a lease on a checkpoint and on the images that it was lent; a checkpoint's manifest is
 * kept while it is leased. A load ends by CloseLoad, with its session, or when nobody asks it for
 * anything for limits.lease_ms. limits.loads bounds their number (ERR_BUSY). */
#include "ckptd/restore/restore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- leases ---- */

void lease_take(struct checkpoint *checkpoint)
{
    checkpoint->leases++;
}

void lease_drop(struct checkpoint *checkpoint)
{
    CHECK(checkpoint->leases > 0);
    if (--checkpoint->leases > 0)
        return;
    manifest_free(checkpoint->manifest);
    checkpoint->manifest = NULL;
}

int load_find(struct load **out, struct service *service, uint64_t number)
{
    for (int64_t i = 0; i < service->config->limit_loads && number != 0; i++) {
        if (service->loads[i].number != number)
            continue;
        *out = &service->loads[i];
        loop_timer(service->loop, &(*out)->timer, service->config->limit_lease_ms);
        return 0;
    }
    return report_error(ERR_NOT_FOUND, "open the load again", "the load is not known");
}

/* A reader less; images that only it kept go. */
static void release_image(struct load *load, uint32_t shard)
{
    struct image *image = load->held[shard];
    load->held[shard] = NULL;
    if (!image)
        return;
    image->readers--;
    bool stale = image->checkpoint && image->checkpoint != catalog_newest(image->checkpoint->run);
    if (image->readers == 0 && image->state == IMAGE_RESIDENT && stale)
        image_leave_checkpoint(image);
    else if (!image_settle(image))
        restore_wake(load->service);
}

void load_end(struct load *load)
{
    struct session *session = load->session;
    for (uint32_t i = 0; i < load->checkpoint->summary.shards; i++)
        release_image(load, i);
    free(load->held);
    loop_timer_cancel(load->service->loop, &load->timer);
    lease_drop(load->checkpoint);
    load->number = 0;
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
        struct load *load = &service->loads[i];
        if (load->number == 0 || load->session != session)
            continue;
        load->session = NULL;
        session->num_loads--;
        load_end(load);
    }
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
    for (int64_t i = 0; i < service->config->limit_loads; i++) {
        const struct load *load = &service->loads[i];
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

int load_new(struct load **out, struct session *session, struct checkpoint *checkpoint)
{
    struct service *service = session->service;
    struct load *load = NULL;
    for (int64_t i = 0; i < service->config->limit_loads && !load; i++)
        if (service->loads[i].number == 0)
            load = &service->loads[i];
    if (!load)
        return report_error(ERR_BUSY, "raise limits.loads", "all %lld loads are in use",
                            (long long)service->config->limit_loads);
    memset(load, 0, sizeof *load);
    load->held = calloc(checkpoint->summary.shards + 1, sizeof *load->held);
    if (!load->held)
        return report_error(ERR_MEMORY, NULL, "no memory for a load");
    load->number = ++service->next_load;
    load->service = service;
    load->session = session;
    load->checkpoint = checkpoint;
    load->timer.run = lease_expired;
    session->num_loads++;
    lease_take(load->checkpoint);
    loop_timer(service->loop, &load->timer, service->config->limit_lease_ms);
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
    release_image(load, request->shard);
    rpc_call_reply(call, &reply.base);
}

void restore_close_load(struct service *service, struct rpc_call *call,
                        const Holdfast__V1__CloseLoadRequest *request)
{
    Holdfast__V1__CloseLoadReply reply = HOLDFAST__V1__CLOSE_LOAD_REPLY__INIT;
    struct load *load;
    int error = load_find(&load, service, request->load);
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    load_end(load);
    rpc_call_reply(call, &reply.base);
}

/* ---- the table ---- */

int restore_open(struct service *service)
{
    service->loads = calloc((size_t)service->config->limit_loads, sizeof *service->loads);
    if (!service->loads)
        return report_error(ERR_MEMORY, NULL, "no memory for the table of loads");
    return 0;
}

void restore_close(struct service *service)
{
    for (int64_t i = 0; service->loads && i < service->config->limit_loads; i++)
        if (service->loads[i].number != 0)
            load_end(&service->loads[i]);
    shard_fail_starved(service);
    free(service->loads);
    service->loads = NULL;
}
