/* gc.c - removes rubbish while the store is served, by the same search and removal as `ckpt-cli gc`
 * on a directory (storage/rubbish.c).
 *
 *   Gc
 *    │ worker: the search, in the local store and in the far tier
 *    ▼
 *   leaves out work in progress (saves, removals, adoptions) and checkpoints committed since. From
 *    │ here on no save or removal of a listed finding can begin (gc_removes)
 *    ▼ worker: the removal
 *   gone, or named in the answer with the reason
 *
 * Unreadable findings are named in the answer, as are runs that could not be read at the start; the
 * others are removed.
 *
 * Leases protect the files that other processes write or read, and those of a drain of this ckptd
 * in the far tier. Files that a drain may still begin with are left out, as is work in progress
 * here. A far tier that does not answer is named as unreadable.
 *
 * Limits: one at a time (ERR_BUSY); STORE_RUBBISH_MAX findings; an answer lists as many as it holds
 * and counts all. */
#include "ckptd/keep/gc.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/config.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/core/tier.h"
#include "ckptd/save/save.h"
#include "proto/base/report.h"
#include "proto/base/toml.h"
#include "proto/format/retain.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUM_STORES 2u
#define ENTRY_BYTES_MAX 56u /* of an entry on the wire, without its texts */

struct collecting {
    struct service *service;
    struct rpc_call *call;
    bool is_dry;
    bool is_removing; /* the lists are being removed */
    struct store {
        struct storage *storage; /* NULL: no such tier */
        const char *place;       /* prefix of the names in the answer */
        struct store_rubbish_list list;
    } stores[NUM_STORES];  /* the local store, the far tier */
    char far_offline[512]; /* why the far tier is not searched */
    struct fault fault;    /* of the search: there are no lists */
    struct job job;
};

/* ---- the search, on a worker ---- */

static int visit_run(void *user, const struct storage_entry *entry)
{
    struct store *store = user;
    return entry->is_dir && run_name_valid(entry->name)
               ? store_rubbish_find(&store->list, store->storage, entry->name)
               : 0;
}

static int find_in(struct store *store)
{
    ERR_TRY(storage_list(store->storage, "", visit_run, store));
    return store_rubbish_find_above(&store->list, store->storage);
}

/* If the far tier does not answer, the answer names it. */
static int find_far(struct collecting *collecting, struct store *far)
{
    struct service *service = collecting->service;
    if (!tier_has_far(service))
        return 0;
    int error = collecting->far_offline[0]
                    ? report_error(ERR_UNAVAILABLE, NULL, "%s", collecting->far_offline)
                    : tier_reach(service, TIER_FAR);
    far->storage = service->tiers[TIER_FAR].storage;
    far->place = service->config->tier_store;
    if (error == 0)
        error = find_in(far);
    return error != 0 ? store_rubbish_unknown(&far->list, "", error) : 0;
}

static void work_find(struct job *job)
{
    struct collecting *collecting = CONTAINER_OF(job, struct collecting, job);
    struct store *local = &collecting->stores[0];
    *local = (struct store){.storage = collecting->service->storage, .place = ""};
    int error = find_in(local);
    if (error == 0)
        error = find_far(collecting, &collecting->stores[1]);
    if (error != 0)
        fault_take(&collecting->fault, error);
}

/* ---- exclusions ---- */

static void run_of(char out[STORAGE_KEY_MAX + 1], const struct store_rubbish *item)
{
    snprintf(out, STORAGE_KEY_MAX + 1, "%.*s", (int)strcspn(item->key, "/"), item->key);
}

/* The step and attempt of a finding; false: it has none. */
static bool parse_finding(uint64_t *step, uint64_t *attempt, const struct store_rubbish *item)
{
    char name[STORAGE_KEY_MAX + 1];
    const char *last = strrchr(item->key, '/');
    if (!last)
        return false;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(last + 1, "."), last + 1);
    return retain_parse(name, step, attempt);
}

static bool is_live(const struct collecting *collecting, const struct store_rubbish *item)
{
    char name[STORAGE_KEY_MAX + 1];
    uint64_t step, attempt;
    struct run *run;
    run_of(name, item);
    int error = run_find(&run, collecting->service, name, false);
    if (error != 0)
        return error != ERR_NOT_FOUND; /* its contents are unknown: name_unreadable() */
    if (item->what == STORE_UNKNOWN || item->what == STORE_LEFTOVER || item->what == STORE_ASIDE ||
        !parse_finding(&step, &attempt, item))
        return false;
    if (run->adopting != 0)
        return true;
    if (item->what == STORE_CUT_SHORT)
        return run->pruning != NULL;
    for (const struct save *save = run->coordinator->saves; save; save = save->next)
        if (save->step == step && save->attempt == attempt)
            return true;
    return catalog_find(run, step, attempt) && strstr(item->key, "/leases/") == NULL;
}

static void leave_out_live(const struct collecting *collecting, struct store_rubbish_list *list)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++)
        if (!is_live(collecting, &list->items[i]))
            list->items[kept++] = list->items[i];
        else
            free(list->items[i].reason);
    list->count = kept;
}

/* Adds the runs that the start could not read. ERR_MEMORY. */
static int name_unreadable(struct collecting *collecting)
{
    int error = 0;
    for (const struct run *run = collecting->service->catalog->runs; run && error == 0;
         run = run->next)
        error = store_rubbish_unknown(&collecting->stores[0].list, run->name,
                                      fault_raise(&run->unreadable));
    return error;
}

bool gc_is_removing(const struct service *service)
{
    return service->collecting && service->collecting->is_removing;
}

static bool is_about(const struct store_rubbish *item, const char *run, uint64_t step,
                     uint64_t attempt)
{
    char name[STORAGE_KEY_MAX + 1];
    uint64_t its_step, its_attempt;
    run_of(name, item);
    return strcmp(name, run) == 0 && parse_finding(&its_step, &its_attempt, item) &&
           its_step == step && its_attempt == attempt;
}

static bool list_has(const struct store_rubbish_list *list, const char *run, uint64_t step,
                     uint64_t attempt)
{
    for (size_t i = 0; i < list->count; i++)
        if (store_rubbish_goes(&list->items[i]) && is_about(&list->items[i], run, step, attempt))
            return true;
    return false;
}

bool gc_removes(const struct service *service, const char *run, uint64_t step, uint64_t attempt)
{
    if (!gc_is_removing(service))
        return false;
    for (unsigned at = 0; at < NUM_STORES; at++)
        if (list_has(&service->collecting->stores[at].list, run, step, attempt))
            return true;
    return false;
}

/* ---- the answer ---- */

/* Prefixes the place of its store, in the item itself: its key is not used again. */
static char *name_of(const struct store *store, struct store_rubbish *item)
{
    char name[sizeof item->key];
    int bytes = snprintf(name, sizeof name, "%s%s%s", store->place,
                         store->place[0] && item->key[0] ? "/" : "", item->key);
    if (bytes > 0)
        memcpy(item->key, name, sizeof name);
    return item->key;
}

/* Adds the findings that stay, or those that are removed. */
static void add_entries(Holdfast__V1__GcReply *reply, Holdfast__V1__GcEntry *entries, size_t *room,
                        const struct store *store, bool stay)
{
    for (size_t i = 0; i < store->list.count; i++) {
        struct store_rubbish *item = &store->list.items[i];
        if (store_rubbish_goes(item) == stay)
            continue;
        const char *reason = item->error != 0 ? store_rubbish_reason(item) : "";
        char *name = name_of(store, item);
        size_t bytes = ENTRY_BYTES_MAX + strlen(name) + strlen(reason);
        reply->files += stay ? 0 : item->files;
        reply->bytes += stay ? 0 : item->bytes;
        *room = bytes <= *room ? *room - bytes : 0;
        if (*room == 0)
            continue;
        Holdfast__V1__GcEntry *entry = &entries[reply->n_entries];
        holdfast__v1__gc_entry__init(entry);
        entry->what = item->what;
        entry->name = name;
        entry->files = item->files;
        entry->bytes = item->bytes;
        entry->error = (char *)(uintptr_t)reason;
        reply->entries[reply->n_entries++] = entry;
    }
}

static size_t count_found(struct collecting *collecting)
{
    return collecting->stores[0].list.count + collecting->stores[1].list.count;
}

static int send_answer(struct collecting *collecting)
{
    size_t count = count_found(collecting);
    Holdfast__V1__GcReply reply = HOLDFAST__V1__GC_REPLY__INIT;
    Holdfast__V1__GcEntry *entries = calloc(count + 1, sizeof *entries);
    reply.entries = calloc(count + 1, sizeof(Holdfast__V1__GcEntry *));
    size_t room = RPC_MESSAGE_BYTES_MAX - ENTRY_BYTES_MAX;
    int error =
        entries && reply.entries ? 0 : report_error(ERR_MEMORY, NULL, "no memory to answer");
    for (int stay = 1; stay >= 0 && error == 0; stay--)
        for (unsigned at = 0; at < NUM_STORES; at++)
            add_entries(&reply, entries, &room, &collecting->stores[at], stay != 0);
    if (error == 0)
        rpc_call_reply(collecting->call, &reply.base);
    free(entries);
    free(reply.entries);
    return error;
}

static void finish_gc(struct collecting *collecting)
{
    struct service *service = collecting->service;
    int error = fault_raise(&collecting->fault);
    if (error == 0)
        error = send_answer(collecting);
    if (error != 0)
        rpc_call_fail(collecting->call, error);
    service->collecting = NULL;
    for (unsigned at = 0; at < NUM_STORES; at++)
        store_rubbish_free(&collecting->stores[at].list);
    free(collecting);
    service_retry_saves(service);
}

/* ---- removal ---- */

static void remove_one(const struct store *store, struct store_rubbish *item)
{
    if (item->what == STORE_ASIDE)
        log_warn("gc", "%s has no manifest, and no mark of unfinished work: set aside", item->key);
    else if (store_rubbish_remove(store->storage, item) == 0)
        log_info("gc", "removed %s", item->key);
    else
        log_warn("gc", "%s is kept: %s", item->key, store_rubbish_reason(item));
}

static void remove_all(struct store *store)
{
    for (size_t i = 0; i < store->list.count; i++)
        remove_one(store, &store->list.items[i]);
}

static void work_remove(struct job *job)
{
    struct collecting *collecting = CONTAINER_OF(job, struct collecting, job);
    for (unsigned at = 0; at < NUM_STORES; at++)
        remove_all(&collecting->stores[at]);
}

/* Uses the crew of the far tier, so that late answers there occupy no worker of the loop. */
static void work(struct collecting *collecting)
{
    struct service *service = collecting->service;
    tier_work(service, tier_has_far(service) ? TIER_FAR : TIER_LOCAL, &collecting->job);
}

static void removed(struct event *event)
{
    struct collecting *collecting = CONTAINER_OF(event, struct collecting, job.done);
    size_t num_gone = 0;
    for (unsigned at = 0; at < NUM_STORES; at++)
        for (size_t i = 0; i < collecting->stores[at].list.count; i++)
            num_gone += store_rubbish_goes(&collecting->stores[at].list.items[i]);
    log_info("gc", "removed %zu of %zu findings of rubbish", num_gone, count_found(collecting));
    finish_gc(collecting);
}

static void search_done(struct event *event)
{
    struct collecting *collecting = CONTAINER_OF(event, struct collecting, job.done);
    if (collecting->fault.code == 0) {
        for (unsigned at = 0; at < NUM_STORES; at++)
            leave_out_live(collecting, &collecting->stores[at].list);
        int error = name_unreadable(collecting);
        if (error != 0)
            fault_take(&collecting->fault, error);
    }
    if (collecting->fault.code != 0 || collecting->is_dry || count_found(collecting) == 0) {
        finish_gc(collecting);
        return;
    }
    collecting->is_removing = true;
    collecting->job = (struct job){.work = work_remove, .done.run = removed};
    work(collecting);
}

void gc_collect(struct service *service, struct rpc_call *call,
                const Holdfast__V1__GcRequest *request)
{
    int error = service_check_open(service);
    if (error == 0 && service->collecting)
        error = report_error(ERR_BUSY, "try again", "rubbish is being removed already");
    if (error == 0 && !request->dry_run)
        error = service_check_online(service);
    struct collecting *collecting = error == 0 ? calloc(1, sizeof *collecting) : NULL;
    if (error == 0 && !collecting)
        error = report_error(ERR_MEMORY, NULL, "no memory to look for rubbish");
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    collecting->service = service;
    collecting->call = call;
    collecting->is_dry = request->dry_run;
    snprintf(collecting->far_offline, sizeof collecting->far_offline, "%s",
             service->tiers[TIER_FAR].offline);
    collecting->job = (struct job){.work = work_find, .done.run = search_done};
    service->collecting = collecting;
    work(collecting);
}
