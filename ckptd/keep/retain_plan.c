/* retain_plan.c - the plan of a prune or of retention: which checkpoints of a tier are removed.
 *
 * A worker reads pins, leases, metrics and the notes of tools, makes the plan, and checks the
 * copies that it relies on: a missing or damaged one does not let others be removed.
 *
 * proto/format/retain.c decides, as for `ckpt-cli prune --store`. Tools without a server write
 * pins, leases and notes of verify as well, so they are read for every plan. A tool writes a pin or
 * lease before it checks for a tombstone; ckptd writes a tombstone before it checks for those: so
 * one of the two sees the other. */
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/service.h"
#include "ckptd/keep/retain_private.h"
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "storage/store/store.h"

struct storage *retain_storage(const struct pruning *pruning)
{
    return pruning->service->tiers[pruning->tier].storage;
}

struct pin_visit {
    struct pruning *pruning;
    enum tier_index tier;
};

/* The item of a note or a lease, or NULL. */
static struct retain_item *item_of(struct pruning *pruning, const struct storage_entry *entry)
{
    uint64_t step, attempt;
    if (entry->is_dir || !retain_parse(entry->name, &step, &attempt))
        return NULL;
    for (uint32_t i = 0; i < pruning->count; i++)
        if (pruning->items[i].step == step && pruning->items[i].attempt == attempt)
            return &pruning->items[i];
    return NULL;
}

static int visit_pin(void *user, const struct storage_entry *entry)
{
    const struct pin_visit *visit = user;
    struct pruning *pruning = visit->pruning;
    struct retain_item *item = item_of(pruning, entry);
    if (!item)
        return 0;
    struct candidate *candidate = &pruning->candidates[item - pruning->items];
    struct storage *storage = pruning->service->tiers[visit->tier].storage;
    item->is_pinned = true;
    return catalog_read_pin(visit->tier == TIER_FAR ? &candidate->far_pin : &candidate->pin,
                            storage, pruning->run->name, item->step, item->attempt);
}

static int visit_lease(void *user, const struct storage_entry *entry)
{
    struct retain_item *item = item_of(user, entry);
    if (item)
        item->is_leased = true;
    return 0;
}

/* Reads the notes of verify in the local tier. In the far tier each costs a request: there
 * check_copy() reads them, before any removal. */
static int read_verified(struct pruning *pruning)
{
    for (uint32_t i = 0; i < pruning->count && pruning->tier == TIER_LOCAL; i++) {
        struct retain_item *item = &pruning->items[i];
        struct verified *verified = &pruning->candidates[i].verified;
        int error =
            store_read_verified(verified, retain_storage(pruning), &pruning->candidates[i].summary);
        if (error == ERR_MEMORY)
            return error;
        item->is_damaged |= verified_stays(error, verified);
        item->is_proven |= verified->known == VERIFIED_WHOLE;
    }
    return 0;
}

/* Its manifest was not found. */
static void note_vanished(struct pruning *pruning, uint32_t index, int error)
{
    struct candidate *candidate = &pruning->candidates[index];
    const struct manifest_summary *summary = &candidate->summary;
    char prefix[STORAGE_KEY_MAX];
    enum store_rest rest;
    pruning->items[index].is_vanished = true;
    fault_take(&candidate->fault, error);
    candidate->is_aside =
        pruning->tier == TIER_LOCAL &&
        shard_dir_key(prefix, sizeof prefix, summary->run, summary->step, summary->attempt) == 0 &&
        store_rest(retain_storage(pruning), prefix, &rest) == 0 && rest == STORE_REST_ASIDE;
}

static int read_metric(struct pruning *pruning, uint32_t index)
{
    struct retain_item *item = &pruning->items[index];
    struct manifest *manifest = NULL;
    int error = store_read_manifest(&manifest, retain_storage(pruning),
                                    &pruning->candidates[index].summary);
    if (error == ERR_MEMORY)
        return error;
    if (error == ERR_NOT_FOUND)
        note_vanished(pruning, index, error);
    if (error != 0) { /* it cannot be verified: then it stays */
        item->is_damaged = error != ERR_NOT_FOUND;
        return 0;
    }
    error = retain_metric(item, manifest->state_json, pruning->metric);
    pruning->candidates[index].has_read = error == 0;
    manifest_free(manifest);
    return error;
}

static int read_metrics(struct pruning *pruning)
{
    int error = 0;
    if (pruning->rules.keep_best == 0 && !pruning->reads_metrics)
        return 0;
    for (uint32_t i = 0; i < pruning->count && error == 0; i++)
        if (!pruning->items[i].is_damaged && !pruning->candidates[i].has_read)
            error = read_metric(pruning, i);
    return error;
}

/* Checks whether the copy exists. An error proves nothing: the plan keeps the copy, but does not
 * rely on it. */
static int check_copy(void *user, uint32_t index)
{
    struct pruning *pruning = user;
    struct candidate *candidate = &pruning->candidates[index];
    struct retain_item *item = &pruning->items[index];
    int error = store_check(retain_storage(pruning), &candidate->summary, candidate->manifest_hash);
    struct verified verified = {0};
    int unread = error == 0 && pruning->tier == TIER_FAR
                     ? store_read_verified(&verified, retain_storage(pruning), &candidate->summary)
                     : ERR_NOT_FOUND;
    item->is_damaged = (error != 0 && error != ERR_NOT_FOUND) || verified_stays(unread, &verified);
    if (error == ERR_NOT_FOUND)
        note_vanished(pruning, index, error);
    if (error == ERR_CORRUPT)
        fault_take(&candidate->fault, error);
    return error == ERR_MEMORY ? error : 0;
}

/* A removal waits until the tier that keeps the checkpoint has it. */
static void hold_back(struct pruning *pruning)
{
    for (uint32_t i = 0; i < pruning->count; i++) {
        struct candidate *candidate = &pruning->candidates[i];
        if (pruning->items[i].reasons == 0 && (candidate->is_led || candidate->is_spread))
            /* While the leading node has it, or no newer one is on other nodes. */
            pruning->items[i].reasons = RETAIN_DRAINS;
        if (pruning->items[i].reasons != 0 ||
            drop_copy_check_other(pruning->service, &candidate->summary, &candidate->other) == 0)
            continue;
        pruning->items[i].reasons = RETAIN_DRAINS;
        log_debug("retain", "run %s, step %llu is kept: %s", pruning->run->name,
                  (unsigned long long)candidate->summary.step, report_line());
    }
}

static int read_pins_in(struct pruning *pruning, enum tier_index tier)
{
    struct pin_visit visit = {pruning, tier};
    return store_for_notes(pruning->service->tiers[tier].storage, STORE_PIN, pruning->run->name,
                           visit_pin, &visit);
}

/* A pin in any tier holds in all tiers. Pins of the far tier are read for removals there; for the
 * local tier the last refresh of the far tier counts. */
static int read_pins(struct pruning *pruning)
{
    int error = read_pins_in(pruning, TIER_LOCAL);
    return error == 0 && pruning->tier == TIER_FAR ? read_pins_in(pruning, TIER_FAR) : error;
}

void retain_work_plan(struct job *job)
{
    struct pruning *pruning = CONTAINER_OF(job, struct pruning, job);
    uint32_t removed;
    struct storage *storage = retain_storage(pruning);
    const char *run = pruning->run->name;
    /* Readers avoid a checkpoint with a tombstone. No removal of this run is in progress now, so
     * any tombstone is left from a failed one. */
    if (!pruning->is_dry && store_recover_run(storage, run) != 0)
        log_warn("retain", "run %s: could not finish an interrupted removal: %s", run,
                 report_line());
    int error = tier_reach(pruning->service, pruning->tier); /* is it the same store? */
    if (error == 0)
        error = read_pins(pruning);
    if (error == 0)
        error = store_for_leases(storage, run, visit_lease, pruning);
    if (error == 0)
        error = read_verified(pruning);
    if (error == 0)
        error = read_metrics(pruning);
    if (error == 0 && !pruning->only_reads) {
        error = retain_plan_seen(pruning->items, pruning->count, &pruning->rules, &removed,
                                 check_copy, pruning);
        if (error == ERR_DENIED && pruning->is_dry) /* a dry run shows a refused plan as well */
            error = 0;
    }
    if (error == 0 && !pruning->only_reads)
        hold_back(pruning);
    if (error != 0)
        fault_take(&pruning->fault, error);
}
