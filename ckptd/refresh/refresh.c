/* refresh.c - scans a tier (the local one, the far one or a peer's store): before List, Show and
 * OpenLoad, for Rescan, before each attempt is opened; at the start every tier but the local one,
 * which scan.c reads.
 *
 *   service thread: the known checkpoints ──► worker, or the tier's crew: runs, names of steps,
 *   and the unknown steps (refresh_read.c) ──► service thread: the catalog (refresh_take.c)
 *
 * One scan of a tier at a time, of the whole tier; later callers wait for the next one. An error
 * changes nothing, except that a tier without an answer is offline until a scan succeeds. If this
 * ckptd removes a checkpoint there during the scan, the scan is repeated. */
#include "ckptd/refresh/refresh.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/config.h"
#include "ckptd/core/service.h"
#include "ckptd/refresh/refresh_private.h"
#include "proto/base/clock.h"

#include <stdio.h>
#include <stdlib.h>

#define FAR_WAIT_MS 5000 /* for a tier that does not answer, before a call is handled */

/* ---- waiters ---- */

/* They may wait again, for the next scan. */
static void let_go_on(struct refresh_waiter **list, const struct fault *fault)
{
    struct refresh_waiter *waiters = *list;
    *list = NULL;
    while (waiters) {
        struct refresh_waiter *waiter = waiters;
        waiters = waiter->next;
        loop_timer_cancel(waiter->service->loop, &waiter->timer);
        waiter->fault = *fault;
        waiter->go_on(waiter);
    }
}

static bool take_out(struct refresh_waiter **at, const struct refresh_waiter *waiter)
{
    while (*at && *at != waiter)
        at = &(*at)->next;
    if (!*at)
        return false;
    *at = waiter->next;
    return true;
}

static void waited_enough(struct timer *timer)
{
    struct refresh_waiter *waiter = CONTAINER_OF(timer, struct refresh_waiter, timer);
    struct refresh *refresh = waiter->service->refreshes[waiter->tier];
    struct fault fault;
    if (!take_out(&refresh->coming, waiter))
        take_out(&refresh->present, waiter);
    fault_take(&fault, report_error(ERR_TIMEOUT, NULL, "the tier %s has not answered yet",
                                    tier_name(waiter->service, waiter->tier)));
    waiter->next = NULL;
    let_go_on(&waiter, &fault);
}

/* ---- a scan ---- */

static int note_known(struct scan *scan)
{
    struct service *service = scan->service;
    bool is_local = scan->tier == TIER_LOCAL;
    struct scan_run *to;
    for (struct run *run = service->catalog->runs; run; run = run->next) {
        if (run->unreadable.code != 0)
            continue;
        run->refresh_index = scan->num_runs;
        ERR_TRY(scan_add_run(&to, scan, run->name, true));
        to->stamp = run->refreshed_stamp;
        to->seen = tier_is_peer(scan->tier) ? run->sets_seen[scan->tier - TIER_PEER] : 0;
    }
    for (const struct copy *copy = service->tiers[scan->tier].copies; copy; copy = copy->next) {
        const struct checkpoint *c = copy->checkpoint;
        if (!copy->is_there || c->is_promised || c->run->unreadable.code != 0)
            continue;
        ERR_TRY(scan_add_step(&scan->runs[c->run->refresh_index],
                              &(struct scan_step){.step = c->summary.step,
                                                  .attempt = c->summary.attempt,
                                                  .is_known = true,
                                                  .is_part = copy->is_part && !is_local,
                                                  .was_volatile = copy->is_volatile}));
    }
    return 0;
}

static void scan_ended(struct event *event);

static void start_scan(struct refresh *refresh)
{
    struct service *service = refresh->service;
    struct scan *scan = calloc(1, sizeof *scan);
    int error = scan ? 0 : report_error(ERR_MEMORY, NULL, "no memory for a look at a tier");
    if (scan) {
        *scan = (struct scan){
            .service = service,
            .tier = refresh->tier,
            .stamp = refresh->stamp,
            .changes = refresh->changes,
            .tells_why =
                tier_is_peer(refresh->tier) && service->tiers[refresh->tier].silent_since_ms != 0,
            .job = {.work = scan_work, .done.run = scan_ended},
        };
        error = note_known(scan);
    }
    if (error != 0) {
        struct fault fault = {0};
        scan_free(scan);
        if (refresh->coming)
            fault_take(&fault, error);
        let_go_on(&refresh->coming, &fault);
        return;
    }
    refresh->now = scan;
    refresh->present = refresh->coming;
    refresh->coming = NULL;
    tier_work(service, refresh->tier, &scan->job);
}

/* Its waiters wait for another scan, which begins. */
static void repeat(struct refresh *refresh)
{
    struct refresh_waiter **end = &refresh->coming;
    while (*end)
        end = &(*end)->next;
    *end = refresh->present;
    refresh->present = NULL;
    start_scan(refresh);
}

/* A peer that is silent for long is lost, until it answers. */
static void note_silence(struct service *service, enum tier_index at, bool answers)
{
    struct tier *tier = &service->tiers[at];
    int64_t now = clock_ms();
    bool was_lost = tier->is_lost;
    tier_note_answer(service, at, answers);
    if (answers)
        tier->silent_since_ms = 0;
    else if (tier->silent_since_ms == 0)
        tier->silent_since_ms = now;
    tier->is_lost = !answers && tier_is_peer(at) &&
                    now - tier->silent_since_ms >= service->config->nodes_lost_ms;
    service->num_lost += (uint32_t)tier->is_lost - (uint32_t)was_lost;
    if (tier->is_lost && !was_lost)
        log_error("nodes",
                  "node %s has not answered for %lld s: its copies no longer count, and are "
                  "recreated on other nodes",
                  tier_name(service, at), (long long)(now - tier->silent_since_ms) / 1000);
}

static void note_answer(const struct scan *scan)
{
    struct service *service = scan->service;
    struct tier *tier = &service->tiers[scan->tier];
    const char *name = tier_name(service, scan->tier);
    bool was_offline = tier->offline[0], answers = scan->fault.code == 0;
    tier->offline[0] = '\0';
    note_silence(service, scan->tier, answers);
    if (answers) {
        tier->is_unknown = false;
        if (was_offline)
            log_info("tier", "the tier %s answers again", name);
        return;
    }
    snprintf(tier->offline, sizeof tier->offline, "%s", scan->fault.message);
    if (!was_offline)
        log_error("tier", "the tier %s cannot be read: %s", name, tier->offline);
}

static void scan_ended(struct event *event)
{
    struct scan *scan = CONTAINER_OF(event, struct scan, job.done);
    struct refresh *refresh = scan->service->refreshes[scan->tier];
    struct fault fault = scan->fault;
    bool is_old = fault.code == 0 && scan->changes != refresh->changes;
    if (!is_old && scan->tier != TIER_LOCAL)
        note_answer(scan);
    else if (fault.code != 0)
        log_debug("catalog", "could not read the store: %s", fault.message);
    if (!is_old && fault.code == 0) {
        scan_apply(scan);
        refresh->scanned_ms = clock_ms();
    }
    refresh->now = NULL;
    scan_free(scan);
    if (is_old) {
        repeat(refresh);
        return;
    }
    let_go_on(&refresh->present, &fault);
    if (refresh->coming && !refresh->now)
        start_scan(refresh);
}

void refresh_tier(struct service *service, enum tier_index tier, struct refresh_waiter *waiter,
                  int64_t ms)
{
    struct refresh *refresh = service->refreshes[tier];
    *waiter = (struct refresh_waiter){.service = service,
                                      .tier = tier,
                                      .next = refresh->coming,
                                      .timer = {.run = waited_enough},
                                      .go_on = waiter->go_on};
    refresh->coming = waiter;
    loop_timer(service->loop, &waiter->timer, ms);
    if (!refresh->now)
        start_scan(refresh);
}

void refresh_changed(struct service *service)
{
    service->refreshes[TIER_FAR]->changes++;
}

/* ---- life ---- */

int refresh_open(struct service *service)
{
    for (enum tier_index tier = TIER_LOCAL; tier < NUM_TIERS; tier++) {
        if (!tier_is_open(service, tier))
            continue;
        struct refresh *refresh = calloc(1, sizeof *refresh);
        if (!refresh)
            return report_error(ERR_MEMORY, NULL, "no memory for a tier");
        refresh->service = service;
        refresh->tier = tier;
        service->refreshes[tier] = refresh;
        if (tier != TIER_LOCAL)
            start_scan(refresh);
    }
    return 0;
}

void refresh_end(struct service *service)
{
    for (enum tier_index tier = TIER_LOCAL; tier < NUM_TIERS; tier++) {
        struct refresh *refresh = service->refreshes[tier];
        struct fault fault = {0};
        if (!refresh || (!refresh->coming && !refresh->present))
            continue; /* keeps this thread's last error */
        fault_take(&fault, report_error(ERR_UNAVAILABLE, NULL, "ckptd ends"));
        let_go_on(&refresh->coming, &fault);
        let_go_on(&refresh->present, &fault);
    }
}

void refresh_close(struct service *service)
{
    for (enum tier_index tier = TIER_LOCAL; tier < NUM_TIERS; tier++) {
        struct refresh *refresh = service->refreshes[tier];
        service->refreshes[tier] = NULL;
        if (!refresh)
            continue;
        scan_free(refresh->now);
        for (uint32_t i = 0; i < refresh->num_skipped; i++)
            free(refresh->skipped[i]);
        free(refresh);
    }
}

/* ---- calls that refresh first ---- */

struct first {
    struct service *service;
    uint32_t num_waiting;
    struct rpc_call *call;
    const ProtobufCMessage *request;
    void (*handle)(struct service *service, struct rpc_call *call, const ProtobufCMessage *request);
    struct first_scan {
        struct refresh_waiter waiter;
        struct first *first;
    } scans[]; /* one per tier without a recent scan */
};

static void handle_now(struct refresh_waiter *waiter)
{
    struct first *first = CONTAINER_OF(waiter, struct first_scan, waiter)->first;
    if (--first->num_waiting > 0)
        return;
    first->handle(first->service, first->call, first->request);
    free(first);
}

/* The local tier, and the others without a recent scan; returns their number. */
static uint32_t find_old(enum tier_index out[NUM_TIERS], const struct service *service,
                         int64_t max_age_ms)
{
    uint32_t count = 0;
    out[count++] = TIER_LOCAL;
    for (enum tier_index tier = TIER_PEER; tier < NUM_TIERS; tier++) {
        const struct refresh *refresh = service->refreshes[tier];
        if (refresh && (refresh->scanned_ms == 0 || clock_ms() - refresh->scanned_ms > max_age_ms))
            out[count++] = tier;
    }
    return count;
}

/* Without memory to wait, or during a shutdown, the call is handled at once. */
void refresh_first(struct service *service, int64_t max_age_ms, struct rpc_call *call,
                   const ProtobufCMessage *request,
                   void (*handle)(struct service *service, struct rpc_call *call,
                                  const ProtobufCMessage *request))
{
    enum tier_index old[NUM_TIERS];
    uint32_t count = service->draining ? 0 : find_old(old, service, max_age_ms);
    struct first *first =
        count > 0 ? calloc(1, sizeof *first + count * sizeof first->scans[0]) : NULL;
    if (!first) {
        handle(service, call, request);
        return;
    }
    first->service = service;
    first->call = call;
    first->request = request;
    first->handle = handle;
    first->num_waiting = count;
    for (uint32_t i = 0; i < count; i++) { /* the last call may free it */
        struct first_scan *scan = &first->scans[i];
        scan->first = first;
        scan->waiter.go_on = handle_now;
        refresh_tier(service, old[i], &scan->waiter,
                     old[i] == TIER_LOCAL ? REFRESH_STORE_MS : FAR_WAIT_MS);
    }
}

/* ---- Rescan ---- */

struct asking {
    struct refresh_waiter waiter;
    struct rpc_call *call;
    uint64_t added, vanished; /* before the scan */
};

static void answer_rescan(struct refresh_waiter *waiter)
{
    struct asking *asking = CONTAINER_OF(waiter, struct asking, waiter);
    const struct refresh *refresh = waiter->service->refreshes[TIER_LOCAL];
    Holdfast__V1__RescanReply reply = HOLDFAST__V1__RESCAN_REPLY__INIT;
    reply.added = refresh->added - asking->added;
    reply.vanished = refresh->vanished - asking->vanished;
    reply.skipped = (char **)(uintptr_t)refresh->skipped;
    reply.n_skipped = refresh->num_skipped;
    rpc_call_reply(asking->call, &reply.base);
    free(asking);
}

void refresh_call(struct service *service, struct rpc_call *call,
                  const Holdfast__V1__RescanRequest *request)
{
    struct refresh *refresh = service->refreshes[TIER_LOCAL];
    struct asking *asking = calloc(1, sizeof *asking);
    (void)request;
    int error = asking ? service_check_open(service)
                       : report_error(ERR_MEMORY, NULL, "no memory for a look at the store");
    if (error != 0) {
        free(asking);
        rpc_call_fail(call, error);
        return;
    }
    *asking = (struct asking){.waiter.go_on = answer_rescan,
                              .call = call,
                              .added = refresh->added,
                              .vanished = refresh->vanished};
    refresh->stamp = 0;
    for (struct run *run = service->catalog->runs; run; run = run->next)
        run->refreshed_stamp = 0; /* forces reading the names */
    refresh_tier(service, TIER_LOCAL, &asking->waiter, REFRESH_STORE_MS);
}
