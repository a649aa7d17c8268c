/* gc.c - removes rubbish while the store is served, by the same search and removal as `ckpt-cli gc`
 * on a directory (storage/rubbish.c).
 *
 *   Gc
 *    │ worker: the search
 *    ▼
 *   what is in work is left out: saves, removals, adoptions; and what was committed since. From
 *    │ here on nobody can begin what stays in the list (gc_removes)
 *    ▼ worker: the removal
 *   gone, or named in the answer with the reason
 *
 * What cannot be looked into is named, too, and so is a run that could not be read at the start:
 * the rest goes.
 *
 * What other processes write or read is leased, and stays by that.
 *
 * Limits: one at a time (ERR_BUSY); STORAGE_RUBBISH_MAX findings; an answer lists as many as it
 * holds and counts all. */
#include "ckptd/keep/gc.h"
#include "ckptd/catalog.h"
#include "ckptd/loop.h"
#include "ckptd/run/coordinator.h"
#include "ckptd/run/save.h"
#include "ckptd/service.h"
#include "proto/ckpt.pb-c.h"
#include "proto/report.h"
#include "proto/retain.h"
#include "proto/rpc.h"
#include "proto/toml.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY_BYTES_MAX 56u /* of an entry on the wire, without its texts */

struct collecting {
    struct service *service;
    struct rpc_call *call;
    bool is_dry;
    bool is_removing; /* the list is what is removed now */
    struct storage_rubbish_list list;
    struct fault fault; /* of the search: there is no list */
    struct job job;
};

/* ---- the search, on a worker ---- */

static int visit_run(void *user, const struct storage_entry *entry)
{
    struct collecting *collecting = user;
    return entry->is_dir && run_name_valid(entry->name)
               ? storage_rubbish_find(&collecting->list, collecting->service->storage,
                                      &checkpoint_kind, entry->name)
               : 0;
}

static void work_find(struct job *job)
{
    struct collecting *collecting = CONTAINER_OF(job, struct collecting, job);
    struct storage *storage = collecting->service->storage;
    int error = storage_list(storage, "", visit_run, collecting);
    if (error == 0)
        error = storage_rubbish_find_above(&collecting->list, storage);
    if (error != 0)
        fault_take(&collecting->fault, error);
}

/* ---- what is left alone ---- */

static void run_of(char out[STORAGE_KEY_MAX + 1], const struct storage_rubbish *item)
{
    snprintf(out, STORAGE_KEY_MAX + 1, "%.*s", (int)strcspn(item->key, "/"), item->key);
}

/* Which checkpoint of its run a finding is about; false: none. */
static bool parse_finding(uint64_t *step, uint64_t *attempt, const struct storage_rubbish *item)
{
    char name[STORAGE_KEY_MAX + 1];
    const char *last = strrchr(item->key, '/');
    if (!last)
        return false;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(last + 1, "."), last + 1);
    return retain_parse(name, step, attempt);
}

static bool is_live(const struct collecting *collecting, const struct storage_rubbish *item)
{
    char name[STORAGE_KEY_MAX + 1];
    uint64_t step, attempt;
    struct run *run;
    run_of(name, item);
    int error = run_find(&run, collecting->service, name, false);
    if (error != 0)
        return error != ERR_NOT_FOUND; /* nobody knows what it has: name_unreadable */
    if (item->what == STORAGE_UNKNOWN || item->what == STORAGE_LEFTOVER ||
        item->what == STORAGE_ASIDE || !parse_finding(&step, &attempt, item))
        return false;
    if (run->adopting != 0)
        return true;
    if (item->what == STORAGE_CUT_SHORT)
        return run->pruning != NULL;
    for (const struct save *save = run->coordinator->saves; save; save = save->next)
        if (save->step == step && save->attempt == attempt)
            return true;
    return catalog_find(run, step, attempt) && strstr(item->key, "/leases/") == NULL;
}

static void leave_out_live(struct collecting *collecting)
{
    struct storage_rubbish_list *list = &collecting->list;
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++)
        if (!is_live(collecting, &list->items[i]))
            list->items[kept++] = list->items[i];
        else
            free(list->items[i].reason);
    list->count = kept;
}

/* The runs that the start could not read. ERR_MEMORY. */
static int name_unreadable(struct collecting *collecting)
{
    int error = 0;
    for (const struct run *run = collecting->service->catalog->runs; run && error == 0;
         run = run->next)
        error =
            storage_rubbish_unknown(&collecting->list, run->name, fault_raise(&run->unreadable));
    return error;
}

bool gc_is_removing(const struct service *service)
{
    return service->collecting && service->collecting->is_removing;
}

bool gc_removes(const struct service *service, const char *run, uint64_t step, uint64_t attempt)
{
    const struct collecting *collecting = service->collecting;
    for (size_t i = 0; gc_is_removing(service) && i < collecting->list.count; i++) {
        const struct storage_rubbish *item = &collecting->list.items[i];
        char name[STORAGE_KEY_MAX + 1];
        uint64_t its_step, its_attempt;
        run_of(name, item);
        if (storage_rubbish_goes(item) && strcmp(name, run) == 0 &&
            parse_finding(&its_step, &its_attempt, item) && its_step == step &&
            its_attempt == attempt)
            return true;
    }
    return false;
}

/* ---- the answer ---- */

/* Adds the findings that stay, or those that do not. */
static void add_entries(Holdfast__V1__GcReply *reply, Holdfast__V1__GcEntry *entries, size_t *room,
                        const struct storage_rubbish_list *list, bool stay)
{
    for (size_t i = 0; i < list->count; i++) {
        struct storage_rubbish *item = &list->items[i];
        if (storage_rubbish_goes(item) == stay)
            continue;
        const char *reason = item->error != 0 ? storage_rubbish_reason(item) : "";
        size_t bytes = ENTRY_BYTES_MAX + strlen(item->key) + strlen(reason);
        reply->files += stay ? 0 : item->files;
        reply->bytes += stay ? 0 : item->bytes;
        *room = bytes <= *room ? *room - bytes : 0;
        if (*room == 0)
            continue;
        Holdfast__V1__GcEntry *entry = &entries[reply->n_entries];
        holdfast__v1__gc_entry__init(entry);
        entry->what = item->what;
        entry->name = item->key;
        entry->files = item->files;
        entry->bytes = item->bytes;
        entry->error = (char *)(uintptr_t)reason;
        reply->entries[reply->n_entries++] = entry;
    }
}

static int answer(const struct collecting *collecting)
{
    const struct storage_rubbish_list *list = &collecting->list;
    Holdfast__V1__GcReply reply = HOLDFAST__V1__GC_REPLY__INIT;
    Holdfast__V1__GcEntry *entries = calloc(list->count + 1, sizeof *entries);
    reply.entries = calloc(list->count + 1, sizeof(Holdfast__V1__GcEntry *));
    size_t room = RPC_MESSAGE_BYTES_MAX - ENTRY_BYTES_MAX;
    int error =
        entries && reply.entries ? 0 : report_error(ERR_MEMORY, NULL, "no memory to answer");
    for (int stay = 1; stay >= 0 && error == 0; stay--)
        add_entries(&reply, entries, &room, list, stay != 0);
    if (error == 0)
        rpc_call_reply(collecting->call, &reply.base);
    free(entries);
    free(reply.entries);
    return error;
}

static void finish(struct collecting *collecting)
{
    struct service *service = collecting->service;
    int error = fault_raise(&collecting->fault);
    if (error == 0)
        error = answer(collecting);
    if (error != 0)
        rpc_call_fail(collecting->call, error);
    service->collecting = NULL;
    storage_rubbish_free(&collecting->list);
    free(collecting);
    service_retry_saves(service);
}

/* ---- removal ---- */

static void work_remove(struct job *job)
{
    struct collecting *collecting = CONTAINER_OF(job, struct collecting, job);
    for (size_t i = 0; i < collecting->list.count; i++) {
        struct storage_rubbish *item = &collecting->list.items[i];
        if (item->what == STORAGE_ASIDE)
            log_warn("gc", "%s has no manifest, and no mark of unfinished work: set aside",
                     item->key);
        else if (storage_rubbish_remove(collecting->service->storage, &checkpoint_kind, item) == 0)
            log_info("gc", "removed %s", item->key);
        else
            log_warn("gc", "%s stays: %s", item->key, storage_rubbish_reason(item));
    }
}

static void removed(struct event *event)
{
    struct collecting *collecting = CONTAINER_OF(event, struct collecting, job.done);
    size_t num_gone = 0;
    for (size_t i = 0; i < collecting->list.count; i++)
        num_gone += storage_rubbish_goes(&collecting->list.items[i]);
    log_info("gc", "removed %zu of %zu findings of rubbish", num_gone, collecting->list.count);
    finish(collecting);
}

static void found(struct event *event)
{
    struct collecting *collecting = CONTAINER_OF(event, struct collecting, job.done);
    if (collecting->fault.code == 0) {
        leave_out_live(collecting);
        int error = name_unreadable(collecting);
        if (error != 0)
            fault_take(&collecting->fault, error);
    }
    if (collecting->fault.code != 0 || collecting->is_dry || collecting->list.count == 0) {
        finish(collecting);
        return;
    }
    collecting->is_removing = true;
    collecting->job = (struct job){.work = work_remove, .done.run = removed};
    loop_work(collecting->service->loop, &collecting->job);
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
    collecting->job = (struct job){.work = work_find, .done.run = found};
    service->collecting = collecting;
    loop_work(service->loop, &collecting->job);
}
