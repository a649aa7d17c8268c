/* refresh_read.c - reads the contents of a tier.
 *
 * Runs, and then steps, are read several at once (storage_for_many): a scan of another tier mostly
 * waits for answers.
 *
 * In the local store an operator may copy or move checkpoints. Names are read if the time of the
 * directory has changed, or if the last scan found an incomplete step: a copy takes time, and its
 * end does not change that time. A new checkpoint must have all its shards, and must not be
 * quarantined. Its data are verified when they are loaded, as always.
 *
 * In other tiers a directory without a manifest is no checkpoint, and is ignored: another node may
 * be sending it. A listing may lag: a new name counts only when its manifest can be read, and a
 * missing name is gone only when its manifest is not found either. */
#include "ckptd/core/catalog.h"
#include "ckptd/core/config.h"
#include "ckptd/core/service.h"
#include "ckptd/core/sets_file.h"
#include "ckptd/refresh/refresh_private.h"
#include "proto/base/address.h"
#include "proto/base/array.h"
#include "proto/format/retain.h"
#include "proto/format/shard.h"
#include "proto/tls/why.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRESH_MS 2000 /* a directory may change again without changing such a recent time */

static struct storage *storage_of(const struct scan *scan)
{
    return scan->service->tiers[scan->tier].storage;
}

int scan_add_run(struct scan_run **out, struct scan *scan, const char *name, bool is_known)
{
    ERR_TRY(array_reserve(&scan->runs, &scan->room_runs, scan->num_runs, sizeof *scan->runs));
    *out = &scan->runs[scan->num_runs++];
    **out = (struct scan_run){.is_known = is_known};
    snprintf((*out)->name, sizeof(*out)->name, "%s", name);
    return 0;
}

int scan_add_step(struct scan_run *run, const struct scan_step *step)
{
    ERR_TRY(array_reserve(&run->steps, &run->room_steps, run->num_steps, sizeof *run->steps));
    run->steps[run->num_steps++] = *step;
    return 0;
}

void scan_free(struct scan *scan)
{
    for (uint32_t i = 0; scan && i < scan->num_runs; i++) {
        for (uint32_t k = 0; k < scan->runs[i].num_steps; k++) {
            struct scan_step *step = &scan->runs[i].steps[k];
            if (step->news)
                places_free(&step->news->places);
            free(step->news);
            free(step->pin.note);
        }
        free(scan->runs[i].steps);
        sets_free(&scan->runs[i].sets);
    }
    if (scan) {
        free(scan->runs);
        free(scan->due);
    }
    free(scan);
}

/* ---- names ---- */

static int visit_run(void *user, const struct storage_entry *entry)
{
    struct scan *scan = user;
    struct scan_run *run;
    if (!entry->is_dir || !run_name_valid(entry->name))
        return 0;
    for (uint32_t i = 0; i < scan->num_runs; i++)
        if (strcmp(scan->runs[i].name, entry->name) == 0)
            return 0;
    return scan_add_run(&run, scan, entry->name, false);
}

static int visit_attempt(void *user, const struct storage_entry *entry)
{
    struct scan_run *run = user;
    char *end;
    unsigned long long number = strtoull(entry->name, &end, 10);
    if (*end == '\0' && number > run->attempt && number < UINT64_MAX)
        run->attempt = number;
    if (strcmp(end, SETS_HELD) == 0 && number > run->held)
        run->held = number;
    return 0;
}

uint64_t scan_sets_mark(const struct scan_run *run)
{
    return 2 * run->attempt + (run->held >= run->attempt);
}

static int compare_steps(const void *a, const void *b)
{
    const struct scan_step *x = a, *y = b;
    return store_newest_first(&(struct store_name){.step = x->step, .attempt = x->attempt},
                              &(struct store_name){.step = y->step, .attempt = y->attempt});
}

static void sort(struct scan_run *run)
{
    if (run->num_steps > 0)
        qsort(run->steps, run->num_steps, sizeof *run->steps, compare_steps);
}

/* Finds it among the first `count`, which are sorted. */
static struct scan_step *find_step(const struct scan_run *run, uint32_t count, uint64_t step,
                                   uint64_t attempt)
{
    const struct scan_step key = {.step = step, .attempt = attempt};
    return count > 0 ? bsearch(&key, run->steps, count, sizeof key, compare_steps) : NULL;
}

/* Which known steps are there, and which steps are unknown. */
static int list_steps(struct scan_run *run, struct storage *storage)
{
    struct store_names names;
    uint32_t num_known = run->num_steps;
    int error = store_list_names(&names, storage, run->name);
    sort(run);
    for (uint32_t i = 0; i < names.count && error == 0; i++) {
        const struct store_name *name = &names.list[i];
        struct scan_step *step = find_step(run, num_known, name->step, name->attempt);
        if (!step) {
            error = scan_add_step(
                run, &(struct scan_step){.step = name->step, .attempt = name->attempt});
            step = &run->steps[run->num_steps - 1];
        }
        if (error == 0) {
            step->is_there = true;
            step->is_volatile = name->is_volatile;
        }
    }
    store_names_free(&names);
    sort(run);
    return error;
}

static int visit_pin(void *user, const struct storage_entry *entry)
{
    const struct scan_run *run = user;
    uint64_t step, attempt;
    struct scan_step *found = !entry->is_dir && retain_parse(entry->name, &step, &attempt)
                                  ? find_step(run, run->num_steps, step, attempt)
                                  : NULL;
    if (found)
        found->is_pinned = true;
    return 0;
}

/* Has the directory's time changed? *stamp is for the next scan. */
static int read_stamp(bool *out_is_same, uint64_t *stamp, struct storage *storage,
                      const char *prefix)
{
    uint64_t now = 0, age_ms = 0;
    int error = storage_stamp(storage, prefix, &now, &age_ms);
    *out_is_same = error == 0 && now == *stamp && now != 0;
    *stamp = age_ms < FRESH_MS ? 0 : now;
    return error;
}

/* On any thread; changes only its run. */
static int list_run(void *user, size_t index)
{
    const struct scan *scan = user;
    struct storage *storage = storage_of(scan);
    struct scan_run *run = &scan->runs[index];
    bool is_local = scan->tier == TIER_LOCAL, is_same = false;
    char attempts[STORAGE_KEY_MAX];
    int error = is_local ? read_stamp(&is_same, &run->stamp, storage, run->name) : 0;
    run->is_gone = error == ERR_NOT_FOUND;
    if (is_same || (error != 0 && !run->is_gone))
        return error;
    snprintf(attempts, sizeof attempts, "%s/attempts", run->name);
    error = is_local && run->is_known ? 0 : storage_list(storage, attempts, visit_attempt, run);
    if (error == 0 && tier_is_peer(scan->tier) && scan_sets_mark(run) != run->seen)
        error = sets_file_find(&run->sets, storage, run->name);
    if (error == 0)
        error = list_steps(run, storage);
    if (error == 0 && !is_local)
        error = store_for_notes(storage, STORE_PIN, run->name, visit_pin, run);
    run->has_names = error == 0;
    return error;
}

/* ---- unknown steps ---- */

static int make_news(struct scan_step *step)
{
    step->news = calloc(1, sizeof *step->news);
    return step->news ? 0 : report_error(ERR_MEMORY, NULL, "no memory for a look at a tier");
}

static int manifest_is_there(struct storage *storage, const struct manifest_summary *summary)
{
    char key[STORAGE_KEY_MAX + 1];
    uint64_t bytes;
    ERR_TRY(manifest_key(key, sizeof key, summary));
    return storage_fetch(storage, key, NULL, 0, &bytes);
}

/* Without a file of places all shards are here, if the manifest still exists: a removal removes
 * that first. */
static int read_parts(struct storage *storage, const struct scan_run *run, struct scan_step *step)
{
    ERR_TRY(make_news(step));
    struct scan_news *news = step->news;
    ERR_TRY(store_read_summary(&news->summary, storage, run->name, step->step, step->attempt));
    ERR_TRY(store_read_places(&news->places, storage, &news->summary));
    return news->places.num_shards > 0 ? 0 : manifest_is_there(storage, &news->summary);
}

/* Only a manifest makes it a checkpoint. The next scan retries unreadable ones. */
static int read_summary(struct storage *storage, const struct scan_run *run, struct scan_step *step)
{
    struct manifest_summary named = {.step = step->step, .attempt = step->attempt};
    snprintf(named.run, sizeof named.run, "%s", run->name);
    bool is_whole = step->is_known && !step->is_part;
    int error = is_whole ? manifest_is_there(storage, &named) : read_parts(storage, run, step);
    if (!step->is_there) /* the list, which may lag, does not show it */
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

/* A new directory in the local store. */
static int check_newcomer(struct storage *storage, const char *run, struct scan_step *step)
{
    char prefix[STORAGE_KEY_MAX], note[PIN_NOTE_MAX] = "";
    struct scan_news *news = step->news;
    ERR_TRY(store_inspect_committed(&news->summary, &news->places, storage, run, step->step,
                                    step->attempt));
    ERR_TRY(store_check(storage, &news->summary, 0));
    ERR_TRY(shard_dir_key(prefix, sizeof prefix, run, step->step, step->attempt));
    if (store_find_note(storage, STORE_QUARANTINE, prefix, NULL, 0) == 0)
        return report_error(ERR_CORRUPT, "ckpt-cli verify --release", "it is in quarantine");
    store_find_pin(storage, &step->pin.is_made, prefix, note, sizeof note);
    step->pin.note = note[0] ? strdup(note) : NULL;
    return 0;
}

static int read_newcomer(struct storage *storage, const char *run, struct scan_step *step)
{
    ERR_TRY(make_news(step));
    int error = check_newcomer(storage, run, step);
    if (error != 0)
        fault_take(&step->news->fault, error);
    return 0;
}

/* A listing may lag. */
static bool needs_summary(const struct scan_step *step)
{
    return !step->is_known || !step->is_there || step->is_part;
}

static int find_due(struct scan *scan)
{
    for (uint32_t i = 0; i < scan->num_runs; i++)
        for (uint32_t k = 0; scan->runs[i].has_names && k < scan->runs[i].num_steps; k++) {
            struct scan_step *step = &scan->runs[i].steps[k];
            bool is_due =
                scan->tier == TIER_LOCAL ? !step->is_known : needs_summary(step) || step->is_pinned;
            if (!is_due)
                continue;
            ERR_TRY(array_reserve(&scan->due, &scan->room_due, scan->num_due, sizeof *scan->due));
            scan->due[scan->num_due++] = (struct scan_due){&scan->runs[i], step};
        }
    return 0;
}

/* On any thread; changes only its step. */
static int read_step(void *user, size_t index)
{
    const struct scan *scan = user;
    struct storage *storage = storage_of(scan);
    const struct scan_run *run = scan->due[index].run;
    struct scan_step *step = scan->due[index].step;
    if (scan->tier == TIER_LOCAL)
        return read_newcomer(storage, run->name, step);
    if (needs_summary(step))
        ERR_TRY(read_summary(storage, run, step));
    return step->is_pinned
               ? catalog_read_pin(&step->pin, storage, run->name, step->step, step->attempt)
               : 0;
}

/* ---- the whole scan ---- */

/* Reports a peer that has not answered a call. */
static int report_unanswered(const struct config *config, enum tier_index tier)
{
    const char *at = config->members.peers[tier - TIER_PEER].address;
    struct address address;
    ERR_TRY(address_parse(&address, at));
    return address.kind == ADDRESS_TLS ? tls_explain_failure(at, &address, config->tls_directory)
                                       : ERR_UNAVAILABLE;
}

static int list_runs(struct scan *scan)
{
    bool is_same = false;
    if (scan->tier == TIER_LOCAL)
        ERR_TRY(read_stamp(&is_same, &scan->stamp, storage_of(scan), ""));
    return is_same ? 0 : storage_list(storage_of(scan), "", visit_run, scan);
}

void scan_work(struct job *job)
{
    struct scan *scan = CONTAINER_OF(job, struct scan, job);
    int error = tier_reach(scan->service, scan->tier);
    struct storage *storage = storage_of(scan);
    if (scan->tier == TIER_LOCAL && !storage_is_shared(storage))
        return; /* other processes cannot change it */
    if (error == 0)
        error = list_runs(scan);
    if (error == 0)
        error = storage_for_many(storage, scan->num_runs, list_run, scan);
    if (error == 0)
        error = find_due(scan);
    if (error == 0)
        error = storage_for_many(storage, scan->num_due, read_step, scan);
    if (error == ERR_UNAVAILABLE && scan->tells_why)
        error = report_unanswered(scan->service->config, scan->tier);
    if (error != 0)
        fault_take(&scan->fault, error);
}
