/* rescan.c - looks whether checkpoints came into the store, or left it, without ckptd.
 *
 * An operator copies a checkpoint into a store that is served, or moves one away. ckptd looks
 * before it answers List, Show and OpenLoad, and for Rescan:
 *
 *   service thread: which runs and checkpoints are known ──► worker: has a directory's time
 * changed? its names; what is new and whole; what is known and gone ──► service thread: the catalog
 *
 * The times of the store's directory and of every run are asked for; names are read only where one
 * has changed, or where the look before found a step that is not whole (yet): a copy takes its
 * time, and its end does not show in the run's directory. A new checkpoint must have a manifest and
 * is noted: the next look sees to it again. Its data are proven when they are loaded, as always.
 *
 * Left alone is what could be ckptd's own: a step in work, a run from which checkpoints are being
 * removed or into which one is being brought, and, as with Adopt, an attempt of a run that is being
 * trained which is not older than the newest. A checkpoint that is in use does not leave the list.
 *
 * One look at a time, of the whole store; calls that come meanwhile wait for the next one. An error
 * of a look changes nothing. */
#include "ckptd/keep/rescan.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/history.h"
#include "ckptd/core/ledger.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/keep/gc.h"
#include "ckptd/keep/scan.h"
#include "ckptd/machines/commit.h"
#include "ckptd/memory/resident.h"
#include "ckptd/run/coordinator.h"
#include "ckptd/run/save.h"
#include "proto/base/array.h"
#include "proto/base/report.h"
#include "proto/base/toml.h"
#include "proto/format/places.h"
#include "proto/format/retain.h"
#include "proto/format/shard.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESCAN_SKIPPED_MAX 64u
#define FRESH_MS 2000 /* a directory's time that is younger may not change with the next change */

struct place_of_step {
    uint64_t step, attempt;
    bool is_there;
};

/* A directory of a step that is not in the catalog. */
struct newcomer {
    struct manifest_summary summary;
    struct places places; /* owned */
    bool is_pinned;
    char pin_note[PIN_NOTE_MAX];
    struct fault fault; /* why it is not listed; code 0: it is whole */
};

/* A run: what is known of it, and what the look finds. */
struct look {
    char name[RUN_NAME_MAX + 1];
    uint64_t stamp;   /* of the look before; 0: look in any case */
    bool is_known;    /* it has an entry in the catalog */
    bool is_pending;  /* something is not whole yet, or could not be taken */
    bool has_names;   /* they were read */
    uint64_t attempt; /* the highest number in "attempts" */
    struct place_of_step *known;
    uint32_t num_known, room_known;
    struct newcomer *found;
    uint32_t num_found, room_found;
};

struct rescan {
    struct service *service;
    struct look *looks;
    uint32_t num_looks, room_looks;
    uint64_t stamp; /* of the root */
    struct fault fault;
    struct job job;
};

/* All looks, since the start. */
struct rescans {
    struct refreshes looks; /* and who waits for one */
    uint64_t stamp;         /* of the root, when its names were read last */
    uint64_t added, vanished;
    char *skipped[RESCAN_SKIPPED_MAX]; /* of the last look: what is there and not listed, and why */
    uint32_t num_skipped;
};

static void free_rescan(struct rescan *rescan)
{
    for (uint32_t i = 0; i < rescan->num_looks; i++) {
        for (uint32_t k = 0; k < rescan->looks[i].num_found; k++)
            places_free(&rescan->looks[i].found[k].places);
        free(rescan->looks[i].known);
        free(rescan->looks[i].found);
    }
    free(rescan->looks);
    free(rescan);
}

/* ---- on a worker ---- */

/* They are newest first, as in the catalog. */
static int compare_places(const void *a, const void *b)
{
    const struct place_of_step *x = a, *y = b;
    if (x->attempt != y->attempt)
        return x->attempt > y->attempt ? -1 : 1;
    return x->step > y->step ? -1 : x->step < y->step;
}

static struct place_of_step *find_known(const struct look *look, uint64_t step, uint64_t attempt)
{
    const struct place_of_step key = {.step = step, .attempt = attempt};
    return look->num_known > 0
               ? bsearch(&key, look->known, look->num_known, sizeof key, compare_places)
               : NULL;
}

/* Which of the known steps are there, and which steps are not known. */
static int list_steps(struct look *look, struct storage *storage)
{
    struct store_names names;
    int error = store_list_names(&names, storage, look->name);
    for (uint32_t i = 0; i < names.count && error == 0; i++) {
        const struct store_name *name = &names.list[i];
        struct place_of_step *known = find_known(look, name->step, name->attempt);
        if (known) {
            known->is_there = true;
            continue;
        }
        error =
            array_reserve(&look->found, &look->room_found, look->num_found, sizeof *look->found);
        if (error == 0)
            look->found[look->num_found++] =
                (struct newcomer){.summary = {.step = name->step, .attempt = name->attempt}};
    }
    store_names_free(&names);
    return error;
}

static void look_at_newcomer(struct rescan *rescan, struct look *look, struct newcomer *found)
{
    struct service service = {.storage = rescan->service->storage};
    struct run run = {.service = &service};
    uint64_t step = found->summary.step, attempt = found->summary.attempt;
    char prefix[STORAGE_KEY_MAX];
    snprintf(run.name, sizeof run.name, "%s", look->name);
    int error = scan_look(&found->summary, &found->places, &run, step, attempt);
    if (error == 0)
        error = store_check(service.storage, &found->summary, 0);
    if (error == 0)
        error = shard_dir_key(prefix, sizeof prefix, look->name, step, attempt);
    if (error == 0 && store_find_note(service.storage, STORE_QUARANTINE, prefix, NULL, 0) == 0)
        error = report_error(ERR_CORRUPT, "ckpt-cli verify --release", "it is in quarantine");
    if (error == 0)
        store_find_pin(service.storage, &found->is_pinned, prefix, found->pin_note,
                       sizeof found->pin_note);
    if (error != 0)
        fault_take(&found->fault, error);
    found->summary.step = step;
    found->summary.attempt = attempt;
    look->is_pending |= error != 0;
}

static int look_at_run(struct rescan *rescan, struct look *look)
{
    struct storage *storage = rescan->service->storage;
    uint64_t stamp, age_ms;
    int error = storage_stamp(storage, look->name, &stamp, &age_ms);
    if (error == ERR_NOT_FOUND)
        stamp = 0; /* the run is gone */
    else if (error != 0 || (stamp == look->stamp && stamp != 0))
        return error;
    error = list_steps(look, storage);
    if (error == 0 && !look->is_known)
        error = store_newest_attempt(&look->attempt, storage, look->name);
    if (error != 0)
        return error;
    look->has_names = true;
    look->stamp = age_ms < FRESH_MS ? 0 : stamp;
    for (uint32_t i = 0; i < look->num_found; i++)
        look_at_newcomer(rescan, look, &look->found[i]);
    return 0;
}

static int visit_run(void *user, const struct storage_entry *entry)
{
    struct rescan *rescan = user;
    if (!entry->is_dir || !run_name_valid(entry->name))
        return 0;
    for (uint32_t i = 0; i < rescan->num_looks; i++)
        if (strcmp(rescan->looks[i].name, entry->name) == 0)
            return 0;
    ERR_TRY(array_reserve(&rescan->looks, &rescan->room_looks, rescan->num_looks,
                          sizeof *rescan->looks));
    struct look *look = &rescan->looks[rescan->num_looks++];
    memset(look, 0, sizeof *look);
    snprintf(look->name, sizeof look->name, "%s", entry->name);
    return 0;
}

static void work_look(struct job *job)
{
    struct rescan *rescan = CONTAINER_OF(job, struct rescan, job);
    struct storage *storage = rescan->service->storage;
    uint64_t stamp, age_ms;
    int error = storage_stamp(storage, "", &stamp, &age_ms);
    if (error == 0 && stamp == 0)
        return; /* nobody else can change this store */
    if (error == 0 && stamp != rescan->stamp)
        error = storage_list(storage, "", visit_run, rescan);
    if (error == 0)
        rescan->stamp = age_ms < FRESH_MS ? 0 : stamp;
    for (uint32_t i = 0; error == 0 && i < rescan->num_looks; i++)
        error = look_at_run(rescan, &rescan->looks[i]);
    if (error != 0)
        fault_take(&rescan->fault, error);
}

/* ---- into the catalog ---- */

static int check_newcomer(struct run *run, const struct manifest_summary *summary)
{
    bool is_open = run->coordinator->attempt || run->coordinator->opening.call ||
                   run->coordinator->describing || run->coordinator->saves;
    if (run->pruning || run->adopting != 0 || run->coordinator->take.busy)
        return report_error(ERR_BUSY, "look again", "the run %s is being changed", run->name);
    if (summary->attempt >= run->newest_attempt && is_open)
        return report_error(ERR_DENIED, "it is listed when the run is not trained any more",
                            "run %s is being trained here, in attempt %llu: a checkpoint of "
                            "attempt %llu could be its own",
                            run->name, (unsigned long long)run->newest_attempt,
                            (unsigned long long)summary->attempt);
    return catalog_check_room(run->service);
}

static int enter_newcomer(struct run *run, const struct newcomer *found)
{
    const struct manifest_summary *summary = &found->summary;
    struct checkpoint *checkpoint = catalog_find(run, summary->step, summary->attempt);
    bool is_elsewhere = checkpoint; /* until now only there */
    bool is_first = !run->checkpoints && run->scrubbed.number == 0;
    int error = is_elsewhere ? 0 : check_newcomer(run, summary);
    if (error == 0)
        error = catalog_add(&checkpoint, run, summary, TIER_LOCAL, &found->places);
    if (error != 0)
        return error;
    const struct pin pin = {found->is_pinned, found->pin_note[0] ? strdup(found->pin_note) : NULL};
    catalog_set_pin(checkpoint, TIER_LOCAL, &pin);
    if (is_elsewhere)
        return 0;
    if (summary->attempt > run->newest_attempt) {
        run->newest_attempt = summary->attempt;
        commit_init(&run->coordinator->machine, summary->attempt);
    }
    if (!is_first) /* it was not read back here */
        scrub_cursor_brought(&run->scrubbed, summary->step, summary->attempt);
    ledger_note(&run->service->ledger, loop_now_ms(), (int64_t)summary->bytes);
    run->service->rescans->added++;
    history_note(run, &(struct history_event){.name = "found",
                                              .step = summary->step,
                                              .attempt = summary->attempt,
                                              .by = "another program"});
    log_info("catalog", "run %s, step %llu, attempt %llu was found in the store: %llu bytes",
             run->name, (unsigned long long)summary->step, (unsigned long long)summary->attempt,
             (unsigned long long)summary->bytes);
    return 0;
}

/* What Rescan tells, and nobody else. */
static void skip(struct service *service, const struct look *look, const struct newcomer *found,
                 const char *why)
{
    char text[512];
    if (service->rescans->num_skipped == RESCAN_SKIPPED_MAX)
        return;
    snprintf(text, sizeof text, "%s@%llu-a%llu: %s", look->name,
             (unsigned long long)found->summary.step, (unsigned long long)found->summary.attempt,
             why);
    report_make_printable(text);
    char *copy = strdup(text);
    if (copy)
        service->rescans->skipped[service->rescans->num_skipped++] = copy;
}

/* False: it is in use, and stays meanwhile. */
static bool drop_vanished(struct run *run, const struct place_of_step *known)
{
    struct checkpoint *checkpoint = catalog_find(run, known->step, known->attempt);
    if (!checkpoint)
        return true;
    if (!catalog_lost(checkpoint, TIER_LOCAL)) {
        if (!resident_take_out(checkpoint))
            return false;
        catalog_drop(checkpoint);
    }
    run->service->rescans->vanished++;
    history_note(run, &(struct history_event){.name = "vanish",
                                              .step = known->step,
                                              .attempt = known->attempt,
                                              .by = "another program"});
    log_error("catalog", "run %s, step %llu, attempt %llu has vanished: its directory is gone",
              run->name, (unsigned long long)known->step, (unsigned long long)known->attempt);
    return true;
}

static void take_look(struct service *service, struct look *look)
{
    struct run *run = NULL;
    bool is_worth = look->num_found > 0 || look->attempt > 0 || look->is_known;
    if (!look->has_names || !is_worth || run_find(&run, service, look->name, !look->is_known) != 0)
        return;
    if (!look->is_known && look->attempt > run->newest_attempt) {
        run->newest_attempt = look->attempt;
        commit_init(&run->coordinator->machine, look->attempt);
    }
    for (uint32_t i = 0; i < look->num_known; i++)
        if (!look->known[i].is_there && !drop_vanished(run, &look->known[i]))
            look->is_pending = true;
    for (uint32_t i = 0; i < look->num_found; i++) {
        struct newcomer *found = &look->found[i];
        uint64_t step = found->summary.step, attempt = found->summary.attempt;
        const struct checkpoint *known = catalog_find(run, step, attempt);
        if ((known && known->copies.local.is_there) || catalog_is_promised(run, step, attempt))
            continue;
        int error =
            found->fault.code != 0 ? fault_raise(&found->fault) : enter_newcomer(run, found);
        look->is_pending |= error != 0;
        if (error != 0)
            skip(service, look, found, report_line());
    }
    run->looked_stamp = look->is_pending ? 0 : look->stamp;
}

static void looked(struct event *event)
{
    struct rescan *rescan = CONTAINER_OF(event, struct rescan, job.done);
    struct service *service = rescan->service;
    bool can_take = rescan->fault.code == 0 && !gc_is_removing(service);
    uint64_t added = service->rescans->added;
    if (rescan->fault.code != 0)
        log_debug("catalog", "a look at the store came to nothing: %s", rescan->fault.message);
    for (uint32_t i = 0; i < service->rescans->num_skipped; i++)
        free(service->rescans->skipped[i]);
    service->rescans->num_skipped = 0;
    for (uint32_t i = 0; can_take && i < rescan->num_looks; i++)
        take_look(service, &rescan->looks[i]);
    if (can_take)
        service->rescans->stamp = rescan->stamp;
    if (service->rescans->added > added)
        service->catalog->events->changed(service);
    struct fault fault = rescan->fault;
    free_rescan(rescan);
    refresh_ended(&service->rescans->looks, &fault);
}

/* ---- beginning ---- */

static int note_known(struct rescan *rescan, const struct run *run)
{
    ERR_TRY(array_reserve(&rescan->looks, &rescan->room_looks, rescan->num_looks,
                          sizeof *rescan->looks));
    struct look *look = &rescan->looks[rescan->num_looks++];
    memset(look, 0, sizeof *look);
    snprintf(look->name, sizeof look->name, "%s", run->name);
    look->is_known = true;
    look->stamp = run->looked_stamp;
    for (const struct checkpoint *c = run->checkpoints; c; c = c->next) {
        if (!c->copies.local.is_there)
            continue;
        ERR_TRY(
            array_reserve(&look->known, &look->room_known, look->num_known, sizeof *look->known));
        look->known[look->num_known++] =
            (struct place_of_step){.step = c->summary.step, .attempt = c->summary.attempt};
    }
    return 0;
}

static void start_look(struct refreshes *looks)
{
    struct service *service = looks->service;
    struct rescan *rescan = calloc(1, sizeof *rescan);
    int error = rescan ? 0 : report_error(ERR_MEMORY, NULL, "no memory for a look at the store");
    for (const struct run *run = service->catalog->runs; run && error == 0; run = run->next)
        if (run->unreadable.code == 0)
            error = note_known(rescan, run);
    if (error != 0) {
        if (rescan)
            free_rescan(rescan);
        refresh_give_up(looks, error);
        return;
    }
    rescan->service = service;
    rescan->stamp = service->rescans->stamp;
    refresh_begun(looks);
    rescan->job = (struct job){.work = work_look, .done.run = looked};
    loop_work(service->loop, &rescan->job);
}

int rescan_open(struct service *service)
{
    service->rescans = calloc(1, sizeof *service->rescans);
    if (!service->rescans)
        return report_error(ERR_MEMORY, NULL, "no memory for the service");
    refresh_init(&service->rescans->looks, service, TIER_LOCAL, start_look);
    service->store_looks = &service->rescans->looks;
    return 0;
}

void rescan_end(struct service *service)
{
    if (service->rescans)
        refresh_end(&service->rescans->looks);
}

void rescan_close(struct service *service)
{
    for (uint32_t i = 0; service->rescans && i < service->rescans->num_skipped; i++)
        free(service->rescans->skipped[i]);
    free(service->rescans);
    service->rescans = NULL;
}

/* ---- calls ---- */

struct asking {
    struct refresh_waiter waiter;
    struct rpc_call *call;
    uint64_t added, vanished; /* before */
};

static void answer(struct refresh_waiter *waiter)
{
    struct asking *asking = CONTAINER_OF(waiter, struct asking, waiter);
    const struct service *service = waiter->service;
    Holdfast__V1__RescanReply reply = HOLDFAST__V1__RESCAN_REPLY__INIT;
    reply.added = service->rescans->added - asking->added;
    reply.vanished = service->rescans->vanished - asking->vanished;
    reply.skipped = (char **)(uintptr_t)service->rescans->skipped;
    reply.n_skipped = service->rescans->num_skipped;
    rpc_call_reply(asking->call, &reply.base);
    free(asking);
}

void rescan_call(struct service *service, struct rpc_call *call,
                 const Holdfast__V1__RescanRequest *request)
{
    struct asking *asking = calloc(1, sizeof *asking);
    (void)request;
    int error = asking ? service_check_open(service)
                       : report_error(ERR_MEMORY, NULL, "no memory for a look at the store");
    if (error != 0) {
        free(asking);
        rpc_call_fail(call, error);
        return;
    }
    *asking = (struct asking){.waiter.go_on = answer,
                              .call = call,
                              .added = service->rescans->added,
                              .vanished = service->rescans->vanished};
    service->rescans->stamp = 0;
    for (struct run *run = service->catalog->runs; run; run = run->next)
        run->looked_stamp = 0; /* names are read in any case */
    refresh_store(service, &asking->waiter);
}
