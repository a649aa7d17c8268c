/* offline.c - the catalog of a store, read without ckptd: of a directory, or of a bucket.
 *
 * A checkpoint is a directory with a manifest; what cannot be read, lies under another run's name,
 * or was put into quarantine is listed with the reason and never the newest that is meant. Nothing
 * is written, no lock is taken and no lease: what ckptd removes meanwhile ends a load with
 * ERR_CORRUPT. Keys are made of names that were checked (shard_run_is_valid, parsed numbers), so
 * none leads out of the store. Of a bucket each look is a request: what is not asked for is not
 * read, and a list looks at several checkpoints at once (storage_for_many). */
#include "clients/offline.h"

#include "proto/base/array.h"
#include "proto/base/report.h"
#include "proto/format/durability.h"
#include "proto/format/origin.h"
#include "proto/format/retain.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES 512u
#define DIRECTORY "dir:"
#define BUCKET "s3://"

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* The place of the store, as storage_open_where() takes it. */
static const char *place_of(const struct ckpt *ckpt)
{
    return ckpt->server + (begins(ckpt->server, DIRECTORY) ? strlen(DIRECTORY) : 0);
}

bool offline_is_named(const char *server)
{
    return begins(server, DIRECTORY) || begins(server, BUCKET);
}

int offline_open(struct ckpt *ckpt)
{
    static const struct storage_options options = {.read_only = true, .is_quiet = true};
    return storage_open_where(&ckpt->store, place_of(ckpt), &options);
}

void offline_close(struct ckpt *ckpt)
{
    if (ckpt->store != NULL)
        storage_close(ckpt->store);
    ckpt->store = NULL;
}

const char *offline_durability(const struct ckpt *ckpt)
{
    return durability_text(begins(place_of(ckpt), BUCKET) ? DURABLE_BUCKET : DURABLE_LOCAL);
}

/* ---- what there is ---- */

/* Names of checkpoints in a folder, newest first; `any`: something is there. */
struct marks {
    struct offline_mark *list;
    uint32_t count, room;
    bool any;
};

static int visit_mark(void *user, const struct storage_entry *entry)
{
    struct marks *marks = user;
    struct offline_mark mark;
    marks->any = true;
    if (!retain_parse(entry->name, &mark.step, &mark.attempt))
        return 0;
    if (marks->count == marks->room) {
        uint32_t room = marks->room == 0 ? 64 : 2 * marks->room;
        struct offline_mark *larger = realloc(marks->list, room * sizeof *larger);
        if (larger == NULL)
            return report_error(ERR_MEMORY, NULL, "no memory for a list");
        marks->list = larger;
        marks->room = room;
    }
    marks->list[marks->count++] = mark;
    return 0;
}

static int compare_marks(const void *left, const void *right)
{
    const struct offline_mark *a = left, *b = right;
    if (a->attempt != b->attempt)
        return a->attempt > b->attempt ? -1 : 1;
    return (a->step < b->step) - (a->step > b->step);
}

/* `folder` "": the run's checkpoints; else what is noted of them. */
static int list_marks(struct marks *out, const struct ckpt *ckpt, const char *run,
                      const char *folder)
{
    char key[KEY_BYTES];
    *out = (struct marks){0};
    snprintf(key, sizeof key, folder[0] != '\0' ? "%s/%s" : "%s", run, folder);
    int error = storage_list(ckpt->store, key, visit_mark, out);
    if (error == 0 && out->count > 0)
        qsort(out->list, out->count, sizeof *out->list, compare_marks);
    return error;
}

/* Of a run: its checkpoints, and of which there are notes. */
struct listing {
    struct marks checkpoints, pins, quarantine;
};

static void free_listing(struct listing *listing)
{
    free(listing->checkpoints.list);
    free(listing->pins.list);
    free(listing->quarantine.list);
}

static int list_run(struct listing *out, const struct ckpt *ckpt, const char *run)
{
    *out = (struct listing){0};
    int error = list_marks(&out->checkpoints, ckpt, run, "");
    if (error == 0 && !out->checkpoints.any)
        error = report_error(ERR_NOT_FOUND, "see `ckpt-cli list --store`",
                             "the store %s has no run '%s'", place_of(ckpt), run);
    if (error == 0)
        error = list_marks(&out->pins, ckpt, run, "pins");
    if (error == 0)
        error = list_marks(&out->quarantine, ckpt, run, "quarantine");
    return error;
}

static bool has_mark(const struct marks *marks, const struct offline_mark *mark)
{
    return marks->count > 0 &&
           bsearch(mark, marks->list, marks->count, sizeof *marks->list, compare_marks) != NULL;
}

/* Why it is in quarantine: the text of the note, as far as there is room. */
static void read_reason(char out[OFFLINE_DAMAGE_BYTES], const struct ckpt *ckpt,
                        const struct manifest_summary *summary)
{
    char dir[KEY_BYTES], key[KEY_BYTES + 32];
    uint64_t bytes = 0;
    int error = shard_dir_key(dir, sizeof dir, summary->run, summary->step, summary->attempt);
    if (error == 0) {
        snprintf(key, sizeof key, "%s/quarantine/%s", summary->run, strrchr(dir, '/') + 1);
        error = storage_fetch(ckpt->store, key, out, OFFLINE_DAMAGE_BYTES - 1, &bytes);
    }
    bytes = bytes < OFFLINE_DAMAGE_BYTES ? bytes : OFFLINE_DAMAGE_BYTES - 1;
    out[error == 0 ? bytes : 0] = '\0';
    report_make_printable(out);
    if (out[0] == '\0')
        snprintf(out, OFFLINE_DAMAGE_BYTES, "no reason was noted");
}

/* The summary of a directory that has a manifest, or what is wrong with that. ERR_NOT_FOUND: it was
 * not committed. */
static int read_entry(struct offline_entry *out, const struct ckpt *ckpt, const char *run,
                      const struct listing *listing, const struct offline_mark *mark)
{
    char dir[KEY_BYTES], key[KEY_BYTES + 32], text[MANIFEST_SUMMARY_BYTES];
    uint64_t bytes = 0;
    memset(out, 0, sizeof *out);
    ERR_TRY(shard_dir_key(dir, sizeof dir, run, mark->step, mark->attempt));
    snprintf(key, sizeof key, "%s/%s", dir, MANIFEST_NAME);
    ERR_TRY(storage_fetch(ckpt->store, key, text, sizeof text, &bytes));
    int error =
        manifest_read_summary(&out->summary, text, bytes < sizeof text ? bytes : sizeof text);
    if (error == 0)
        error = origin_settle(&out->summary, &(struct origin_place){run, mark->step, mark->attempt,
                                                                    storage_fetch, ckpt->store});
    if (error != 0 && error != ERR_MEMORY) {
        snprintf(out->damage, sizeof out->damage, "%s", report_message());
        snprintf(out->summary.run, sizeof out->summary.run, "%s", run);
        out->summary.step = mark->step;
        out->summary.attempt = mark->attempt;
        error = 0;
    }
    if (error == 0 && out->damage[0] == '\0' && has_mark(&listing->quarantine, mark))
        read_reason(out->damage, ckpt, &out->summary);
    out->pinned = has_mark(&listing->pins, mark);
    return error;
}

/* One look at all checkpoints of a run, several at once. */
struct survey {
    const struct ckpt *ckpt;
    const char *run;
    struct listing listing;
    struct offline_entry *entries; /* by mark; without a run: it was not committed */
};

/* On any thread; touches its entry and nothing else. */
static int look_at_mark(void *user, size_t index)
{
    const struct survey *survey = user;
    int error = read_entry(&survey->entries[index], survey->ckpt, survey->run, &survey->listing,
                           &survey->listing.checkpoints.list[index]);
    return error == ERR_NOT_FOUND ? 0 : error;
}

int offline_entries(struct offline_entry **out, uint32_t *out_count, const struct ckpt *ckpt,
                    const char *run)
{
    struct survey survey = {.ckpt = ckpt, .run = run};
    uint32_t count = 0;
    int error = list_run(&survey.listing, ckpt, run);
    const uint32_t num_marks = survey.listing.checkpoints.count;
    if (error == 0) {
        survey.entries = calloc((size_t)num_marks + 1, sizeof *survey.entries);
        error = survey.entries != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for a list");
    }
    if (error == 0)
        error = storage_for_many(ckpt->store, num_marks, look_at_mark, &survey);
    free_listing(&survey.listing);
    if (error != 0) {
        free(survey.entries);
        return error;
    }
    for (uint32_t i = 0; i < num_marks; i++)
        if (survey.entries[i].summary.run[0] != '\0')
            survey.entries[count++] = survey.entries[i];
    *out = survey.entries;
    *out_count = count;
    return 0;
}

/* Names one after the other, as offline_runs() gives them. */
struct runs {
    char *names;
    size_t bytes;
};

static int visit_run(void *user, const struct storage_entry *entry)
{
    struct runs *runs = user;
    size_t length = strlen(entry->name) + 1;
    if (!entry->is_dir || entry->name[0] == '.' || !shard_run_is_valid(entry->name))
        return 0;
    char *larger = realloc(runs->names, runs->bytes + length);
    if (larger == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a list");
    runs->names = larger;
    memcpy(runs->names + runs->bytes - 1, entry->name, length);
    runs->bytes += length;
    runs->names[runs->bytes - 1] = '\0';
    return 0;
}

int offline_runs(char **out, const struct ckpt *ckpt)
{
    struct runs runs = {calloc(1, 1), 1};
    int error = runs.names != NULL ? storage_list(ckpt->store, "", visit_run, &runs)
                                   : report_error(ERR_MEMORY, NULL, "no memory for a list");
    if (error != 0)
        free(runs.names);
    else
        *out = runs.names;
    return error;
}

/* ---- one of them ---- */

static bool fits(const struct offline_mark *mark, const struct offline_choice *choice)
{
    bool fits_step = choice->step >= 0
                         ? mark->step == (uint64_t)choice->step
                         : choice->below_step <= 0 || mark->step < (uint64_t)choice->below_step;
    bool is_passed = choice->passed.attempt != 0 && compare_marks(mark, &choice->passed) <= 0;
    return fits_step && !is_passed && (choice->attempt == 0 || mark->attempt == choice->attempt);
}

/* The first that is meant; one that is damaged only where its step was named. ERR_NOT_FOUND,
 * ERR_CORRUPT. */
static int choose(struct offline_entry *out, const struct ckpt *ckpt,
                  const struct offline_choice *choice)
{
    struct listing listing;
    bool any_damaged = false;
    int error = list_run(&listing, ckpt, ckpt->run);
    if (error != 0) {
        free_listing(&listing);
        return error;
    }
    for (uint32_t i = 0; i < listing.checkpoints.count; i++) {
        const struct offline_mark *mark = &listing.checkpoints.list[i];
        if (!fits(mark, choice))
            continue;
        error = read_entry(out, ckpt, ckpt->run, &listing, mark);
        bool is_meant = error == 0 && (choice->step >= 0 || out->damage[0] == '\0');
        any_damaged = any_damaged || (error == 0 && !is_meant);
        if (is_meant || (error != 0 && error != ERR_NOT_FOUND)) {
            free_listing(&listing);
            return error;
        }
    }
    free_listing(&listing);
    return any_damaged ? report_error(ERR_CORRUPT, "name a step to look at it all the same",
                                      "every checkpoint of run '%s' is damaged", ckpt->run)
                       : report_error(ERR_NOT_FOUND, "see `ckpt-cli list --store`",
                                      "run '%s' of the store %s has no such checkpoint", ckpt->run,
                                      place_of(ckpt));
}

static int read_manifest(struct manifest **out, const struct ckpt *ckpt,
                         const struct manifest_summary *summary)
{
    char dir[KEY_BYTES], key[KEY_BYTES + 32];
    void *text = NULL;
    size_t bytes = 0;
    ERR_TRY(shard_dir_key(dir, sizeof dir, summary->run, summary->step, summary->attempt));
    snprintf(key, sizeof key, "%s/%s", dir, MANIFEST_NAME);
    ERR_TRY(storage_fetch_all(ckpt->store, key, MANIFEST_BYTES_MAX, &text, &bytes));
    int error = manifest_read(out, text, bytes);
    free(text);
    if (error == 0)
        error = origin_settle(&(*out)->summary,
                              &(struct origin_place){summary->run, summary->step, summary->attempt,
                                                     storage_fetch, ckpt->store});
    return error;
}

int offline_manifest(struct manifest **out, char out_damage[OFFLINE_DAMAGE_BYTES],
                     const struct ckpt *ckpt, const struct offline_choice *choice)
{
    struct offline_entry entry;
    *out = NULL;
    int error = choose(&entry, ckpt, choice);
    if (error == 0 && out_damage != NULL)
        memcpy(out_damage, entry.damage, OFFLINE_DAMAGE_BYTES);
    else if (error == 0 && entry.damage[0] != '\0')
        error = report_error(ERR_CORRUPT, "see `ckpt-cli show`", "%s@%llu-a%llu is damaged: %s",
                             ckpt->run, (unsigned long long)entry.summary.step,
                             (unsigned long long)entry.summary.attempt, entry.damage);
    if (error == 0)
        error = read_manifest(out, ckpt, &entry.summary);
    if (error != 0) {
        manifest_free(*out);
        *out = NULL;
    }
    return error;
}
