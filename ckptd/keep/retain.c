/* retain.c - removes checkpoints of a tier by rules: prune, retention.
 *
 *   1. Prune; for retention a commit, a save that found no room, and once after the start.
 *   2. A worker makes the plan (retain_plan.c): missing checkpoints leave the catalog.
 *   3. Each checkpoint to remove, unless it was leased since, leaves the catalog and memory, so
 *      that it cannot be opened any more.
 *   4. A worker removes it (store_remove), which checks for a pin once more after its tombstone.
 *      One that is still whole then (pinned meanwhile, a failed operation) returns to the catalog.
 *
 * A plan waits until no lease file of ckptd is being removed (restore/held.c).
 *
 * Each tier has its plan: the local one by [retention] or a prune, then the far one by [tier]. A
 * local copy that is wanted in the far tier must be there before it is dropped (drop_copies.c).
 *
 * Limit: one plan at a time per run (ERR_BUSY). retain_rules.c decides when which rules apply. */
#include "proto/format/retain.h"
#include "proto/format/flaw.h"

#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/history.h"
#include "ckptd/core/ledger.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/keep/drop_copies.h"
#include "ckptd/keep/gc.h"
#include "ckptd/keep/retain_private.h"
#include "ckptd/keep/trash.h"
#include "ckptd/memory/resident.h"
#include "ckptd/refresh/refresh.h"
#include "ckptd/restore/held.h"
#include "ckptd/tiers/queue.h"
#include "ckptd/tiers/replicate.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "proto/format/shard.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RELEASES_MS 5 /* interval for checking whether lease files are still being removed */

static void free_pruning(struct pruning *pruning)
{
    if (pruning->run)
        pruning->run->pruning = NULL;
    for (uint32_t i = 0; pruning->candidates && i < pruning->count; i++) {
        catalog_drop(pruning->candidates[i].checkpoint);
        free(pruning->candidates[i].pin.note);
        free(pruning->candidates[i].far_pin.note);
    }
    free(pruning->items);
    free(pruning->candidates);
    free(pruning);
}

/* ---- the answer ---- */

static void fill_entry(Holdfast__V1__PruneEntry *out, const struct pruning *pruning, uint32_t index)
{
    const struct candidate *candidate = &pruning->candidates[index];
    holdfast__v1__prune_entry__init(out);
    out->step = candidate->summary.step;
    out->attempt = candidate->summary.attempt;
    out->bytes = candidate->summary.bytes;
    out->reasons = pruning->items[index].reasons;
    out->removed = candidate->is_gone;
    out->error = out->reasons == 0 ? (char *)(uintptr_t)candidate->fault.message : out->error;
}

static void send_answer(struct pruning *pruning)
{
    Holdfast__V1__PruneReply reply = HOLDFAST__V1__PRUNE_REPLY__INIT;
    Holdfast__V1__PruneEntry *entries = calloc(pruning->count + 1, sizeof *entries);
    Holdfast__V1__PruneEntry **pointers = calloc(pruning->count + 1, sizeof *pointers);
    for (uint32_t i = 0; entries && pointers && i < pruning->count; i++) {
        fill_entry(&entries[i], pruning, i);
        pointers[i] = &entries[i];
    }
    reply.durability = DURABILITY_LOCAL;
    reply.trash_seconds = pruning->trash;
    reply.entries = pointers;
    reply.n_entries = pruning->count;
    if (entries && pointers)
        rpc_call_reply(pruning->call, &reply.base);
    else
        rpc_call_fail(pruning->call, report_error(ERR_MEMORY, NULL, "no memory for the answer"));
    free(entries);
    free(pointers);
}

static void finish_pruning(struct pruning *pruning)
{
    if (!pruning->call)
        pruning->run->unpruned[pruning->tier == TIER_FAR] = pruning->fault;
    if (pruning->fault.code != 0) {
        int error = fault_raise(&pruning->fault);
        if (pruning->call)
            rpc_call_fail(pruning->call, error);
        else
            log_warn("retain", "run %s: nothing was removed: %s", pruning->run->name,
                     report_line());
    } else if (pruning->call) {
        send_answer(pruning);
    }
    struct run *run = pruning->run;
    bool was_local = pruning->tier == TIER_LOCAL && !pruning->call;
    free_pruning(pruning);
    if (run->retain_again)
        retain_apply(run);
    else if (was_local)
        retain_apply_far(run);
}

/* ---- removal ---- */

static int remove_one(const struct pruning *pruning, const struct manifest_summary *summary)
{
    struct storage *storage = retain_storage(pruning);
    char prefix[STORAGE_KEY_MAX];
    int error = shard_dir_key(prefix, sizeof prefix, summary->run, summary->step, summary->attempt);
    if (error != 0)
        return error;
    return pruning->trash > 0 ? store_trash_put(storage, prefix, (uint64_t)time(NULL), false)
                              : store_remove(storage, prefix);
}

/* Without its manifest a checkpoint is gone, even after an error. */
static bool is_gone(struct storage *storage, const struct manifest_summary *summary)
{
    char key[STORAGE_KEY_MAX + 1];
    uint64_t bytes;
    return manifest_key(key, sizeof key, summary) == 0 &&
           storage_fetch(storage, key, NULL, 0, &bytes) == ERR_NOT_FOUND;
}

static void work_remove(struct job *job)
{
    struct pruning *pruning = CONTAINER_OF(job, struct pruning, job);
    struct storage *storage = retain_storage(pruning);
    for (uint32_t i = 0; i < pruning->count; i++) {
        struct candidate *candidate = &pruning->candidates[i];
        if (!candidate->checkpoint)
            continue;
        int error = remove_one(pruning, &candidate->summary);
        if (error != 0)
            fault_take(&candidate->fault, error);
        candidate->is_gone = error == 0 || is_gone(storage, &candidate->summary);
        pruning->service->retention->pruned += candidate->is_gone;
    }
}

static void removed(struct event *event)
{
    struct pruning *pruning = CONTAINER_OF(event, struct pruning, job.done);
    const char *into = pruning->trash > 0 ? "into the trash" : "";
    uint32_t count = 0;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < pruning->count; i++) {
        struct candidate *candidate = &pruning->candidates[i];
        if (!candidate->checkpoint)
            continue;
        if (candidate->fault.code != 0)
            log_warn("retain", "run %s, step %llu, attempt %llu %s: %s", pruning->run->name,
                     (unsigned long long)candidate->summary.step,
                     (unsigned long long)candidate->summary.attempt,
                     candidate->is_gone ? "was removed, but not all of its files were" : "stays",
                     candidate->fault.message);
        if (!candidate->is_gone) {
            catalog_enter(candidate->checkpoint, &candidate->summary);
            candidate->checkpoint = NULL;
            continue;
        }
        count++;
        bytes += candidate->summary.bytes;
        if (catalog_lost(candidate->checkpoint, pruning->tier)) { /* another tier still has it */
            catalog_enter(candidate->checkpoint, &candidate->summary);
            candidate->checkpoint = NULL;
        }
        history_note(pruning->run, &(struct history_event){.name = "remove",
                                                           .step = candidate->summary.step,
                                                           .attempt = candidate->summary.attempt,
                                                           .call = pruning->call,
                                                           .detail = into,
                                                           .by = "retention"});
        log_info("retain", "run %s: removed step %llu, attempt %llu %sby %s, %llu bytes%s%s",
                 pruning->run->name, (unsigned long long)candidate->summary.step,
                 (unsigned long long)candidate->summary.attempt,
                 pruning->tier == TIER_FAR ? "from the far tier " : "",
                 pruning->call ? "a prune" : "retention",
                 (unsigned long long)candidate->summary.bytes, into[0] ? ", " : "", into);
    }
    if (count > 0 && pruning->tier == TIER_FAR)
        refresh_changed(pruning->service);
    if (count > 0 && pruning->tier == TIER_LOCAL)
        ledger_note(&pruning->service->ledger, clock_ms(), -(int64_t)bytes);
    if (count > 0 && pruning->trash > 0)
        trash_sweep_soon(pruning->service, pruning->tier);
    log_debug("retain", "run %s: removed %u of %u checkpoints, %llu bytes", pruning->run->name,
              count, pruning->count, (unsigned long long)bytes);
    finish_pruning(pruning);
}

/* Takes the checkpoints to remove out of the catalog and memory. False: there are none. */
static bool take_out_chosen(struct pruning *pruning)
{
    bool any = false;
    for (uint32_t i = 0; i < pruning->count; i++) {
        struct candidate *candidate = &pruning->candidates[i];
        if (pruning->items[i].reasons != 0)
            continue; /* not looked up: the list may be long, and most of it stays */
        struct checkpoint *checkpoint =
            catalog_find(pruning->run, candidate->summary.step, candidate->summary.attempt);
        if (!checkpoint)
            continue;
        if (!resident_take_out(checkpoint)) {
            pruning->items[i].reasons = RETAIN_LEASED; /* leased since the plan was made */
            continue;
        }
        candidate->checkpoint = checkpoint;
        any = true;
    }
    return any;
}

/* For retention only: a prune may use another metric. */
static void note_metric(const struct pruning *pruning, struct checkpoint *checkpoint,
                        uint32_t index)
{
    const struct retain_item *item = &pruning->items[index];
    if (!pruning->call && pruning->candidates[index].has_read)
        checkpoint->metric = (struct checkpoint_metric){
            .is_known = true, .is_there = item->has_metric, .value = item->metric};
}

/* Takes over the pins and metrics that the plan has read. Both lists are newest first; later saves
 * are in front. */
static void note_read(struct pruning *pruning)
{
    struct checkpoint *checkpoint = pruning->run->checkpoints;
    for (uint32_t i = 0; i < pruning->count; i++) {
        const struct retain_item *item = &pruning->items[i];
        struct candidate *candidate = &pruning->candidates[i];
        while (checkpoint && (checkpoint->summary.attempt > item->attempt ||
                              (checkpoint->summary.attempt == item->attempt &&
                               checkpoint->summary.step > item->step)))
            checkpoint = checkpoint->next;
        if (checkpoint && checkpoint->summary.attempt == item->attempt &&
            checkpoint->summary.step == item->step) {
            note_metric(pruning, checkpoint, i);
            if (pruning->tier == TIER_LOCAL)
                catalog_take_verified(checkpoint, &candidate->verified);
            catalog_set_pin(checkpoint, TIER_LOCAL, &candidate->pin);
            candidate->pin = (struct pin){0};
            if (pruning->tier == TIER_FAR)
                catalog_set_pin(checkpoint, TIER_FAR, &candidate->far_pin);
            if (pruning->tier == TIER_FAR)
                candidate->far_pin = (struct pin){0};
        }
    }
}

/* It is missing in the tier. Shards without a manifest stay listed: an operator must act. */
static void note_missing(const struct pruning *pruning, const struct candidate *candidate,
                         struct checkpoint *checkpoint)
{
    bool is_elsewhere = catalog_lost(checkpoint, pruning->tier);
    if (!is_elsewhere && candidate->is_aside) {
        catalog_set_aside(checkpoint, FLAW_ASIDE, CATALOG_ASIDE_TEXT);
        return;
    }
    if (!is_elsewhere && !resident_take_out(checkpoint))
        return;
    if (!is_elsewhere)
        catalog_drop(checkpoint);
    history_note(pruning->run, &(struct history_event){.name = "vanish",
                                                       .step = candidate->summary.step,
                                                       .attempt = candidate->summary.attempt,
                                                       .by = "another program"});
    log_error("retain", "run %s, step %llu, attempt %llu has vanished from the store: %s",
              pruning->run->name, (unsigned long long)candidate->summary.step,
              (unsigned long long)candidate->summary.attempt, candidate->fault.message);
}

/* Reports the results of the checks to the catalog, even if the plan failed. */
static void note_checks(struct pruning *pruning)
{
    for (uint32_t i = 0; i < pruning->count; i++) {
        const struct candidate *candidate = &pruning->candidates[i];
        struct checkpoint *checkpoint =
            candidate->fault.code != 0
                ? catalog_find(pruning->run, candidate->summary.step, candidate->summary.attempt)
                : NULL;
        if (!checkpoint)
            continue;
        if (pruning->items[i].is_vanished)
            note_missing(pruning, candidate, checkpoint);
        else
            catalog_damage(checkpoint, pruning->tier, &candidate->fault);
    }
}

static void planned(struct event *event)
{
    struct pruning *pruning = CONTAINER_OF(event, struct pruning, job.done);
    note_checks(pruning);
    if (pruning->fault.code == 0)
        note_read(pruning);
    if (pruning->reads_metrics) /* the best checkpoints are known now */
        replicate_check_queues(pruning->service);
    if (pruning->fault.code != 0 || pruning->is_dry || pruning->only_reads ||
        !take_out_chosen(pruning)) {
        finish_pruning(pruning);
        return;
    }
    pruning->job = (struct job){.work = work_remove, .done.run = removed};
    tier_work(pruning->service, pruning->tier, &pruning->job);
}

/* ---- beginning ---- */

/* Shards of it are on other nodes, and the first one's node still has its part: that node decides,
 * so that no node keeps a part whose other shards were removed here. */
static bool is_led_by_peer(const struct checkpoint *checkpoint)
{
    return checkpoint->is_led_elsewhere && checkpoint->places[0] < NUM_TIERS &&
           copies_at(checkpoint, checkpoint->places[0])->is_there;
}

static const struct checkpoint *newest_replicated(const struct run *run)
{
    const struct checkpoint *found = run->checkpoints;
    while (found && (found->damaged || catalog_durability(found) < DURABLE_REPLICATED))
        found = found->next;
    return found;
}

static void fill_items(struct pruning *pruning)
{
    bool is_here = pruning->tier == TIER_LOCAL && pruning->service->config->members.count > 0;
    const struct checkpoint *spread = is_here ? newest_replicated(pruning->run) : NULL;
    uint32_t i = 0;
    queue_plan(pruning->run);
    for (const struct checkpoint *c = pruning->run->checkpoints; c; c = c->next) {
        if (!copies_at(c, pruning->tier)->is_there)
            continue;
        pruning->candidates[i].summary = c->summary;
        pruning->candidates[i].manifest_hash =
            pruning->tier == TIER_LOCAL ? c->manifest_hash : c->copies.far.manifest_hash;
        pruning->candidates[i].is_led = is_led_by_peer(c);
        pruning->candidates[i].is_spread = c == spread;
        pruning->candidates[i].has_read = !pruning->call && c->metric.is_known;
        drop_copy_note_other(&pruning->candidates[i].other, c, pruning->tier);
        pruning->items[i++] = (struct retain_item){
            .step = c->summary.step,
            .attempt = c->summary.attempt,
            .time = retain_time(c->summary.time),
            .has_metric = !pruning->call && c->metric.is_there,
            .metric = c->metric.value,
            .is_pinned = pruning->tier == TIER_LOCAL && c->far_pin.is_made,
            .is_leased = catalog_in_use(c),
            .is_damaged = !catalog_has_copy(c, pruning->tier) ||
                          (pruning->tier == TIER_LOCAL && c->is_suspect && pruning->service->scrub),
            .is_proven =
                pruning->tier == TIER_LOCAL ? catalog_is_read_back(c) : c->copies.far.proven != 0};
    }
}

static int check_start(const struct service *service, const struct run *run, bool is_dry)
{
    if (run->pruning || run->adopting == UINT64_MAX) /* keep/remove.c */
        return report_error(ERR_BUSY, "try again", "checkpoints of run %s are being removed",
                            run->name);
    if (is_dry)
        return 0;
    if (gc_is_removing(service))
        return report_error(ERR_BUSY, "try again", "rubbish is being removed");
    return service_check_online(service);
}

static void start_plan(struct timer *timer)
{
    struct pruning *pruning = CONTAINER_OF(timer, struct pruning, timer);
    struct loop *loop = pruning->service->loop;
    if (pruning->service->held->num_releases > 0) {
        loop_timer(loop, timer, RELEASES_MS);
        return;
    }
    /* A refresh of the far tier may take long. */
    enum tier_index slowest = tier_has_far(pruning->service) ? TIER_FAR : TIER_LOCAL;
    pruning->job = (struct job){.work = retain_work_plan, .done.run = planned};
    tier_work(pruning->service, slowest, &pruning->job);
}

int retain_begin(struct run *run, const struct plan_options *options)
{
    struct service *service = run->service;
    int error = check_start(service, run, options->is_dry);
    if (error != 0)
        return error;
    struct pruning *pruning = calloc(1, sizeof *pruning);
    if (!pruning)
        return report_error(ERR_MEMORY, NULL, "no memory for a prune");
    for (const struct checkpoint *c = run->checkpoints; c; c = c->next)
        pruning->count += copies_at(c, options->tier)->is_there;
    pruning->items = calloc(pruning->count + 1, sizeof *pruning->items);
    pruning->candidates = calloc(pruning->count + 1, sizeof *pruning->candidates);
    if (!pruning->items || !pruning->candidates) {
        free_pruning(pruning);
        return report_error(ERR_MEMORY, NULL, "no memory for a plan of many checkpoints");
    }
    pruning->service = service;
    pruning->run = run;
    pruning->tier = options->tier;
    pruning->call = options->call;
    pruning->rules = options->rules;
    pruning->is_dry = options->is_dry;
    pruning->reads_metrics = options->reads_metrics;
    pruning->only_reads = options->only_reads;
    pruning->trash = options->is_final ? 0 : trash_term(run, options->tier);
    snprintf(pruning->metric, sizeof pruning->metric, "%s",
             options->metric[0] ? options->metric : "loss");
    fill_items(pruning);
    run->pruning = pruning;
    pruning->timer.run = start_plan;
    start_plan(&pruning->timer);
    return 0;
}

void retain_prune(struct service *service, struct rpc_call *call,
                  const Holdfast__V1__PruneRequest *request)
{
    struct run *run;
    struct retain_rules rules = {.keep_last = request->keep_last,
                                 .keep_every = request->keep_every,
                                 .keep_within = request->keep_within_seconds,
                                 .keep_best = request->keep_best,
                                 .best_is_highest = request->best_is_highest,
                                 .may_remove_most = request->may_remove_most};
    int error = retain_check(&rules);
    if (error == 0)
        error = service_check_open(service);
    if (error == 0)
        error = run_find(&run, service, request->run, false);
    if (error == 0)
        error = retain_begin(run, &(struct plan_options){.call = call,
                                                         .rules = rules,
                                                         .metric = request->metric,
                                                         .is_dry = request->dry_run,
                                                         .is_final = request->now});
    if (error != 0)
        rpc_call_fail(call, error);
}
