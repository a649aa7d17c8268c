/* undelete.c - Undelete: restores checkpoints from a run's trash, or lists them.
 *
 *   the trash is free ──► worker: lists it, selects; one rename for each, then checks its files
 *   as at a start ──► into the list, with its flaw if it has one
 *
 * The local trash comes first, then, on its crew, that of the far tier; a refresh of that tier
 * lists the restored ones. If the far tier does not answer, the answer says so; checkpoints of the
 * local trash are restored in any case.
 *
 * If a checkpoint was removed, saved again and removed again, the newest one is restored. One whose
 * directory exists already stays in the trash, and the answer says so.
 *
 * Limit: UNDELETE_MAX checkpoints of a run in one call; the newest removed ones. */
#include "ckptd/keep/undelete.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/history.h"
#include "ckptd/core/ledger.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/keep/gc.h"
#include "ckptd/keep/trash.h"
#include "ckptd/refresh/refresh.h"
#include "proto/base/array.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/format/flaw.h"
#include "proto/format/manifest.h"
#include "proto/format/places.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNDELETE_MAX 8192u
#define BUSY_MS 10         /* interval for checking whether the trash is free */
#define BUSY_WAIT_MS 60000 /* then ERR_BUSY */
/* Of run->adopting: no attempt is opened, no checkpoint is adopted. */
#define ADOPTING_ALL UINT64_MAX

struct found {
    enum tier_index tier;
    struct store_trashed at;
    struct manifest_summary summary;
    struct places places; /* owned */
    bool is_taken;
    struct fault fault; /* why it was not restored, or its flaw */
};

struct undeleting {
    struct service *service;
    struct rpc_call *call;
    const Holdfast__V1__UndeleteRequest *request; /* valid as long as the call */
    struct run *run;
    struct found *items;
    uint32_t count, room;
    enum tier_index tier; /* the tier of the current job */
    int64_t until_ms;
    struct fault fault, far_fault; /* far_fault: why the far trash cannot be read */
    struct refresh_waiter refresh;
    struct timer timer;
    struct job job;
};

/* ---- on a worker ---- */

static int add_found(void *user, const struct store_trashed *item)
{
    struct undeleting *undeleting = user;
    const Holdfast__V1__UndeleteRequest *request = undeleting->request;
    bool is_all = request->all || request->dry_run;
    if (item->attempt == 0 || undeleting->count == UNDELETE_MAX || item->is_back ||
        (!is_all && (item->step != request->step ||
                     (request->attempt != 0 && item->attempt != request->attempt))))
        return 0;
    ERR_TRY(array_reserve(&undeleting->items, &undeleting->room, undeleting->count,
                          sizeof *undeleting->items));
    struct found *found = &undeleting->items[undeleting->count++];
    memset(found, 0, sizeof *found);
    found->tier = undeleting->tier;
    found->at = *item;
    return 0;
}

/* Order: newest attempt, newest step, latest removal. */
static int compare_found(const void *a, const void *b)
{
    const struct store_trashed *x = &((const struct found *)a)->at;
    const struct store_trashed *y = &((const struct found *)b)->at;
    if (x->attempt != y->attempt)
        return x->attempt > y->attempt ? -1 : 1;
    if (x->step != y->step)
        return x->step > y->step ? -1 : 1;
    return x->seconds > y->seconds ? -1 : x->seconds < y->seconds;
}

static void take_back(struct undeleting *undeleting, struct found *found)
{
    struct storage *storage = undeleting->service->tiers[found->tier].storage;
    const char *run = undeleting->run->name;
    int error = store_trash_take(storage, &found->at);
    found->is_taken = error == 0;
    if (error == ERR_EXISTS)
        error = report_error(error, "rename or remove that one first",
                             "there is a checkpoint of this step and attempt");
    if (error == 0)
        error =
            store_read_summary(&found->summary, storage, run, found->at.step, found->at.attempt);
    if (error == 0)
        error = store_read_places(&found->places, storage, &found->summary);
    if (error == 0)
        error = store_check(storage, &found->summary, 0);
    if (error != 0)
        fault_take(&found->fault, error);
}

static int take_from(struct undeleting *undeleting)
{
    enum tier_index tier = undeleting->tier;
    const Holdfast__V1__UndeleteRequest *request = undeleting->request;
    uint32_t first = undeleting->count;
    ERR_TRY(tier_reach(undeleting->service, tier));
    ERR_TRY(store_trash_list(undeleting->service->tiers[tier].storage, undeleting->run->name,
                             add_found, undeleting));
    uint32_t count = undeleting->count - first;
    struct found *items = count > 0 ? undeleting->items + first : NULL;
    if (count > 0)
        qsort(items, count, sizeof *items, compare_found);
    for (uint32_t i = 0; i < count && !request->dry_run; i++) {
        struct found *found = &items[i];
        bool is_older = i > 0 && found[-1].at.step == found->at.step &&
                        found[-1].at.attempt == found->at.attempt;
        if (i > 0 && !request->all)
            break;
        if (!is_older)
            take_back(undeleting, found);
    }
    return 0;
}

static void work_undelete(struct job *job)
{
    struct undeleting *undeleting = CONTAINER_OF(job, struct undeleting, job);
    int error = take_from(undeleting);
    if (error != 0)
        fault_take(undeleting->tier == TIER_FAR ? &undeleting->far_fault : &undeleting->fault,
                   error);
}

static void work_in(struct undeleting *undeleting, enum tier_index tier,
                    void (*done)(struct event *))
{
    undeleting->tier = tier;
    undeleting->job = (struct job){.work = work_undelete, .done.run = done};
    tier_work(undeleting->service, tier, &undeleting->job);
}

/* ---- listing ---- */

static int add_to_list(struct undeleting *undeleting, struct found *found)
{
    struct run *run = undeleting->run;
    struct checkpoint *checkpoint;
    char text[sizeof checkpoint->damage];
    snprintf(found->summary.run, sizeof found->summary.run, "%s", run->name);
    found->summary.step = found->at.step;
    found->summary.attempt = found->at.attempt;
    int error = catalog_add(&checkpoint, run, &found->summary, TIER_LOCAL, &found->places);
    if (error != 0)
        return error;
    if (run->scrubbed.number != 0) /* it was in the trash, and may have been changed */
        scrub_cursor_brought(&run->scrubbed, found->at.step, found->at.attempt);
    const struct fault *fault = &found->fault;
    if (fault->code == 0)
        return 0;
    catalog_damage_text(text, sizeof text, fault);
    if (fault->code == ERR_NOT_FOUND)
        catalog_set_aside(checkpoint, FLAW_ASIDE, text);
    else if (fault->code == ERR_MISMATCH || fault->code == ERR_VERSION)
        catalog_set_aside(checkpoint, fault->code == ERR_VERSION ? FLAW_NEWER : FLAW_MOVED, text);
    else
        catalog_damage(checkpoint, TIER_LOCAL, fault);
    return 0;
}

static void note_taken(struct undeleting *undeleting, struct found *found)
{
    struct run *run = undeleting->run;
    int error = found->tier == TIER_LOCAL ? add_to_list(undeleting, found) : 0;
    if (error != 0) /* a refresh of the store finds it */
        fault_take(&found->fault, error);
    if (found->tier == TIER_LOCAL)
        ledger_note(&run->service->ledger, clock_ms(), (int64_t)found->at.bytes);
    history_note(run,
                 &(struct history_event){.name = "undelete",
                                         .step = found->at.step,
                                         .attempt = found->at.attempt,
                                         .detail = found->tier == TIER_FAR ? "the far tier" : "",
                                         .call = undeleting->call});
    log_info("trash", "run %s: step %llu, attempt %llu is back%s%s%s", run->name,
             (unsigned long long)found->at.step, (unsigned long long)found->at.attempt,
             found->tier == TIER_FAR ? " in the far tier" : "", found->fault.code != 0 ? ": " : "",
             found->fault.message);
}

/* ---- the answer ---- */

static int send_answer(const struct undeleting *undeleting)
{
    Holdfast__V1__UndeleteReply reply = HOLDFAST__V1__UNDELETE_REPLY__INIT;
    Holdfast__V1__UndeleteEntry *entries = calloc(undeleting->count + 1, sizeof *entries);
    reply.entries = calloc(undeleting->count + 1, sizeof *reply.entries);
    for (uint32_t i = 0; entries && reply.entries && i < undeleting->count; i++) {
        struct found *found = &undeleting->items[i];
        if (!undeleting->request->dry_run && !found->is_taken && found->fault.code == 0)
            continue; /* an older one of the same name */
        Holdfast__V1__UndeleteEntry *entry = &entries[reply.n_entries];
        holdfast__v1__undelete_entry__init(entry);
        entry->step = found->at.step;
        entry->attempt = found->at.attempt;
        entry->bytes = found->at.bytes;
        entry->removed_at = found->at.seconds;
        entry->taken_back = found->is_taken;
        entry->error = found->fault.message;
        entry->tier = (char *)(uintptr_t)(found->tier == TIER_FAR ? "far" : "");
        reply.entries[reply.n_entries++] = entry;
    }
    reply.trash_seconds = trash_term(undeleting->run, TIER_LOCAL);
    reply.far_trash_seconds = trash_term(undeleting->run, TIER_FAR);
    reply.far_error = (char *)(uintptr_t)undeleting->far_fault.message;
    reply.durability = DURABILITY_LOCAL;
    int error =
        entries && reply.entries ? 0 : report_error(ERR_MEMORY, NULL, "no memory to answer");
    if (error == 0)
        rpc_call_reply(undeleting->call, &reply.base);
    free(entries);
    free(reply.entries);
    return error;
}

static void finish_call(struct undeleting *undeleting, int error)
{
    if (error != 0)
        rpc_call_fail(undeleting->call, error);
    for (uint32_t i = 0; i < undeleting->count; i++)
        places_free(&undeleting->items[i].places);
    free(undeleting->items);
    free(undeleting);
}

static int find_nothing(const struct undeleting *undeleting)
{
    if (undeleting->count > 0 || undeleting->request->dry_run)
        return 0;
    if (undeleting->far_fault.code != 0)
        return fault_raise(&undeleting->far_fault);
    return report_error(ERR_NOT_FOUND, "see `ckpt-cli undelete RUN --dry-run`",
                        "no such checkpoint is in the trash of run %s", undeleting->run->name);
}

static void end_undelete(struct undeleting *undeleting)
{
    int error = fault_raise(&undeleting->fault);
    if (error == 0)
        error = find_nothing(undeleting);
    finish_call(undeleting, error == 0 ? send_answer(undeleting) : error);
}

static void refreshed(struct refresh_waiter *waiter)
{
    struct undeleting *undeleting = CONTAINER_OF(waiter, struct undeleting, refresh);
    undeleting->service->trash->num_waiting--;
    end_undelete(undeleting); /* if the refresh failed, the next one lists it */
}

static void undeleted(struct event *event)
{
    struct undeleting *undeleting = CONTAINER_OF(event, struct undeleting, job.done);
    struct service *service = undeleting->service;
    bool is_any_far = false;
    undeleting->run->adopting = 0;
    for (uint32_t i = 0; i < undeleting->count; i++) {
        if (undeleting->items[i].is_taken)
            note_taken(undeleting, &undeleting->items[i]);
        is_any_far |= undeleting->items[i].is_taken && undeleting->items[i].tier == TIER_FAR;
    }
    trash_end(service);
    service->catalog->events->changed(service);
    if (!undeleting->request->dry_run)
        trash_sweep_soon(service, TIER_LOCAL);
    if (!is_any_far) {
        end_undelete(undeleting);
        return;
    }
    service->trash->num_waiting++;
    undeleting->refresh.go_on = refreshed;
    refresh_tier(service, TIER_FAR, &undeleting->refresh, service->config->tier_wait_ms);
}

static void undeleted_here(struct event *event)
{
    struct undeleting *undeleting = CONTAINER_OF(event, struct undeleting, job.done);
    if (tier_has_far(undeleting->service) && undeleting->fault.code == 0)
        work_in(undeleting, TIER_FAR, undeleted);
    else
        undeleted(event);
}

/* ---- beginning ---- */

static int check_run(const struct run *run)
{
    return run->pruning || run->adopting != 0 || gc_is_removing(run->service)
               ? report_error(ERR_BUSY, "try again", "run %s is being changed", run->name)
               : 0;
}

static void begin_undelete(struct timer *timer)
{
    struct undeleting *undeleting = CONTAINER_OF(timer, struct undeleting, timer);
    struct service *service = undeleting->service;
    service->trash->num_waiting--;
    int error = service_check_open(service);
    if (error == 0 && !undeleting->request->dry_run)
        error = service_check_online(service);
    if (error == 0)
        error = run_find(&undeleting->run, service, undeleting->request->run, false);
    if (error == 0)
        error = check_run(undeleting->run);
    if (error == 0)
        error = trash_begin(service);
    if (error == ERR_BUSY && clock_ms() < undeleting->until_ms) {
        service->trash->num_waiting++;
        loop_timer(service->loop, timer, BUSY_MS);
        return;
    }
    if (error != 0) {
        finish_call(undeleting, error);
        return;
    }
    undeleting->run->adopting = ADOPTING_ALL;
    work_in(undeleting, TIER_LOCAL, undeleted_here);
}

void undelete_call(struct service *service, struct rpc_call *call,
                   const Holdfast__V1__UndeleteRequest *request)
{
    struct undeleting *undeleting = calloc(1, sizeof *undeleting);
    if (!undeleting) {
        rpc_call_fail(call, report_error(ERR_MEMORY, NULL, "no memory to undelete"));
        return;
    }
    undeleting->service = service;
    undeleting->call = call;
    undeleting->request = request;
    undeleting->until_ms = clock_ms() + BUSY_WAIT_MS;
    undeleting->timer.run = begin_undelete;
    service->trash->num_waiting++;
    begin_undelete(&undeleting->timer);
}
