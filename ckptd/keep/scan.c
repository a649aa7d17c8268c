/* scan.c - reads the store at a start. There is no database: the store is authoritative.
 *
 * A directory "<run>/step-00001000-a0003" with a manifest is a committed checkpoint; of one that
 * ranks of several nodes saved, the shards that proto/format/places.h names must be here. ckptd
 * checks the summary in the manifest's first 4 KiB, the names and the sizes of the shards; a
 * mismatch is damage (catalog.c).
 *
 * A directory without a manifest, with the mark of unfinished work (proto/format/mark.h), is left
 * from a save that a crash interrupted in any state (commit.c). This ckptd is the store's only
 * writer and its coordinator, so no other process can still commit it. Its shards are removed,
 * unless a lease shows that a tool is still writing it. Files of other names are never touched.
 *
 * The shards of a directory without manifest and mark may be wanted: the manifest may have been
 * moved away, or is yet to come. The directory is set aside: listed, named in the log, never
 * deleted. So is a checkpoint of a later version, with the flaw "newer".
 *
 * A mark beside a manifest is one that a crash kept from being removed: the checkpoint is whole.
 * ckptd makes its names durable before it serves it, and removes the mark. Without a mark they are
 * durable, and a start syncs nothing.
 *
 * Unreadable directories stay as they are. A directory of a step is listed as damaged, without a
 * note. A run whose own directories cannot be read is refused by name (run_find), as its newest
 * attempt and its checkpoints are unknown. Neither is pruned or collected. Other runs are served.
 * Without the root ckptd does not start.
 *
 * A start reads the directories of a run with several threads (storage_for_many), and then
 * processes the results alone, in order. */
#include "ckptd/keep/scan.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/core/sets_file.h"
#include "ckptd/machines/commit.h"
#include "ckptd/memory/image.h"
#include "proto/base/array.h"
#include "proto/base/report.h"
#include "proto/base/toml.h"
#include "proto/format/flaw.h"
#include "proto/format/manifest.h"
#include "proto/format/mark.h"
#include "proto/format/places.h"
#include "proto/format/retain.h"
#include "proto/format/shard.h"
#include "proto/wire/ckpt.pb-c.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading the store ---- */

/* The directory of a step, and the result of reading it. */
struct step {
    uint64_t step, attempt;
    struct store_seen seen;
    int error;           /* of the checkpoint; without a manifest, of the read */
    struct fault *fault; /* its text, owned; NULL also without memory */
};

struct scan {
    struct service *service;
    struct run *run;
    struct step *steps;
    size_t num_steps;
    uint32_t num_removed;
};

static int step_dir(char *out, size_t size, const struct scan *scan, const struct step *step)
{
    return shard_dir_key(out, size, scan->run->name, step->step, step->attempt);
}

/* On any thread; changes only its own step. */
static int read_step(void *user, size_t index)
{
    const struct scan *scan = user;
    struct step *step = &scan->steps[index];
    step->error = store_inspect(&step->seen, scan->service->storage, scan->run->name, step->step,
                                step->attempt);
    if (step->error != 0)
        step->fault = calloc(1, sizeof *step->fault);
    if (step->fault)
        fault_take(step->fault, step->error);
    return 0;
}

/* A crash came between the manifest and the removal of the mark, perhaps before the manifest's name
 * was durable: this start is about to report the checkpoint as local. If the mark stays, the next
 * start tries again. A checkpoint without a mark was made durable before the mark was removed
 * (commit.I11). */
static void remove_mark(const struct scan *scan, const char *dir)
{
    if (storage_sync_names(scan->service->storage, dir) != 0)
        service_go_offline(scan->service, report_line());
    else
        store_unmark(scan->service->storage, dir);
}

static int add_checkpoint(struct scan *scan, struct step *step)
{
    struct checkpoint *checkpoint;
    struct store_seen *seen = &step->seen;
    struct manifest_summary *summary = &seen->summary;
    snprintf(summary->run, sizeof summary->run, "%s", scan->run->name);
    summary->step = step->step; /* its place in the list follows its directory */
    summary->attempt = step->attempt;
    int error = catalog_add(&checkpoint, scan->run, summary, TIER_LOCAL, &seen->places);
    char dir[STORAGE_KEY_MAX], text[sizeof checkpoint->damage];
    if (error == 0)
        error = step_dir(dir, sizeof dir, scan, step);
    if (error == 0 && !seen->has_manifest && step->error == 0) {
        snprintf(text, sizeof text, IN_DOUBT_TEXT, seen->coordinator);
        if (seen->coordinator[0] != '\0')
            catalog_set_aside(checkpoint, FLAW_IN_DOUBT, text);
        else
            catalog_set_aside(checkpoint, FLAW_ASIDE, CATALOG_ASIDE_TEXT);
        return 0;
    }
    if (error == 0 && seen->has_manifest && seen->has_mark)
        remove_mark(scan, dir);
    if (error == 0)
        catalog_take_verified(checkpoint, &seen->verified);
    if (error != 0 || !step->fault)
        return error;
    catalog_damage_text(text, sizeof text, step->fault);
    if (step->error == ERR_MISMATCH || step->error == ERR_VERSION) {
        catalog_set_aside(checkpoint, store_flaw(step->error), text);
        return 0;
    }
    catalog_quarantine(checkpoint, text, catalog_is_proof(step->fault));
    if (catalog_is_proof(step->fault))
        catalog_write_note(scan->service->storage, dir, text);
    return 0;
}

static int remove_rubbish(struct scan *scan, const struct step *step)
{
    char dir[STORAGE_KEY_MAX];
    int error = step_dir(dir, sizeof dir, scan, step);
    if (error != 0)
        return error;
    error = store_clear(scan->service->storage, dir);
    if (error == ERR_DENIED)
        log_info("catalog", "%s has no manifest, and is kept: %s", dir, report_line());
    else if (error != 0)
        log_warn("catalog", "%s has no manifest, and not all of it could be removed: %s", dir,
                 report_line());
    else if (step->seen.num_others > 0)
        log_warn("catalog",
                 "%s has no manifest, but files that ckptd does not remove: it did not write them",
                 dir);
    scan->num_removed += error == 0 ? step->seen.num_ours : 0;
    return 0;
}

/* Oldest first: then each is inserted at the head of the list. */
static int list_steps(struct scan *scan)
{
    struct store_names names;
    scan->num_steps = 0;
    ERR_TRY(store_list_names(&names, scan->service->storage, scan->run->name));
    scan->steps = calloc((size_t)names.count + 1, sizeof *scan->steps);
    for (uint32_t i = 0; scan->steps && i < names.count; i++) {
        const struct store_name *name = &names.list[names.count - 1 - i];
        scan->steps[scan->num_steps++] =
            (struct step){.step = name->step, .attempt = name->attempt};
    }
    int error = scan->steps ? 0
                            : report_error(ERR_MEMORY, NULL, "no memory for a list of %u steps",
                                           names.count);
    store_names_free(&names);
    return error;
}

/* Is the error about the store? A lack of memory or descriptors in this process is not. */
static bool is_of_store(int error)
{
    return error != 0 && error != ERR_MEMORY && error != ERR_BUSY;
}

static int scan_steps(struct scan *scan)
{
    int error = list_steps(scan);
    if (error == 0)
        error = storage_for_many(scan->service->storage, scan->num_steps, read_step, scan);
    for (size_t i = 0; i < scan->num_steps; i++) {
        struct step *step = &scan->steps[i];
        if (error == 0 && step->error != 0 && !step->fault)
            error = report_error(ERR_MEMORY, NULL, "no memory to read the store");
        else if (error == 0 && (step->seen.has_manifest || is_of_store(step->error) ||
                                step->seen.rest == STORE_REST_ASIDE))
            error = add_checkpoint(scan, step);
        else if (error == 0)
            error = step->error != 0 ? fault_raise(step->fault) : remove_rubbish(scan, step);
        free(step->fault);
        places_free(&step->seen.places);
    }
    free(scan->steps);
    scan->steps = NULL;
    return error;
}

static int scan_attempts(struct scan *scan)
{
    struct run *run = scan->run;
    uint64_t newest;
    int error = store_newest_attempt(&newest, scan->service->storage, run->name);
    if (newest > run->newest_attempt)
        run->newest_attempt = newest;
    if (error == 0 && newest > 0)
        error = sets_file_find(&run->sets, scan->service->storage, run->name);
    return error == ERR_CORRUPT ? 0 : error;
}

/* A checkpoint that was quarantined before this start stays so until an operator releases it
 * (ckpt-cli verify --release). The name of the note is enough, even if it cannot be read. */
static int keep_quarantined(struct checkpoint *checkpoint)
{
    const struct manifest_summary *summary = &checkpoint->summary;
    char prefix[STORAGE_KEY_MAX], text[sizeof checkpoint->damage];
    int error = shard_dir_key(prefix, sizeof prefix, summary->run, summary->step, summary->attempt);
    if (error == 0)
        error = store_find_note(checkpoint->run->service->storage, STORE_QUARANTINE, prefix, text,
                                sizeof text);
    if (error == ERR_MEMORY || error == ERR_NOT_FOUND) /* released meanwhile */
        return error == ERR_MEMORY ? error : 0;
    if (error != 0)
        snprintf(text, sizeof text, "the reason cannot be read: %.400s", report_line());
    catalog_quarantine(checkpoint, text[0] ? text : "no reason was recorded", true);
    return 0;
}

static int visit_quarantined(void *user, const struct storage_entry *entry)
{
    uint64_t step, attempt;
    struct checkpoint *checkpoint =
        retain_parse(entry->name, &step, &attempt) ? catalog_find(user, step, attempt) : NULL;
    return checkpoint && !checkpoint->damaged ? keep_quarantined(checkpoint) : 0;
}

static int visit_pin(void *user, const struct storage_entry *entry)
{
    struct run *run = user;
    uint64_t step, attempt;
    struct pin pin;
    struct checkpoint *checkpoint =
        retain_parse(entry->name, &step, &attempt) ? catalog_find(run, step, attempt) : NULL;
    if (!checkpoint)
        return 0;
    int error = catalog_read_pin(&pin, run->service->storage, run->name, step, attempt);
    if (error == 0)
        catalog_set_pin(checkpoint, TIER_LOCAL, &pin);
    return error;
}

static int read_run(struct scan *scan)
{
    struct run *run = scan->run;
    struct storage *storage = scan->service->storage;
    int error = scan_attempts(scan);
    if (error != 0)
        return error;
    /* Completes interrupted removals, or undoes them. */
    if (store_recover_run(storage, run->name) != 0)
        log_warn("catalog", "run %s: could not finish an interrupted removal: %s", run->name,
                 report_line());
    error = scan_steps(scan);
    /* A checkpoint proves its attempt, even without the attempt's file. */
    for (struct checkpoint *c = run->checkpoints; c; c = c->next)
        if (c->summary.attempt > run->newest_attempt)
            run->newest_attempt = c->summary.attempt;
    run->service->catalog->events->read(run);
    if (error == 0)
        error = store_for_notes(storage, STORE_PIN, run->name, visit_pin, run);
    return error == 0
               ? store_for_notes(storage, STORE_QUARANTINE, run->name, visit_quarantined, run)
               : error;
}

/* Every call that names the run is answered with the reason: its newest checkpoint may be
 * unreadable, and a load then resumes from an older one. */
static void refuse_run(struct run *run, int error)
{
    catalog_forget(run);
    report_error(error, "repair the directory or its permissions, then start ckptd again",
                 "the run %s could not be read when ckptd started: %s", run->name, report_line());
    log_error("catalog", "%s", report_line());
    fault_take(&run->unreadable, error);
}

static int scan_run(void *user, const char *name)
{
    struct scan *scan = user;
    if (!run_name_valid(name)) {
        log_warn("catalog", "the directory %s is not a run", name);
        return 0;
    }
    int error = run_find(&scan->run, scan->service, name, true);
    if (error != 0)
        return error;
    error = read_run(scan);
    if (!is_of_store(error))
        return error;
    refuse_run(scan->run, error);
    return 0;
}

int scan_store(struct service *service)
{
    struct scan scan = {.service = service};
    int error = store_for_runs(service->storage, scan_run, &scan);
    if (error == 0)
        log_info("catalog", "%u runs, %u checkpoints; removed %u files of interrupted saves",
                 service->catalog->num_runs, service->catalog->num_checkpoints, scan.num_removed);
    return error;
}
