/* refresh_take.c - applies the results of a scan to the catalog.
 *
 * It ignores directories that may be ckptd's own work: of a run from which checkpoints are being
 * removed. For new ones in the local store also: of a run with an adoption in progress, and of an
 * attempt in training that is not older than the newest. A checkpoint in use stays listed. If a
 * change of the local store could not be applied, the next scan tries again.
 *
 * A checkpoint with the step and attempt of a local one but another nonce belongs to another store:
 * it is logged, and never merged. */
#include "ckptd/core/catalog.h"
#include "ckptd/core/history.h"
#include "ckptd/core/hooks.h"
#include "ckptd/core/ledger.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/resident.h"
#include "ckptd/refresh/refresh_private.h"
#include "proto/base/clock.h"
#include "proto/format/retain.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void note_newest(struct run *run, uint64_t attempt)
{
    if (attempt <= run->newest_attempt)
        return;
    run->newest_attempt = attempt;
    run->service->catalog->events->saw(run);
}

static void note_in_history(struct run *run, const char *name, const struct scan_step *step)
{
    history_note(run, &(struct history_event){.name = name,
                                              .step = step->step,
                                              .attempt = step->attempt,
                                              .by = "another program"});
}

/* ---- new checkpoints ---- */

static int check_newcomer(const struct run *run, const struct scan_step *step)
{
    const struct service *service = run->service;
    if (run->pruning || run->adopting != 0 ||
        service->hooks->is_being_removed(service, run->name, step->step, step->attempt))
        return report_error(ERR_BUSY, "try again", "the run %s is being changed", run->name);
    if (step->attempt >= run->newest_attempt && !service->catalog->events->is_idle(run))
        return report_error(ERR_DENIED, "it is listed when the run is not trained any more",
                            "run %s is being trained here, in attempt %" PRIu64
                            ": a checkpoint of attempt %" PRIu64 " could be its own",
                            run->name, run->newest_attempt, step->attempt);
    return 0;
}

static void note_newcomer(struct run *run, const struct scan_step *step)
{
    uint64_t bytes = step->news->summary.bytes;
    note_newest(run, step->attempt);
    ledger_note(&run->service->ledger, clock_ms(), (int64_t)bytes);
    run->service->refreshes[TIER_LOCAL]->added++;
    note_in_history(run, "found", step);
    log_info("catalog",
             "run %s, step %" PRIu64 ", attempt %" PRIu64 " was found in the store: %" PRIu64
             " bytes",
             run->name, step->step, step->attempt, bytes);
}

/* Enters a checkpoint that was missing, or a part, which may have all shards now. Those that a save
 * or a removal owns are left to it. */
static int enter_step(struct run *run, struct scan_step *step, enum tier_index tier)
{
    struct checkpoint *checkpoint = catalog_find(run, step->step, step->attempt);
    bool is_local = tier == TIER_LOCAL, is_new = is_local && !checkpoint;
    bool is_first = !run->checkpoints && run->scrubbed.number == 0;
    if (catalog_is_promised(run, step->step, step->attempt) ||
        (checkpoint &&
         (is_local ? checkpoint->copies.local.is_there : catalog_is_uncommitted(checkpoint))))
        return 0;
    if (step->news->fault.code != 0)
        return fault_raise(&step->news->fault);
    if (is_new)
        ERR_TRY(check_newcomer(run, step));
    ERR_TRY(catalog_add(&checkpoint, run, &step->news->summary, tier, &step->news->places));
    if (is_local) {
        catalog_set_pin(checkpoint, tier, &step->pin);
        step->pin = (struct pin){0};
    }
    if (is_new)
        note_newcomer(run, step);
    if (is_new && !is_first) /* it was not read back here */
        scrub_cursor_brought(&run->scrubbed, step->step, step->attempt);
    return 0;
}

/* Only Rescan reports these. */
static void note_skipped(struct refresh *refresh, const struct scan_run *from,
                         const struct scan_step *step)
{
    char text[512];
    if (refresh->num_skipped == REFRESH_SKIPPED_MAX)
        return;
    snprintf(text, sizeof text, "%s@%" PRIu64 "-a%" PRIu64 ": %s", from->name, step->step,
             step->attempt, report_line());
    report_make_printable(text);
    char *copy = strdup(text);
    if (copy)
        refresh->skipped[refresh->num_skipped++] = copy;
}

static void log_unlisted(const struct run *run, const struct scan_step *step, const char *name,
                         int error)
{
    if (error == ERR_EXISTS)
        log_error("tier", "the checkpoints in the tier %s are not listed: %s", name, report_line());
    else
        log_warn("tier", "run %s, step %" PRIu64 " is not listed: %s", run->name, step->step,
                 report_line());
}

/* ---- missing checkpoints ---- */

static void note_gone(struct run *run, const struct scan_step *step, enum tier_index tier,
                      bool was_volatile)
{
    const char *name = tier_name(run->service, tier);
    if (tier == TIER_LOCAL) {
        run->service->refreshes[tier]->vanished++;
        note_in_history(run, "vanish", step);
        log_error("catalog",
                  "run %s, step %" PRIu64 ", attempt %" PRIu64
                  " has vanished: its directory is gone",
                  run->name, step->step, step->attempt);
    } else if (was_volatile) { /* a newer one has come, or that ckptd was restarted */
        log_debug("tier", "run %s, step %" PRIu64 " is no longer in the memory of %s", run->name,
                  step->step, name);
    } else {
        log_warn("tier",
                 "run %s, step %" PRIu64 ", attempt %" PRIu64 " has vanished from the tier %s",
                 run->name, step->step, step->attempt, name);
    }
}

/* The checkpoint is gone from the tier. False: it is in use, and stays for the present. */
static bool leave_step(struct run *run, const struct scan_step *step, enum tier_index tier)
{
    struct checkpoint *checkpoint = catalog_find(run, step->step, step->attempt);
    if (!checkpoint || !copies_at(checkpoint, tier)->is_there)
        return true;
    bool was_volatile = copies_at(checkpoint, tier)->is_volatile;
    if (!catalog_lost(checkpoint, tier)) {
        if (!resident_take_out(checkpoint))
            return false;
        catalog_drop(checkpoint);
    }
    note_gone(run, step, tier, was_volatile);
    return true;
}

/* ---- the whole scan ---- */

/* On the disk or in memory: a node may have been restarted with another setting. The pins of the
 * far tier are taken as they are there. */
static void note_copy(struct run *run, struct scan_step *step, enum tier_index tier)
{
    struct checkpoint *checkpoint = catalog_find(run, step->step, step->attempt);
    if (!checkpoint || !copies_at(checkpoint, tier)->is_there)
        return;
    if (step->is_there && step->is_volatile != step->was_volatile)
        copies_note(checkpoint, tier)->is_volatile = step->is_volatile;
    if (tier != TIER_FAR)
        return;
    catalog_set_pin(checkpoint, tier, &step->pin);
    step->pin = (struct pin){0};
}

/* False: it could not be applied yet. */
static bool take_step(struct scan *scan, struct run *run, struct scan_run *from,
                      struct scan_step *step)
{
    if (!step->is_there)
        return !step->is_known || leave_step(run, step, scan->tier);
    if (step->is_known && !step->is_part)
        return true;
    int error = enter_step(run, step, scan->tier);
    if (error != 0 && scan->tier == TIER_LOCAL)
        note_skipped(scan->service->refreshes[scan->tier], from, step);
    else if (error != 0)
        log_unlisted(run, step, tier_name(scan->service, scan->tier), error);
    return error == 0;
}

static bool is_any(const struct scan *scan, const struct scan_run *from)
{
    for (uint32_t i = 0; i < from->num_steps; i++)
        if (from->steps[i].is_there || from->steps[i].is_known)
            return from->has_names;
    return from->has_names && (from->attempt > 0 || (scan->tier == TIER_LOCAL && from->is_known));
}

static void take_run(struct scan *scan, struct scan_run *from)
{
    struct run *run = NULL;
    enum tier_index tier = scan->tier;
    bool is_local = tier == TIER_LOCAL, is_all = true;
    if (!is_any(scan, from) ||
        run_find(&run, scan->service, from->name, !is_local || !from->is_known) != 0)
        return;
    note_newest(run, from->attempt);
    /* Checkpoints that a removal has taken out of the list are left to it. */
    bool is_changing = !is_local && (run->pruning || run->adopting == UINT64_MAX);
    for (uint32_t i = 0; i < from->num_steps; i++) {
        struct scan_step *step = &from->steps[i];
        if (step->is_there && !is_local)
            note_newest(run, step->attempt);
        if (!is_changing)
            is_all &= take_step(scan, run, from, step);
        if (!is_changing || tier == TIER_FAR)
            note_copy(run, step, tier);
    }
    if (from->is_gone)
        history_drop(run);
    if (is_local)
        run->refreshed_stamp = is_all ? from->stamp : 0;
    if (!tier_is_peer(tier))
        return;
    sets_merge(&run->sets, &from->sets);
    run->sets_seen[tier - TIER_PEER] = scan_sets_mark(from);
}

void scan_apply(struct scan *scan)
{
    struct refresh *refresh = scan->service->refreshes[scan->tier];
    uint64_t added = refresh->added;
    while (refresh->num_skipped > 0)
        free(refresh->skipped[--refresh->num_skipped]);
    for (uint32_t i = 0; i < scan->num_runs; i++)
        take_run(scan, &scan->runs[i]);
    refresh->stamp = scan->stamp;
    if (refresh->added > added)
        scan->service->catalog->events->changed(scan->service);
}
