/* list.c - lists the checkpoints of a store.
 *
 * A checkpoint is a directory <run>/step-NNNNNNNN-aNNNN with a manifest. list.c reads its summary,
 * the first 4 KiB of the manifest, which must agree with the directory's name. A directory without
 * a manifest is listed if its state is unexplained (set aside, in doubt), not if it is unfinished
 * work. An unreadable or quarantined checkpoint is listed with the reason, never hidden.
 *
 * Several checkpoints are read at once (storage_for_many): in a bucket each read is a request.
 *
 * Bounds: STORE_LIST_MAX checkpoints, then ERR_BUSY. */
#include "storage/store/private.h"

#include "proto/base/array.h"
#include "proto/format/flaw.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

int store_newest_first(const void *left, const void *right)
{
    const struct store_name *a = left, *b = right;
    return retain_newest_first(&(struct retain_item){.step = a->step, .attempt = a->attempt},
                               &(struct retain_item){.step = b->step, .attempt = b->attempt});
}

static int visit_name(void *user, const struct storage_entry *found)
{
    struct store_names *names = user;
    uint64_t step, attempt;
    names->is_any = true;
    if (!found->is_dir || !retain_parse(found->name, &step, &attempt))
        return 0;
    if (names->count == STORE_LIST_MAX)
        return report_error(ERR_BUSY, NULL, "a run has over %u checkpoints", STORE_LIST_MAX);
    ERR_TRY(array_reserve(&names->list, &names->room, names->count, sizeof *names->list));
    names->list[names->count++] = (struct store_name){step, attempt, found->is_volatile};
    return 0;
}

int store_list_names(struct store_names *out, struct storage *storage, const char *run)
{
    *out = (struct store_names){0};
    int error = storage_list(storage, run, visit_name, out);
    if (error != 0)
        store_names_free(out);
    else if (out->count > 0)
        qsort(out->list, out->count, sizeof *out->list, store_newest_first);
    return error;
}

void store_names_free(struct store_names *names)
{
    free(names->list);
    *names = (struct store_names){0};
}

static int visit_run(void *user, const struct storage_entry *found)
{
    return found->is_dir && strlen(found->name) < 128 && found->name[0] != '.'
               ? names_add(user, found->name)
               : 0;
}

static int compare_runs(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

int store_for_runs(struct storage *storage, int (*call)(void *user, const char *run), void *user)
{
    struct names runs = {0};
    int error = storage_list(storage, "", visit_run, &runs);
    if (runs.count > 0)
        qsort(runs.list, runs.count, sizeof *runs.list, compare_runs);
    for (uint32_t i = 0; i < runs.count && error == 0; i++)
        error = call(user, runs.list[i]);
    names_free(&runs);
    return error;
}

static int visit_attempt(void *user, const struct storage_entry *entry)
{
    uint64_t *newest = user;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(entry->name, &end, 10);
    if (*end == '\0' && errno == 0 && number > *newest && number < UINT64_MAX)
        *newest = number;
    return 0;
}

int store_newest_attempt(uint64_t *out, struct storage *storage, const char *run)
{
    char folder[STORAGE_KEY_MAX + 1];
    *out = 0;
    ERR_TRY(note_key_in(folder, run, "attempts"));
    return storage_list(storage, folder, visit_attempt, out);
}

/* ---- one checkpoint ---- */

const char *store_flaw(int error)
{
    return error == ERR_MISMATCH ? FLAW_MOVED : error == ERR_VERSION ? FLAW_NEWER : FLAW_DAMAGED;
}

void store_entry_free(struct store_entry *entry)
{
    free(entry->damage);
    entry->damage = NULL;
}

static int keep_damage(struct store_entry *entry, const char *text)
{
    free(entry->damage);
    entry->damage = strdup(text);
    return entry->damage ? 0 : report_error(ERR_MEMORY, NULL, "no memory for what is damaged");
}

/* The entry keeps its directory's name, and drops the manifest's values. ERR_MEMORY. */
__attribute__((format(printf, 2, 3))) static int note_damage(struct store_entry *entry,
                                                             const char *format, ...)
{
    char text[STORE_DAMAGE_BYTES];
    struct manifest_summary place = {.step = entry->summary.step,
                                     .attempt = entry->summary.attempt};
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    memcpy(place.run, entry->summary.run, sizeof place.run);
    entry->summary = place;
    return keep_damage(entry, text);
}

/* Sets the error for which the entry is unknown, and its text. ERR_MEMORY. */
static int set_unread(struct store_entry *entry, int error, const char *what)
{
    struct report_text why;
    report_keep(&why);
    entry->unread = error;
    entry->flaw = FLAW_UNREAD;
    return note_damage(entry, "%s%s%s%s", what, why.message, why.detail[0] != '\0' ? ": " : "",
                       why.detail);
}

/* Reads a directory without a manifest: ERR_NOT_FOUND if its state is explained. */
static int read_aside(struct store_entry *entry, struct storage *storage, const char *prefix)
{
    enum store_rest rest = STORE_REST_EMPTY;
    char coordinator[MARK_NODE_BYTES];
    struct shard_identity identity;
    ERR_TRY(store_rest(storage, prefix, &rest));
    if (rest != STORE_REST_ASIDE)
        return ERR_NOT_FOUND;
    int error = store_read_part(&identity, coordinator, storage, prefix);
    if (error != 0 && error != ERR_NOT_FOUND)
        return error;
    entry->flaw = error == 0 ? FLAW_IN_DOUBT : FLAW_ASIDE;
    return error == 0
               ? note_damage(entry, IN_DOUBT_TEXT, coordinator)
               : note_damage(entry, "it has no manifest, and no mark of unfinished work: put the "
                                    "manifest back, or remove it: ckpt-cli rm");
}

/* Reads one checkpoint, without its notes. ERR_NOT_FOUND: there is none, or unfinished work. */
static int read_entry(struct store_entry *out, struct storage *storage, const char *run,
                      uint64_t step, uint64_t attempt)
{
    char prefix[STORAGE_KEY_MAX + 1], origin[sizeof out->summary.origin];
    memset(out, 0, sizeof *out);
    ERR_TRY(shard_dir_key(prefix, sizeof prefix, run, step, attempt));
    int error = store_read_summary(&out->summary, storage, run, step, attempt);
    if (error == 0 || error == ERR_MEMORY)
        return error;
    memcpy(origin, out->summary.origin, sizeof origin);
    out->summary = (struct manifest_summary){.step = step, .attempt = attempt};
    snprintf(out->summary.run, sizeof out->summary.run, "%s", run);
    if (error == ERR_NOT_FOUND)
        error = read_aside(out, storage, prefix);
    if (error == ERR_DENIED)
        return set_unread(out, error, "");
    if (error != ERR_MISMATCH && error != ERR_VERSION && error != ERR_CORRUPT)
        return error;
    out->flaw = store_flaw(error);
    error = note_damage(out, "%s", report_message());
    memcpy(out->summary.origin, origin, sizeof origin);
    return error;
}

/* If it is quarantined, the reason becomes its damage. */
static int read_quarantine(struct store_entry *entry, struct storage *storage)
{
    const struct manifest_summary *summary = &entry->summary;
    char prefix[STORAGE_KEY_MAX + 1], reason[STORE_DAMAGE_BYTES];
    ERR_TRY(shard_dir_key(prefix, sizeof prefix, summary->run, summary->step, summary->attempt));
    int error = store_read_reason(reason, sizeof reason, storage, prefix);
    if (error == 0)
        error = keep_damage(entry, reason);
    return error == ERR_NOT_FOUND ? 0 : error;
}

/* ---- a list of checkpoints ---- */

struct reading {
    struct store_list *list;
    struct storage *storage;
    const char *run;
    uint32_t first; /* the first entry of the run */
};

static int add_entry(struct store_entry **out, struct store_list *list)
{
    if (list->count == STORE_LIST_MAX)
        return report_error(ERR_BUSY, "name one run", "the store has over %u checkpoints",
                            STORE_LIST_MAX);
    ERR_TRY(array_reserve(&list->entries, &list->room, list->count, sizeof *list->entries));
    *out = &list->entries[list->count++];
    memset(*out, 0, sizeof **out);
    return 0;
}

/* Runs on any thread; changes only its entry. An entry with an empty run is no checkpoint. ERR_IO
 * concerns this one, as in ckptd (ckptd/keep/scan.c): it must not hide the others. Other errors are
 * those of a whole store that does not answer. */
static int read_listed(void *user, size_t index)
{
    const struct reading *reading = user;
    struct store_entry *entry = &reading->list->entries[reading->first + index];
    const uint64_t step = entry->summary.step, attempt = entry->summary.attempt;
    int error = read_entry(entry, reading->storage, reading->run, step, attempt);
    if (error == ERR_NOT_FOUND)
        entry->summary.run[0] = '\0';
    if (error == ERR_IO)
        return set_unread(entry, error, "");
    return error == ERR_NOT_FOUND ? 0 : error;
}

static void drop_others(struct store_list *list, uint32_t first)
{
    uint32_t count = first;
    for (uint32_t i = first; i < list->count; i++)
        if (list->entries[i].summary.run[0] != '\0')
            list->entries[count++] = list->entries[i];
    list->count = count;
}

/* By run, then newest first: a younger attempt may have gone back to an older step, and left the
 * rest of an older branch. */
static int compare_entries(const void *left, const void *right)
{
    const struct manifest_summary *a = &((const struct store_entry *)left)->summary;
    const struct manifest_summary *b = &((const struct store_entry *)right)->summary;
    int order = strcmp(a->run, b->run);
    return order != 0
               ? order
               : store_newest_first(&(struct store_name){.step = a->step, .attempt = a->attempt},
                                    &(struct store_name){.step = b->step, .attempt = b->attempt});
}

static struct store_entry *find_entry(const struct store_list *list,
                                      const struct manifest_summary *summary)
{
    return list->count > 0 ? bsearch(&(struct store_entry){.summary = *summary}, list->entries,
                                     list->count, sizeof *list->entries, compare_entries)
                           : NULL;
}

/* The entry of a note's checkpoint, or NULL. The entries of the run are sorted. */
static struct store_entry *find_noted(const struct reading *reading, const char *name)
{
    struct store_entry key = {0};
    snprintf(key.summary.run, sizeof key.summary.run, "%s", reading->run);
    return retain_parse(name, &key.summary.step, &key.summary.attempt) &&
                   reading->list->count > reading->first
               ? bsearch(&key, reading->list->entries + reading->first,
                         reading->list->count - reading->first, sizeof key, compare_entries)
               : NULL;
}

static int visit_quarantine(void *user, const struct storage_entry *found)
{
    const struct reading *reading = user;
    struct store_entry *entry = find_noted(reading, found->name);
    char text[STORE_DAMAGE_BYTES];
    int error = entry ? read_quarantine(entry, reading->storage) : 0;
    if (error != ERR_IO && error != ERR_DENIED)
        return error;
    snprintf(text, sizeof text, "the reason cannot be read: %s", report_line());
    return keep_damage(entry, text); /* the name of the note is enough */
}

/* Reads the checkpoints of one run, and which of them are quarantined. */
static int read_run(struct reading *reading)
{
    struct store_list *list = reading->list;
    struct store_names names;
    struct store_entry *entry;
    reading->first = list->count;
    int error = store_list_names(&names, reading->storage, reading->run);
    for (uint32_t i = 0; i < names.count && error == 0; i++) {
        error = add_entry(&entry, list);
        if (error != 0)
            break;
        entry->summary.step = names.list[i].step;
        entry->summary.attempt = names.list[i].attempt;
    }
    store_names_free(&names);
    if (error == 0)
        error =
            storage_for_many(reading->storage, list->count - reading->first, read_listed, reading);
    if (error == 0)
        drop_others(list, reading->first);
    return error == 0 ? store_for_notes(reading->storage, STORE_QUARANTINE, reading->run,
                                        visit_quarantine, reading)
                      : error;
}

static void cut(struct store_list *list, uint32_t count)
{
    while (list->count > count)
        store_entry_free(&list->entries[--list->count]);
}

/* The checkpoints of the run are unknown: replaces them by one entry with the reason. */
static int note_unread_run(struct store_list *list, uint32_t count_before, const char *run,
                           int error)
{
    struct report_text why;
    struct store_entry *entry;
    report_keep(&why);
    cut(list, count_before);
    ERR_TRY(add_entry(&entry, list));
    snprintf(entry->summary.run, sizeof entry->summary.run, "%s", run);
    report_restore(&why, error);
    return set_unread(entry, error, "the run could not be read: ");
}

static int add_run(void *user, const char *run)
{
    struct reading *outer = user;
    struct reading inner = {outer->list, outer->storage, run, 0};
    uint32_t before = outer->list->count;
    int error = read_run(&inner);
    bool is_of_all = error == ERR_MEMORY || error == ERR_BUSY; /* no further run can be read */
    return error == 0 || is_of_all ? error : note_unread_run(outer->list, before, run, error);
}

int store_list_read(struct store_list *out, struct storage *storage, const char *run)
{
    struct reading reading = {out, storage, run, 0};
    memset(out, 0, sizeof *out);
    int error = run[0] != '\0' ? read_run(&reading) : store_for_runs(storage, add_run, &reading);
    if (error != 0)
        store_list_free(out);
    else if (out->count > 0)
        qsort(out->entries, out->count, sizeof *out->entries, compare_entries);
    return error;
}

void store_list_free(struct store_list *list)
{
    cut(list, 0);
    free(list->entries);
    memset(list, 0, sizeof *list);
}

bool store_list_has(const struct store_list *list, const struct manifest_summary *summary)
{
    return find_entry(list, summary) != NULL;
}

static int visit_pin(void *user, const struct storage_entry *found)
{
    struct store_entry *entry = find_noted(user, found->name);
    if (entry)
        entry->may_be_pinned = true;
    return 0;
}

int store_list_find_pins(struct store_list *list, struct storage *storage)
{
    for (uint32_t i = 0; i < list->count;) {
        struct reading reading = {list, storage, list->entries[i].summary.run, i};
        int error = store_for_notes(storage, STORE_PIN, reading.run, visit_pin, &reading);
        if (error == ERR_MEMORY)
            return error;
        for (; i < list->count && strcmp(list->entries[i].summary.run, reading.run) == 0; i++)
            list->entries[i].may_be_pinned |= error != 0;
    }
    return 0;
}

/* ---- the selected checkpoint ---- */

static bool is_meant(const struct store_choice *choice, const struct store_name *name)
{
    const struct store_name passed = {.step = choice->passed_step,
                                      .attempt = choice->passed_attempt};
    if (choice->attempt != 0 && name->attempt != choice->attempt)
        return false;
    if (choice->passed_attempt != 0 && store_newest_first(name, &passed) <= 0)
        return false;
    if (choice->step >= 0)
        return name->step == (uint64_t)choice->step;
    return choice->below_step <= 0 || name->step < (uint64_t)choice->below_step;
}

/* A checkpoint of a later version is not skipped: an older one has another state. */
static bool is_passed_over(const struct store_choice *choice, const struct store_entry *entry)
{
    return choice->step < 0 && entry->damage &&
           !(entry->flaw && strcmp(entry->flaw, FLAW_NEWER) == 0);
}

int store_find(struct store_entry *out, struct storage *storage, const struct store_choice *choice,
               int (*skip)(void *user, const struct store_entry *entry), void *user)
{
    struct store_names names;
    int error = store_list_names(&names, storage, choice->run);
    bool is_found = false;
    for (uint32_t i = 0; i < names.count && error == 0 && !is_found; i++) {
        if (!is_meant(choice, &names.list[i]))
            continue;
        error = read_entry(out, storage, choice->run, names.list[i].step, names.list[i].attempt);
        if (error == 0 && !out->damage)
            error = read_quarantine(out, storage);
        is_found = error == 0 && !is_passed_over(choice, out);
        if (error == 0 && !is_found && skip)
            error = skip(user, out);
        if (!is_found)
            store_entry_free(out);
        error = error == ERR_NOT_FOUND ? 0 : error;
    }
    store_names_free(&names);
    return error == 0 && !is_found ? ERR_NOT_FOUND : error;
}
