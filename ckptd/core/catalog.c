/* catalog.c - the checkpoints that exist: lists in memory, found by scan.c and changed by saves,
 * removals and tools.
 *
 * Order: a run's list is newest first, by attempt, then by step. A run that was rolled back
 * continues in a higher attempt at lower steps, so the highest step is not the newest.
 *
 * Limits: limits.runs, limits.checkpoints: no run or save begins beyond them, and ckptd does not
 * start on a store with more (ERR_BUSY). */
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/copies.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "proto/base/array.h"
#include "proto/base/report.h"
#include "proto/base/toml.h"
#include "proto/format/flaw.h"
#include "proto/format/manifest.h"
#include "proto/format/mark.h"
#include "proto/format/origin.h"
#include "proto/format/places.h"
#include "proto/format/retain.h"
#include "proto/format/shard.h"
#include "proto/wire/ckpt.pb-c.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int catalog_open(struct service *service, const struct catalog_events *events)
{
    service->catalog = calloc(1, sizeof *service->catalog);
    if (!service->catalog)
        return report_error(ERR_MEMORY, NULL, "no memory for the catalog");
    service->catalog->events = events;
    return 0;
}

/* ---- runs ---- */

bool run_name_valid(const char *name)
{
    return shard_run_is_valid(name) && strlen(name) <= RUN_NAME_MAX && name[0] != '.';
}

/* True if the store has nothing of the run and no work uses it. All users find a run by its
 * name. */
static bool is_vacant(const struct run *run)
{
    return !run->checkpoints && run->newest_attempt == 0 && run->adopting == 0 &&
           run->unreadable.code == 0 && !run->pruning && run->history.bytes == 0 &&
           run->service->catalog->events->is_idle(run);
}

/* A new run, or at the limit a vacant one, in no list. ERR_BUSY. */
static int find_room(struct run **out, struct service *service)
{
    struct catalog *catalog = service->catalog;
    if (service->catalog->num_runs < service->config->limit_runs) {
        *out = calloc(1, sizeof **out);
        if (!*out)
            return report_error(ERR_MEMORY, NULL, "no memory for a run");
        **out = (struct run){.service = service};
        (*out)->sets_seen = calloc(service->config->members.count + 1, sizeof(uint64_t));
        int error = (*out)->sets_seen ? catalog->events->made(*out)
                                      : report_error(ERR_MEMORY, NULL, "no memory for a run");
        if (error != 0) {
            free((*out)->sets_seen);
            free(*out);
        } else {
            (*out)->tag = ++catalog->num_runs;
        }
        return error;
    }
    struct run **at = &service->catalog->runs;
    while (*at && !is_vacant(*at))
        at = &(*at)->next;
    *out = *at;
    if (!*out)
        return report_error(ERR_BUSY, "raise limits.runs", "the store holds %u runs already",
                            service->catalog->num_runs);
    *at = (*out)->next;
    return 0;
}

/* Sorted by name, as tools list a directory. */
static void enter_run(struct service *service, struct run *run)
{
    struct run **at = &service->catalog->runs;
    while (*at && strcmp((*at)->name, run->name) < 0)
        at = &(*at)->next;
    run->next = *at;
    *at = run;
}

int run_find(struct run **out, struct service *service, const char *name, bool create)
{
    struct run *run = service->catalog->runs;
    while (run && strcmp(run->name, name) != 0)
        run = run->next;
    if (!run && create) {
        if (!run_name_valid(name))
            return report_error(ERR_INVALID, "use letters, digits, '.', '_' and '-', at most 100",
                                "\"%.120s\" is not a valid run name", name);
        ERR_TRY(find_room(&run, service));
        snprintf(run->name, sizeof run->name, "%s", name);
        service->catalog->events->read(run);
        enter_run(service, run);
    }
    if (!run)
        return report_error(ERR_NOT_FOUND, "see `ckpt-cli list`", "there is no run \"%.120s\"",
                            name);
    *out = run;
    return fault_raise(&run->unreadable);
}

/* ---- checkpoints ---- */

/* The place of the checkpoint in the run's list, whether or not it is there. For the newest of all,
 * which saves and waits use, it is found at once. */
static struct checkpoint **find_place(struct run *run, uint64_t step, uint64_t attempt)
{
    struct checkpoint **at = &run->checkpoints;
    while (*at && ((*at)->summary.attempt > attempt ||
                   ((*at)->summary.attempt == attempt && (*at)->summary.step > step)))
        at = &(*at)->next;
    return at;
}

int catalog_check_room(const struct service *service)
{
    const struct catalog *catalog = service->catalog;
    if ((int64_t)catalog->num_checkpoints + catalog->num_promised <
        service->config->limit_checkpoints)
        return 0;
    return report_error(ERR_BUSY, "raise limits.checkpoints, or remove checkpoints",
                        "the store holds %u checkpoints already", catalog->num_checkpoints);
}

static bool is_at(const struct checkpoint *checkpoint, uint64_t step, uint64_t attempt)
{
    return checkpoint && checkpoint->summary.step == step && checkpoint->summary.attempt == attempt;
}

bool catalog_is_promised(const struct run *run, uint64_t step, uint64_t attempt)
{
    const struct checkpoint *checkpoint = run->promised;
    while (checkpoint && !is_at(checkpoint, step, attempt))
        checkpoint = checkpoint->next;
    return checkpoint;
}

static void add_promised(struct checkpoint *checkpoint)
{
    struct run *run = checkpoint->run;
    checkpoint->is_promised = true;
    checkpoint->next = run->promised;
    run->promised = checkpoint;
    run->service->catalog->num_promised++;
}

static void end_promise(struct checkpoint *checkpoint)
{
    struct checkpoint **at = &checkpoint->run->promised;
    if (!checkpoint->is_promised)
        return;
    while (*at != checkpoint)
        at = &(*at)->next;
    *at = checkpoint->next;
    checkpoint->is_promised = false;
    checkpoint->run->service->catalog->num_promised--;
}

int catalog_new(struct checkpoint **out, struct run *run, uint64_t step, uint64_t attempt)
{
    *out = NULL;
    if (catalog_is_promised(run, step, attempt))
        return report_error(ERR_BUSY, "try again", "step %llu of run %s is being changed",
                            (unsigned long long)step, run->name);
    struct checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    *out = checkpoint;
    if (!checkpoint)
        return report_error(ERR_MEMORY, NULL, "no memory for a checkpoint");
    checkpoint->run = run;
    copies_init(checkpoint);
    checkpoint->summary.step = step;
    checkpoint->summary.attempt = attempt;
    add_promised(checkpoint);
    return 0;
}

void catalog_drop(struct checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    end_promise(checkpoint);
    manifest_free(checkpoint->manifest);
    free(checkpoint->uses); /* leases that are left at shutdown are dropped */
    free(checkpoint->pin.note);
    free(checkpoint->far_pin.note);
    copies_free(checkpoint);
    free(checkpoint->places);
    free(checkpoint->tier_text);
    free(checkpoint->replicas);
    free(checkpoint);
}

void catalog_merge(struct checkpoint *into, struct checkpoint *from)
{
    if (!into->places) {
        into->places = from->places;
        into->is_led_elsewhere = from->is_led_elsewhere;
        from->places = NULL;
    }
    for (uint32_t i = 0; i < copies_count(from); i++) {
        const struct copy *copy = copies_get(from, i);
        if (!copy->is_there)
            continue;
        struct copy *note = copies_note(into, copy->tier), known = *note;
        if (!known.is_there) {
            *note = *copy;
            note->checkpoint = known.checkpoint;
            note->next = known.next;
            note->at = known.at;
        }
        /* A part does not replace a damaged copy elsewhere. */
        if (!copy->is_part && !copy->is_damaged)
            catalog_completed(into, copy->tier);
    }
}

/* Merges `entry` into the listed one and frees it. NULL: it is of another save. */
static struct checkpoint *merge_entry(struct checkpoint *there, struct checkpoint *entry,
                                      const struct manifest_summary *summary)
{
    bool is_same = strcmp(there->summary.nonce, summary->nonce) == 0;
    if (is_same)
        catalog_merge(there, entry);
    else
        report_error(ERR_EXISTS, "remove one of the two",
                     "run %s, step %llu, attempt %llu is listed (%s) with another nonce: another "
                     "save has the same name",
                     there->run->name, (unsigned long long)summary->step,
                     (unsigned long long)summary->attempt, copies_names(there));
    if (is_same && !there->pin.is_made) {
        catalog_set_pin(there, TIER_LOCAL, &entry->pin);
        entry->pin = (struct pin){0};
    }
    catalog_drop(entry);
    return is_same ? there : NULL;
}

struct checkpoint *catalog_enter(struct checkpoint *entry, const struct manifest_summary *summary)
{
    struct run *run = entry->run;
    struct checkpoint **at = find_place(run, summary->step, summary->attempt);
    bool is_anywhere = false;
    end_promise(entry);
    for (uint32_t i = 0; i < copies_count(entry); i++)
        is_anywhere |= copies_get(entry, i)->is_there;
    if (!is_anywhere)
        entry->copies.local.is_there = true;
    if (is_at(*at, summary->step, summary->attempt))
        return merge_entry(*at, entry, summary);
    entry->summary = *summary;
    entry->next = *at;
    *at = entry;
    run->service->catalog->num_checkpoints++;
    return entry;
}

/* Notes that the tier has a copy. */
static void note_copy(struct checkpoint *checkpoint, enum tier_index tier)
{
    if (!copies_at(checkpoint, tier)->is_there)
        copies_forget(checkpoint, tier);
    struct copy *copy = copies_note(checkpoint, tier);
    copy->is_there = true;
    if (copy->is_damaged || !catalog_is_quarantined(checkpoint))
        return;
    /* Only copies in other tiers are damaged: this tier serves the checkpoint. */
    checkpoint->damaged = false;
    checkpoint->flaw = NULL;
    checkpoint->damage[0] = '\0';
}

void catalog_completed(struct checkpoint *checkpoint, enum tier_index tier)
{
    note_copy(checkpoint, tier);
    copies_note(checkpoint, tier)->is_part = false;
}

void catalog_mended(struct checkpoint *checkpoint, enum tier_index tier)
{
    copies_note(checkpoint, tier)->is_damaged = false;
    checkpoint->is_suspect &= tier != TIER_LOCAL;
    note_copy(checkpoint, tier);
}

bool catalog_lost(struct checkpoint *checkpoint, enum tier_index tier)
{
    bool is_elsewhere = false;
    for (uint32_t i = 0; i < copies_count(checkpoint); i++)
        is_elsewhere |=
            copies_get(checkpoint, i)->tier != tier && copies_get(checkpoint, i)->is_there;
    if (is_elsewhere)
        copies_forget(checkpoint, tier);
    if (is_elsewhere && tier == TIER_FAR)
        catalog_set_pin(checkpoint, tier, &(struct pin){0});
    return is_elsewhere;
}

int catalog_add(struct checkpoint **out, struct run *run, const struct manifest_summary *summary,
                enum tier_index tier, const struct places *places)
{
    struct checkpoint *entry;
    *out = NULL;
    if (!catalog_find(run, summary->step, summary->attempt))
        ERR_TRY(catalog_check_room(run->service));
    ERR_TRY(catalog_new(&entry, run, summary->step, summary->attempt));
    copies_note(entry, tier)->is_there = true;
    int error = catalog_set_places(entry, tier, places);
    if (error == 0 && !copies_at(entry, tier)->is_there)
        error = report_error(ERR_MEMORY, NULL, "no memory for a checkpoint");
    if (error != 0) {
        catalog_drop(entry);
        return error;
    }
    *out = catalog_enter(entry, summary);
    return *out ? 0 : ERR_EXISTS;
}

struct checkpoint *catalog_find(struct run *run, uint64_t step, uint64_t attempt)
{
    struct checkpoint *found = *find_place(run, step, attempt);
    return is_at(found, step, attempt) ? found : NULL;
}

struct checkpoint *catalog_next_older(struct run *run, uint64_t step, uint64_t attempt)
{
    struct checkpoint *found = *find_place(run, step, attempt);
    return is_at(found, step, attempt) ? found->next : found;
}

void catalog_take_out(struct checkpoint *checkpoint)
{
    struct run *run = checkpoint->run;
    struct checkpoint **at = &run->checkpoints;
    CHECK(!catalog_in_use(checkpoint) && checkpoint->num_images == 0);
    while (*at != checkpoint)
        at = &(*at)->next;
    *at = checkpoint->next;
    run->service->catalog->num_checkpoints--;
    add_promised(checkpoint);
}

/* ---- pins ---- */

int catalog_read_pin(struct pin *out, struct storage *storage, const char *run, uint64_t step,
                     uint64_t attempt)
{
    char prefix[STORAGE_KEY_MAX], text[PIN_NOTE_MAX] = "";
    bool is_pinned;
    *out = (struct pin){.is_made = true};
    int error = shard_dir_key(prefix, sizeof prefix, run, step, attempt);
    if (error == 0)
        error = store_find_pin(storage, &is_pinned, prefix, text, sizeof text);
    if (error != 0 || !text[0])
        return error == ERR_MEMORY ? error : 0;
    out->note = strdup(text);
    return out->note ? 0 : report_error(ERR_MEMORY, NULL, "no memory for the note of a pin");
}

void catalog_set_pin(struct checkpoint *checkpoint, enum tier_index tier, const struct pin *pin)
{
    struct pin *at = tier == TIER_FAR ? &checkpoint->far_pin : &checkpoint->pin;
    free(at->note);
    *at = *pin;
}

/* ---- the end ---- */

void catalog_forget(struct run *run)
{
    while (run->checkpoints) {
        struct checkpoint *checkpoint = run->checkpoints;
        run->checkpoints = checkpoint->next;
        run->service->catalog->num_checkpoints--;
        catalog_drop(checkpoint);
    }
}

void catalog_close(struct service *service)
{
    struct catalog *catalog = service->catalog;
    while (catalog && catalog->runs) {
        struct run *run = catalog->runs;
        catalog->runs = run->next;
        catalog_forget(run);
        catalog->events->freed(run);
        free(run->history.lines);
        sets_free(&run->sets);
        free(run->sets_seen);
        free(run);
    }
    free(catalog);
    service->catalog = NULL;
}

bool catalog_is_read_back(const struct checkpoint *checkpoint)
{
    return !checkpoint->damaged && !checkpoint->is_suspect &&
           (checkpoint->copies.local.proven != 0 ||
            scrub_has_proven(&checkpoint->run->scrubbed, checkpoint->summary.step,
                             checkpoint->summary.attempt));
}

/* ---- leases ---- */

void catalog_lease(struct checkpoint *checkpoint)
{
    checkpoint->leases++;
}

void catalog_unlease(struct checkpoint *checkpoint)
{
    CHECK(checkpoint->leases > 0);
    if (--checkpoint->leases > 0)
        return;
    manifest_free(checkpoint->manifest);
    free(checkpoint->uses);
    checkpoint->manifest = NULL;
    checkpoint->uses = NULL;
}

int catalog_report_adopting(const struct run *run)
{
    return report_error(ERR_BUSY, "try again", "a checkpoint of run %s is being adopted",
                        run->name);
}
