/* rubbish.c - what crashes left beside whole groups: found first, removed afterwards.
 *
 * Found: groups without a marker that their mark proves to be unfinished work and nobody leases
 * (who writes one without the store's lock leases it before its first object, see group.c); those
 * without such a proof are named as set aside, and those that are pinned or in quarantine with that
 * reason, and stay; removals that were cut short; notes on groups that are gone, marks beside a
 * marker; leases that nobody holds; temporary files of publications, when they are so old that
 * nobody can still be about to rename them: notes and leases are published without the lock.
 *
 * A finding is true when it is made. Between that and its removal the caller says which ones still
 * are: who has the store's lock and writes nothing meanwhile takes all of them; a service leaves
 * out what it writes or removes itself. A group that has got its marker since is not removed in any
 * case, nor one that has been leased.
 *
 * What cannot be looked into or removed keeps nobody from the rest: it is in the list with the
 * reason. Of a directory that cannot be looked into nothing is removed, as nobody knows what it is.
 *
 * Limit: STORAGE_RUBBISH_MAX findings in one list; what is beyond waits for the next. */
#include "storage/engine.h"

#include "proto/base/array.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEFTOVER_SECONDS_MIN 600u
#define IS_LEASED 1 /* no error codes */
#define IS_THERE 2

struct search {
    struct storage_rubbish_list *out;
    struct storage *storage;
    const struct storage_group_kind *kind;
    const char *parent; /* of groups */
    const char *folder; /* of notes in it */
};

static int add_found(struct storage_rubbish_list *out, enum storage_rubbish_what what,
                     const char *key, uint64_t files, uint64_t bytes)
{
    if (out->count == STORAGE_RUBBISH_MAX)
        return 0;
    ERR_TRY(array_reserve(&out->items, &out->room, out->count, sizeof(*out->items)));
    struct storage_rubbish *item = &out->items[out->count++];
    *item = (struct storage_rubbish){.what = what, .files = files, .bytes = bytes};
    snprintf(item->key, sizeof(item->key), "%s", key);
    return 0;
}

static int keep_reason(struct storage_rubbish *item, int error)
{
    item->error = error;
    item->reason = error != 0 ? strdup(report_line()) : NULL;
    return error;
}

const char *storage_rubbish_reason(const struct storage_rubbish *item)
{
    return item->reason != NULL ? item->reason : err_text(item->error);
}

int storage_rubbish_unknown(struct storage_rubbish_list *out, const char *key, int error)
{
    if (error == 0 || error == ERR_MEMORY || out->count == STORAGE_RUBBISH_MAX)
        return error == ERR_MEMORY ? error : 0;
    ERR_TRY(add_found(out, STORAGE_UNKNOWN, key, 0, 0));
    keep_reason(&out->items[out->count - 1], error);
    return 0;
}

/* 0, ERR_NOT_FOUND */
static int find_object(struct storage *storage, const char *key)
{
    uint64_t bytes;
    return storage_fetch(storage, key, NULL, 0, &bytes);
}

static int sweep(struct search *search, const char *folder)
{
    struct storage_sweep found = {.seconds = LEFTOVER_SECONDS_MIN};
    int error = storage_sweep(search->storage, folder, &found);
    return error == 0 && found.files > 0
               ? add_found(search->out, STORAGE_LEFTOVER, folder, found.files, found.bytes)
               : error;
}

/* ---- groups ---- */

struct measure {
    const struct storage_group_kind *kind;
    uint64_t files, bytes; /* that may be removed */
};

static int measure_member(void *user, const struct storage_entry *entry)
{
    struct measure *measure = user;
    if (!entry->is_dir && measure->kind->is_ours(entry->name)) {
        measure->files++;
        measure->bytes += entry->bytes;
    }
    return 0;
}

static int see_lease(void *user, const struct storage_entry *entry)
{
    return strcmp(entry->name, user) == 0 ? IS_LEASED : 0;
}

/* IS_LEASED, 0, or an error. */
static int find_lease(struct storage *storage, const char *parent, const char *name)
{
    return storage_groups_leased(storage, parent, see_lease, (void *)(uintptr_t)name);
}

/* It had a marker when the note was made: this is no unfinished group. */
static int refuse_noted(struct storage *storage, const char *prefix)
{
    int error = storage_group_find_note(storage, STORAGE_PIN, prefix, NULL, 0);
    if (error == 0)
        return report_error(ERR_CORRUPT, "bring it back from a copy, or take the pin away",
                            "%s is pinned, and its marker is lost", prefix);
    if (error == ERR_NOT_FOUND)
        error = storage_group_find_note(storage, STORAGE_QUARANTINE, prefix, NULL, 0);
    if (error == 0)
        return report_error(ERR_CORRUPT, "bring it back from a copy, or remove it by hand",
                            "%s is in quarantine, and its marker is lost", prefix);
    return error == ERR_NOT_FOUND ? 0 : error;
}

static int see_object(void *user, const struct storage_entry *entry)
{
    (void)user, (void)entry;
    return IS_THERE;
}

/* IS_THERE: what a note is on is gone only when its objects are. */
static int find_noted(struct storage *storage, const char *group)
{
    int error = storage_list(storage, group, see_object, NULL);
    return error == 0 ? ERR_NOT_FOUND : error;
}

/* A group without a marker. */
static int look_at_rest(struct search *search, const char *prefix)
{
    static const enum storage_rubbish_what kinds[] = {[STORAGE_REST_EMPTY] = STORAGE_UNFINISHED,
                                                      [STORAGE_REST_UNFINISHED] =
                                                          STORAGE_UNFINISHED,
                                                      [STORAGE_REST_CUT_SHORT] = STORAGE_CUT_SHORT,
                                                      [STORAGE_REST_ASIDE] = STORAGE_ASIDE};
    struct measure measure = {.kind = search->kind};
    enum storage_rest rest = STORAGE_REST_WRITTEN;
    int error = storage_group_rest(search->storage, search->kind, prefix, &rest);
    if (error == 0 && rest == STORAGE_REST_TRASHED)
        return 0;
    if (error == 0 && rest != STORAGE_REST_CUT_SHORT)
        error = refuse_noted(search->storage, prefix);
    if (error == 0 && rest == STORAGE_REST_WRITTEN)
        return 0;
    if (error == 0)
        error = storage_list(search->storage, prefix, measure_member, &measure);
    return error == 0 ? add_found(search->out, kinds[rest], prefix, measure.files, measure.bytes)
                      : error;
}

/* Beside a marker it says nothing any more: a crash kept it. */
static int look_for_mark(struct search *search, const char *prefix)
{
    char key[STORAGE_KEY_MAX + 1];
    if (!search->kind->mark || !storage_join(key, prefix, search->kind->mark))
        return 0;
    int error = find_object(search->storage, key);
    if (error == 0)
        return add_found(search->out, STORAGE_STALE, key, 1, 0);
    return error == ERR_NOT_FOUND ? 0 : error;
}

static int look_at_entry(void *user, const struct storage_entry *entry)
{
    struct search *search = user;
    char key[STORAGE_KEY_MAX + 1], marker[STORAGE_KEY_MAX + 1];
    if (!entry->is_dir || !storage_join(key, search->parent, entry->name))
        return 0;
    int error = sweep(search, key);
    if (search->kind->is_group(entry->name) && storage_join(marker, key, search->kind->marker)) {
        if (error == 0)
            error = find_object(search->storage, marker);
        if (error == ERR_NOT_FOUND)
            error = look_at_rest(search, key);
        else if (error == 0)
            error = look_for_mark(search, key);
        if (search->out->looked != NULL)
            search->out->looked(search->out->user);
    }
    return storage_rubbish_unknown(search->out, key, error);
}

/* ---- what lies beside them ---- */

/* A note, or a lease: its name begins with that of its group. */
static int look_at_note(void *user, const struct storage_entry *entry)
{
    struct search *search = user;
    char folder[STORAGE_KEY_MAX + 1], key[STORAGE_KEY_MAX + 1], group[STORAGE_KEY_MAX + 1];
    char name[STORAGE_KEY_MAX + 1];
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(entry->name, "."), entry->name);
    if (entry->is_dir || name[0] == '\0' || !storage_join(folder, search->parent, search->folder) ||
        !storage_join(key, folder, entry->name) || !storage_join(group, search->parent, name))
        return 0;
    if (strcmp(search->folder, "tombstones") == 0)
        return strcmp(entry->name, STORAGE_RESERVE) == 0 ||
                       storage_find_holder(search->storage, key) == 0
                   ? 0
                   : add_found(search->out, STORAGE_CUT_SHORT, key, 1, 0);
    int error = strcmp(search->folder, "leases") == 0 ? storage_find_holder(search->storage, key)
                                                      : find_noted(search->storage, group);
    if (error == IS_THERE)
        return 0;
    return error == ERR_NOT_FOUND ? add_found(search->out, STORAGE_STALE, key, 1, 0)
                                  : storage_rubbish_unknown(search->out, key, error);
}

int storage_rubbish_find(struct storage_rubbish_list *out, struct storage *storage,
                         const struct storage_group_kind *kind, const char *parent)
{
    static const char *const folders[] = {"pins", "quarantine", "tombstones", "leases"};
    struct search search = {.out = out, .storage = storage, .kind = kind, .parent = parent};
    int error = storage_list(storage, parent, look_at_entry, &search);
    if (error != 0)
        return storage_rubbish_unknown(out, parent, error);
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]) && error == 0; i++) {
        char folder[STORAGE_KEY_MAX + 1];
        search.folder = folders[i];
        if (storage_join(folder, parent, folders[i]))
            error = storage_rubbish_unknown(out, folder,
                                            storage_list(storage, folder, look_at_note, &search));
    }
    return error == 0 ? storage_rubbish_unknown(out, parent, sweep(&search, parent)) : error;
}

int storage_rubbish_find_above(struct storage_rubbish_list *out, struct storage *storage)
{
    struct search search = {.out = out, .storage = storage};
    return storage_rubbish_unknown(out, "", sweep(&search, ""));
}

void storage_rubbish_free(struct storage_rubbish_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i].reason);
    free(list->items);
    *list = (struct storage_rubbish_list){0};
}

/* ---- removal ---- */

/* The group that a tombstone is on; the key of a group as it is. */
static void group_of(char out[STORAGE_KEY_MAX + 1], const char *key)
{
    static const char folder[] = "/tombstones/";
    const char *at = strstr(key, folder);
    if (at == NULL)
        snprintf(out, STORAGE_KEY_MAX + 1, "%s", key);
    else
        snprintf(out, STORAGE_KEY_MAX + 1, "%.*s/%s", (int)(at - key), key, at + strlen(folder));
}

static int clear_group(struct storage *storage, const struct storage_group_kind *kind,
                       const char *group)
{
    char parent[STORAGE_KEY_MAX + 1];
    struct report_text text;
    int error = storage_group_clear(storage, kind, group);
    if (error != ERR_DENIED)
        return error;
    /* It has been leased since; or the system does not let it go. */
    const char *name = strrchr(group, '/');
    report_keep(&text);
    snprintf(parent, sizeof(parent), "%.*s", name != NULL ? (int)(name - group) : 0, group);
    return find_lease(storage, parent, name != NULL ? name + 1 : group) == IS_LEASED
               ? 0
               : report_restore(&text, error);
}

static int remove_item(struct storage *storage, const struct storage_group_kind *kind,
                       const struct storage_rubbish *item)
{
    struct storage_sweep leftovers = {.seconds = LEFTOVER_SECONDS_MIN, .removes = true};
    char group[STORAGE_KEY_MAX + 1];
    int error = 0;
    switch (item->what) {
    case STORAGE_UNFINISHED:
    case STORAGE_CUT_SHORT:
        group_of(group, item->key);
        return clear_group(storage, kind, group);
    case STORAGE_STALE:
        error = storage_remove(storage, item->key);
        return error == ERR_NOT_FOUND ? 0 : error;
    case STORAGE_LEFTOVER:
        return storage_sweep(storage, item->key, &leftovers);
    case STORAGE_ASIDE:
        return 0;
    case STORAGE_UNKNOWN:
        break;
    }
    CHECK(false);
}

int storage_rubbish_remove(struct storage *storage, const struct storage_group_kind *kind,
                           struct storage_rubbish *item)
{
    if (item->error != 0)
        return item->error;
    return keep_reason(item, remove_item(storage, kind, item));
}
