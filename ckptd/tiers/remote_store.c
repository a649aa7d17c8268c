/* remote_store.c - looks at what another tier holds, the far one or a peer's store: at the start,
 * before each attempt is opened, and when a list or a load comes and the last look is old.
 *
 *   service thread: what is known to be there ──► crew: the runs; of each its attempts, directories
 *   of steps and pins; of steps that are not known the summary of the manifest ──► service thread:
 *   the catalog
 *
 * Runs, and then steps, are looked at several at once (storage_for_many): most of a look is waiting
 * for answers.
 *
 * What has no manifest is no checkpoint, and is left alone: another node may be sending it. A
 * listing may lag: what it names is believed only when the manifest could be read, and what it does
 * not name any more leaves the catalog when the manifest is not found either. An error changes
 * nothing.
 *
 * A checkpoint of the same step and attempt but with another nonce than the local one is another
 * store's: it is named in the log, and never mixed with ours. */
#include "ckptd/tiers/remote_store.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/resident.h"
#include "proto/base/address.h"
#include "proto/base/array.h"
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "proto/format/places.h"
#include "proto/format/retain.h"
#include "proto/format/shard.h"
#include "proto/tls/why.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct far_step {
    uint64_t step, attempt;
    bool is_known;     /* when the look began, */
    bool is_part;      /* and a part of it there: it may have become whole, */
    bool was_volatile; /* or in memory */
    bool is_there, is_volatile;
    bool is_pinned; /* whoever made the pin */
    struct pin pin;
    struct manifest_summary summary; /* of one that was not known, or a part */
    struct places places;            /* likewise, owned */
};

struct far_run {
    char name[RUN_NAME_MAX + 1];
    uint64_t attempt; /* the highest number there */
    uint64_t held;    /* the highest that is said to be held (sets.h) */
    uint64_t seen;    /* as sets_mark() said at the last look */
    struct sets sets; /* its nodes, where there is more to see than that */
    struct far_step *steps;
    uint32_t num_steps, room_steps;
};

/* A step of which more is to be read than its name. */
struct far_due {
    struct far_run *run;
    struct far_step *step;
};

struct look {
    struct service *service;
    enum tier_index tier;
    struct far_run *runs;
    uint32_t num_runs, room_runs;
    struct far_due *due;
    uint32_t num_due, room_due;
    uint64_t changes; /* when it began */
    bool tells_why;   /* a peer was silent before */
    struct fault fault;
    struct job job;
};

struct remote_store {
    struct refreshes looks;
    struct look *now;  /* the one under way, or NULL */
    uint64_t changes;  /* removals by this ckptd */
    int64_t looked_ms; /* when the last one that went well ended; 0: none has */
};

static void free_look(struct look *look)
{
    for (uint32_t i = 0; i < look->num_runs; i++) {
        for (uint32_t k = 0; k < look->runs[i].num_steps; k++) {
            places_free(&look->runs[i].steps[k].places);
            free(look->runs[i].steps[k].pin.note);
        }
        free(look->runs[i].steps);
        sets_free(&look->runs[i].sets);
    }
    free(look->runs);
    free(look->due);
    free(look);
}

static int add_run(struct far_run **out, struct look *look, const char *name)
{
    ERR_TRY(array_reserve(&look->runs, &look->room_runs, look->num_runs, sizeof *look->runs));
    *out = &look->runs[look->num_runs++];
    memset(*out, 0, sizeof **out);
    snprintf((*out)->name, sizeof(*out)->name, "%s", name);
    return 0;
}

static int add_step(struct far_run *run, const struct far_step *step)
{
    ERR_TRY(array_reserve(&run->steps, &run->room_steps, run->num_steps, sizeof *run->steps));
    run->steps[run->num_steps++] = *step;
    return 0;
}

/* ---- on the crew ---- */

static int visit_run(void *user, const struct storage_entry *entry)
{
    struct look *look = user;
    struct far_run *run;
    if (!entry->is_dir || !run_name_valid(entry->name))
        return 0;
    for (uint32_t i = 0; i < look->num_runs; i++)
        if (strcmp(look->runs[i].name, entry->name) == 0)
            return 0;
    return add_run(&run, look, entry->name);
}

static int visit_attempt(void *user, const struct storage_entry *entry)
{
    struct far_run *run = user;
    char *end;
    unsigned long long number = strtoull(entry->name, &end, 10);
    if (*end == '\0' && number > run->attempt && number < UINT64_MAX)
        run->attempt = number;
    if (strcmp(end, SETS_HELD) == 0 && number > run->held)
        run->held = number;
    return 0;
}

static int visit_step(void *user, const struct storage_entry *entry)
{
    struct far_run *run = user;
    uint64_t step, attempt;
    if (!entry->is_dir || !retain_parse(entry->name, &step, &attempt))
        return 0;
    for (uint32_t i = 0; i < run->num_steps; i++) {
        if (run->steps[i].step != step || run->steps[i].attempt != attempt)
            continue;
        run->steps[i].is_there = true;
        run->steps[i].is_volatile = entry->is_volatile;
        return 0;
    }
    return add_step(run, &(struct far_step){.step = step,
                                            .attempt = attempt,
                                            .is_there = true,
                                            .is_volatile = entry->is_volatile});
}

static int manifest_is_there(struct storage *storage, const struct manifest_summary *summary)
{
    char key[STORAGE_KEY_MAX + 1];
    uint64_t bytes;
    ERR_TRY(manifest_key(key, sizeof key, summary));
    return storage_fetch(storage, key, NULL, 0, &bytes);
}

/* Without a file of places all shards are here, if the manifest is still there: a removal takes
 * that first. */
static int read_parts(struct storage *storage, const struct far_run *run, struct far_step *step)
{
    ERR_TRY(store_read_summary(&step->summary, storage, run->name, step->step, step->attempt));
    ERR_TRY(store_read_places(&step->places, storage, &step->summary));
    return step->places.num_shards > 0 ? 0 : manifest_is_there(storage, &step->summary);
}

/* Only a manifest makes it a checkpoint. The next look tries again what could not be read. */
static int read_summary(struct storage *storage, const struct far_run *run, struct far_step *step)
{
    struct manifest_summary named = {.step = step->step, .attempt = step->attempt};
    snprintf(named.run, sizeof named.run, "%s", run->name);
    bool is_whole = step->is_known && !step->is_part;
    int error = is_whole ? manifest_is_there(storage, &named) : read_parts(storage, run, step);
    if (!step->is_there) /* the list, which may lag, does not tell */
        step->is_volatile = step->was_volatile;
    step->is_there = error == 0;
    if (error != 0 && error != ERR_NOT_FOUND && error != ERR_CORRUPT && error != ERR_MISMATCH &&
        error != ERR_VERSION)
        return error;
    if (error != 0 && error != ERR_NOT_FOUND)
        log_warn("tier", "%s/step %llu, attempt %llu in the far tier is not listed: %s", run->name,
                 (unsigned long long)step->step, (unsigned long long)step->attempt, report_line());
    return 0;
}

static int visit_pin(void *user, const struct storage_entry *entry)
{
    struct far_run *run = user;
    uint64_t step, attempt;
    if (entry->is_dir || !retain_parse(entry->name, &step, &attempt))
        return 0;
    for (uint32_t i = 0; i < run->num_steps; i++)
        if (run->steps[i].step == step && run->steps[i].attempt == attempt)
            run->steps[i].is_pinned = true;
    return 0;
}

/* Another one than before: there are nodes to be read that an attempt counts on. */
static uint64_t sets_mark(const struct far_run *run)
{
    return 2 * run->attempt + (run->held >= run->attempt);
}

/* On any thread; touches its run and nothing else. */
static int list_run(void *user, size_t index)
{
    const struct look *look = user;
    struct storage *storage = look->service->tiers[look->tier].storage;
    struct far_run *run = &look->runs[index];
    char attempts[STORAGE_KEY_MAX];
    snprintf(attempts, sizeof attempts, "%s/attempts", run->name);
    int error = storage_list(storage, attempts, visit_attempt, run);
    if (error == 0 && tier_is_peer(look->tier) && sets_mark(run) != run->seen)
        error = sets_find(&run->sets, storage, run->name);
    if (error == 0)
        error = storage_list(storage, run->name, visit_step, run);
    return error == 0 ? store_for_notes(storage, STORE_PIN, run->name, visit_pin, run) : error;
}

/* A listing may lag. */
static bool needs_summary(const struct far_step *step)
{
    return !step->is_known || !step->is_there || step->is_part;
}

static int find_due(struct look *look)
{
    for (uint32_t i = 0; i < look->num_runs; i++)
        for (uint32_t k = 0; k < look->runs[i].num_steps; k++) {
            struct far_step *step = &look->runs[i].steps[k];
            if (!needs_summary(step) && !step->is_pinned)
                continue;
            ERR_TRY(array_reserve(&look->due, &look->room_due, look->num_due, sizeof *look->due));
            look->due[look->num_due++] = (struct far_due){&look->runs[i], step};
        }
    return 0;
}

/* On any thread; touches its step and nothing else. */
static int look_at_step(void *user, size_t index)
{
    const struct look *look = user;
    struct storage *storage = look->service->tiers[look->tier].storage;
    const struct far_run *run = look->due[index].run;
    struct far_step *step = look->due[index].step;
    if (needs_summary(step))
        ERR_TRY(read_summary(storage, run, step));
    return step->is_pinned
               ? catalog_read_pin(&step->pin, storage, run->name, step->step, step->attempt)
               : 0;
}

/* A peer that has not answered a call. */
static int say_why(const struct config *config, enum tier_index tier)
{
    const char *at = config->members.peers[tier - TIER_PEER].address;
    struct address address;
    ERR_TRY(address_parse(&address, at));
    return address.kind == ADDRESS_TLS ? tls_say_why(at, &address, config->tls_directory)
                                       : ERR_UNAVAILABLE;
}

static void work_look(struct job *job)
{
    struct look *look = CONTAINER_OF(job, struct look, job);
    int error = tier_reach(look->service, look->tier);
    struct storage *storage = look->service->tiers[look->tier].storage;
    if (error == 0)
        error = storage_list(storage, "", visit_run, look);
    if (error == 0)
        error = storage_for_many(storage, look->num_runs, list_run, look);
    if (error == 0)
        error = find_due(look);
    if (error == 0)
        error = storage_for_many(storage, look->num_due, look_at_step, look);
    if (error == ERR_UNAVAILABLE && look->tells_why)
        error = say_why(look->service->config, look->tier);
    if (error != 0)
        fault_take(&look->fault, error);
}

/* ---- into the catalog ---- */

/* What was not there, or a part of it: that may have all shards by now. */
static void enter_step(struct run *run, const struct far_step *step, enum tier_index tier)
{
    struct checkpoint *checkpoint = catalog_find(run, step->step, step->attempt);
    if (checkpoint && catalog_is_uncommitted(checkpoint))
        return;
    if (catalog_is_promised(run, step->step, step->attempt))
        return; /* the next look */
    int error = catalog_add(&checkpoint, run, &step->summary, tier, &step->places);
    if (error == ERR_EXISTS)
        log_error("tier", "what the tier %s has is not listed: %s", tier_name(run->service, tier),
                  report_line());
    else if (error != 0)
        log_warn("tier", "run %s, step %llu is not listed: %s", run->name,
                 (unsigned long long)step->step, report_line());
}

/* It was there, and neither a listing nor its manifest's name finds it. */
static void leave_step(struct run *run, const struct far_step *step, enum tier_index tier)
{
    struct checkpoint *checkpoint = catalog_find(run, step->step, step->attempt);
    if (!checkpoint || !copies_at(checkpoint, tier)->is_there)
        return;
    bool was_volatile = copies_at(checkpoint, tier)->is_volatile;
    if (!catalog_lost(checkpoint, tier)) {
        if (!resident_take_out(checkpoint))
            return; /* in use: the next look */
        catalog_drop(checkpoint);
    }
    if (was_volatile) /* a newer one has come, or that ckptd was started again */
        log_debug("tier", "run %s, step %llu is in the memory of %s no more", run->name,
                  (unsigned long long)step->step, tier_name(run->service, tier));
    else
        log_warn("tier", "run %s, step %llu, attempt %llu has vanished from the tier %s", run->name,
                 (unsigned long long)step->step, (unsigned long long)step->attempt,
                 tier_name(run->service, tier));
}

/* On the disk or in memory: a node may have been started again with another setting. */
static void note_volatile(struct run *run, const struct far_step *step, enum tier_index tier)
{
    struct checkpoint *checkpoint = catalog_find(run, step->step, step->attempt);
    if (checkpoint && copies_at(checkpoint, tier)->is_there)
        copies_note(checkpoint, tier)->is_volatile = step->is_volatile;
}

static void take_pin(struct run *run, struct far_step *step)
{
    struct checkpoint *checkpoint = catalog_find(run, step->step, step->attempt);
    if (!checkpoint || !checkpoint->copies.far.is_there)
        return;
    catalog_set_pin(checkpoint, TIER_FAR, &step->pin);
    step->pin = (struct pin){0};
}

static void take_run(struct service *service, enum tier_index tier, struct far_run *far)
{
    struct run *run = NULL;
    uint64_t newest = far->attempt;
    bool is_any = newest > 0;
    for (uint32_t i = 0; i < far->num_steps; i++) {
        const struct far_step *step = &far->steps[i];
        is_any |= step->is_there || step->is_known;
        if (step->is_there && step->attempt > newest)
            newest = step->attempt;
    }
    if (!is_any || run_find(&run, service, far->name, true) != 0)
        return;
    /* What a removal has taken out of the list is left to it. */
    bool is_changing = run->pruning || run->adopting == UINT64_MAX;
    for (uint32_t i = 0; i < far->num_steps && !is_changing; i++) {
        if (far->steps[i].is_there && (!far->steps[i].is_known || far->steps[i].is_part))
            enter_step(run, &far->steps[i], tier);
        else if (!far->steps[i].is_there && far->steps[i].is_known)
            leave_step(run, &far->steps[i], tier);
        if (far->steps[i].is_there && far->steps[i].is_volatile != far->steps[i].was_volatile)
            note_volatile(run, &far->steps[i], tier);
    }
    for (uint32_t i = 0; i < far->num_steps && tier == TIER_FAR; i++)
        take_pin(run, &far->steps[i]);
    if (tier_is_peer(tier)) {
        sets_merge(&run->sets, &far->sets);
        run->sets_seen[tier - TIER_PEER] = sets_mark(far);
    }
    if (newest > run->newest_attempt) {
        run->newest_attempt = newest;
        service->catalog->events->saw(run);
    }
}

/* A peer that is silent for long is lost, until it answers. */
static void note_silence(struct service *service, enum tier_index at, bool answers)
{
    struct tier *tier = &service->tiers[at];
    int64_t now = loop_now_ms();
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
        log_error(
            "nodes",
            "node %s has not answered for %lld s: its copies count no more, and are made anew "
            "on other nodes",
            tier_name(service, at), (long long)(now - tier->silent_since_ms) / 1000);
}

static void looked(struct event *event)
{
    struct look *look = CONTAINER_OF(event, struct look, job.done);
    struct service *service = look->service;
    struct tier *tier = &service->tiers[look->tier];
    struct remote_store *far = service->remote_stores[look->tier];
    const char *name = tier_name(service, look->tier);
    bool was_offline = tier->offline[0];
    if (look->fault.code == 0 && look->changes != far->changes) {
        /* It may have seen what was removed meanwhile. */
        far->now = NULL;
        free_look(look);
        refresh_repeat(&far->looks);
        return;
    }
    tier->offline[0] = '\0';
    note_silence(service, look->tier, look->fault.code == 0);
    if (look->fault.code != 0) {
        snprintf(tier->offline, sizeof tier->offline, "%s", look->fault.message);
        if (!was_offline)
            log_error("tier", "the tier %s cannot be read: %s", name, tier->offline);
    } else {
        for (uint32_t i = 0; i < look->num_runs; i++)
            take_run(service, look->tier, &look->runs[i]);
        far->looked_ms = loop_now_ms();
        tier->is_unknown = false;
        if (was_offline)
            log_info("tier", "the tier %s answers again", name);
    }
    struct fault fault = look->fault;
    far->now = NULL;
    free_look(look);
    refresh_ended(&far->looks, &fault);
}

/* ---- beginning ---- */

static int note_known(struct look *look, struct service *service)
{
    struct far_run *far;
    for (struct run *run = service->catalog->runs; run; run = run->next) {
        if (run->unreadable.code != 0)
            continue;
        run->far_index = look->num_runs;
        ERR_TRY(add_run(&far, look, run->name));
        far->seen = tier_is_peer(look->tier) ? run->sets_seen[look->tier - TIER_PEER] : 0;
    }
    for (const struct copy *copy = service->tiers[look->tier].copies; copy; copy = copy->next) {
        const struct checkpoint *c = copy->checkpoint;
        if (!copy->is_there || c->is_promised)
            continue;
        ERR_TRY(add_step(&look->runs[c->run->far_index],
                         &(struct far_step){.step = c->summary.step,
                                            .attempt = c->summary.attempt,
                                            .is_known = true,
                                            .is_part = copy->is_part,
                                            .was_volatile = copy->is_volatile}));
    }
    return 0;
}

static void start_look(struct refreshes *looks)
{
    struct service *service = looks->service;
    struct remote_store *far = service->remote_stores[looks->tier];
    struct look *look = calloc(1, sizeof *look);
    int error = look ? 0 : report_error(ERR_MEMORY, NULL, "no memory for a look at the far tier");
    if (look) {
        look->tier = looks->tier;
        look->tells_why =
            tier_is_peer(looks->tier) && service->tiers[looks->tier].silent_since_ms != 0;
        error = note_known(look, service);
    }
    if (error != 0) {
        if (look)
            free_look(look);
        refresh_give_up(looks, error);
        return;
    }
    refresh_begun(looks);
    look->service = service;
    look->changes = far->changes;
    look->job = (struct job){.work = work_look, .done.run = looked};
    far->now = look;
    tier_work(service, looks->tier, &look->job);
}

void remote_store_look(struct service *service, enum tier_index tier, struct refresh_waiter *waiter,
                       int64_t ms)
{
    refresh_wait(&service->remote_stores[tier]->looks, waiter, ms);
}

bool remote_store_is_fresh(const struct service *service, enum tier_index tier, int64_t max_age_ms)
{
    const struct remote_store *far = service->remote_stores[tier];
    return !far || (far->looked_ms > 0 && loop_now_ms() - far->looked_ms <= max_age_ms);
}

void remote_store_changed(struct service *service)
{
    service->remote_stores[TIER_FAR]->changes++;
}

int remote_store_open(struct service *service)
{
    for (unsigned tier = TIER_LOCAL + 1; tier < NUM_TIERS; tier++) {
        if (!tier_is_open(service, (enum tier_index)tier))
            continue;
        struct remote_store *far = calloc(1, sizeof *far);
        if (!far)
            return report_error(ERR_MEMORY, NULL, "no memory for a tier");
        refresh_init(&far->looks, service, (enum tier_index)tier, start_look);
        service->remote_stores[tier] = far;
        start_look(&far->looks);
    }
    return 0;
}

void remote_store_end(struct service *service)
{
    for (unsigned tier = 0; tier < NUM_TIERS; tier++)
        if (service->remote_stores[tier])
            refresh_end(&service->remote_stores[tier]->looks);
}

void remote_store_close(struct service *service)
{
    for (unsigned tier = 0; tier < NUM_TIERS; tier++) {
        struct remote_store *far = service->remote_stores[tier];
        if (far && far->now)
            free_look(far->now);
        free(far);
        service->remote_stores[tier] = NULL;
    }
}
