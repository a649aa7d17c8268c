/* rubbish.c - finds and removes files that crashes left beside whole checkpoints.
 *
 * It finds directories without a manifest that their mark proves to be unfinished work and that no
 * process leases (remove.c). It also finds interrupted removals, notes on missing checkpoints,
 * marks beside a manifest, leases without a holder, and old temporary files of publications.
 * (Younger ones may still be renamed, because notes and leases are published without the lock.)
 * Directories without such a proof are listed as set aside, pinned or quarantined ones with that
 * reason; they stay.
 *
 * A finding may be outdated later. So before the removal the caller drops findings that it writes
 * or removes itself; a tool that has the store's lock and writes nothing meanwhile removes all. A
 * directory that has got its manifest or a lease since is never removed.
 *
 * A failed read or removal does not end the search: it is listed with its reason. No file of an
 * unreadable directory is removed. */
#include "storage/store/private.h"

#include "proto/base/array.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEFTOVER_SECONDS_MIN 600u
#define IS_LEASED 1 /* no error codes */
#define IS_THERE 2

struct search {
    struct store_rubbish_list *out;
    struct storage *storage;
    const char *run;    /* of checkpoints */
    const char *folder; /* its directory of notes */
};

static int add_found(struct store_rubbish_list *out, enum store_rubbish_what what, const char *key,
                     uint64_t files, uint64_t bytes)
{
    if (out->count == STORE_RUBBISH_MAX)
        return 0;
    ERR_TRY(array_reserve(&out->items, &out->room, out->count, sizeof(*out->items)));
    struct store_rubbish *item = &out->items[out->count++];
    *item = (struct store_rubbish){.what = what, .files = files, .bytes = bytes};
    snprintf(item->key, sizeof(item->key), "%s", key);
    return 0;
}

static int keep_reason(struct store_rubbish *item, int error)
{
    item->error = error;
    item->reason = error != 0 ? strdup(report_line()) : NULL;
    return error;
}

const char *store_rubbish_reason(const struct store_rubbish *item)
{
    return item->reason != NULL ? item->reason : err_text(item->error);
}

int store_rubbish_unknown(struct store_rubbish_list *out, const char *key, int error)
{
    if (error == 0 || error == ERR_MEMORY || out->count == STORE_RUBBISH_MAX)
        return error == ERR_MEMORY ? error : 0;
    ERR_TRY(add_found(out, STORE_UNKNOWN, key, 0, 0));
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
               ? add_found(search->out, STORE_LEFTOVER, folder, found.files, found.bytes)
               : error;
}

/* ---- checkpoints ---- */

struct measure {
    uint64_t files, bytes; /* that may be removed */
};

static int measure_member(void *user, const struct storage_entry *entry)
{
    struct measure *measure = user;
    if (!entry->is_dir && origin_is_member(entry->name)) {
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
static int find_lease(struct storage *storage, const char *run, const char *name)
{
    return store_for_leases(storage, run, see_lease, (void *)(uintptr_t)name);
}

/* A noted directory had a manifest when the note was made: it is no unfinished checkpoint. */
static int refuse_noted(struct storage *storage, const char *prefix)
{
    int error = store_find_note(storage, STORE_PIN, prefix, NULL, 0);
    if (error == 0)
        return report_error(ERR_CORRUPT, "restore it from a copy, or remove the pin",
                            "%s is pinned, and its manifest is lost", prefix);
    if (error == ERR_NOT_FOUND)
        error = store_find_note(storage, STORE_QUARANTINE, prefix, NULL, 0);
    if (error == 0)
        return report_error(ERR_CORRUPT, "restore it from a copy, or remove it by hand",
                            "%s is in quarantine, and its manifest is lost", prefix);
    return error == ERR_NOT_FOUND ? 0 : error;
}

static int see_object(void *user, const struct storage_entry *entry)
{
    (void)user, (void)entry;
    return IS_THERE;
}

/* IS_THERE while the checkpoint of a note has any object. */
static int find_noted(struct storage *storage, const char *checkpoint)
{
    int error = storage_list(storage, checkpoint, see_object, NULL);
    return error == 0 ? ERR_NOT_FOUND : error;
}

/* Adds a checkpoint without a manifest to the findings. */
static int search_rest(struct search *search, const char *prefix)
{
    static const enum store_rubbish_what kinds[] = {[STORE_REST_EMPTY] = STORE_UNFINISHED,
                                                    [STORE_REST_UNFINISHED] = STORE_UNFINISHED,
                                                    [STORE_REST_CUT_SHORT] = STORE_CUT_SHORT,
                                                    [STORE_REST_ASIDE] = STORE_ASIDE};
    struct measure measure = {0};
    enum store_rest rest = STORE_REST_WRITTEN;
    int error = store_rest(search->storage, prefix, &rest);
    if (error == 0 && rest == STORE_REST_TRASHED)
        return 0;
    if (error == 0 && rest != STORE_REST_CUT_SHORT)
        error = refuse_noted(search->storage, prefix);
    if (error == 0 && rest == STORE_REST_WRITTEN)
        return 0;
    if (error == 0)
        error = storage_list(search->storage, prefix, measure_member, &measure);
    return error == 0 ? add_found(search->out, kinds[rest], prefix, measure.files, measure.bytes)
                      : error;
}

/* Finds a mark beside a manifest, which a crash left. */
static int search_mark(struct search *search, const char *prefix)
{
    char key[STORAGE_KEY_MAX + 1];
    if (!storage_join(key, prefix, MARK_NAME))
        return 0;
    int error = find_object(search->storage, key);
    if (error == 0)
        return add_found(search->out, STORE_STALE, key, 1, 0);
    return error == ERR_NOT_FOUND ? 0 : error;
}

static int search_entry(void *user, const struct storage_entry *entry)
{
    struct search *search = user;
    char key[STORAGE_KEY_MAX + 1], manifest[STORAGE_KEY_MAX + 1];
    if (!entry->is_dir || !storage_join(key, search->run, entry->name))
        return 0;
    int error = sweep(search, key);
    if (retain_is_checkpoint(entry->name) && storage_join(manifest, key, MANIFEST_NAME)) {
        if (error == 0)
            error = find_object(search->storage, manifest);
        if (error == ERR_NOT_FOUND)
            error = search_rest(search, key);
        else if (error == 0)
            error = search_mark(search, key);
        if (search->out->on_checkpoint != NULL)
            search->out->on_checkpoint(search->out->user);
    }
    return store_rubbish_unknown(search->out, key, error);
}

/* ---- notes and leases ---- */

/* Checks a note or a lease: its name begins with that of its checkpoint. */
static int search_note(void *user, const struct storage_entry *entry)
{
    struct search *search = user;
    char folder[STORAGE_KEY_MAX + 1], key[STORAGE_KEY_MAX + 1], checkpoint[STORAGE_KEY_MAX + 1];
    char name[STORAGE_KEY_MAX + 1];
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(entry->name, "."), entry->name);
    if (entry->is_dir || name[0] == '\0' || !storage_join(folder, search->run, search->folder) ||
        !storage_join(key, folder, entry->name) || !storage_join(checkpoint, search->run, name))
        return 0;
    if (strcmp(search->folder, "tombstones") == 0)
        return strcmp(entry->name, STORE_RESERVE) == 0 ||
                       storage_find_holder(search->storage, key) == 0
                   ? 0
                   : add_found(search->out, STORE_CUT_SHORT, key, 1, 0);
    int error = strcmp(search->folder, "leases") == 0 ? storage_find_holder(search->storage, key)
                                                      : find_noted(search->storage, checkpoint);
    if (error == IS_THERE)
        return 0;
    return error == ERR_NOT_FOUND ? add_found(search->out, STORE_STALE, key, 1, 0)
                                  : store_rubbish_unknown(search->out, key, error);
}

int store_rubbish_find(struct store_rubbish_list *out, struct storage *storage, const char *run)
{
    static const char *const folders[] = {"pins", "quarantine", "tombstones", "leases"};
    struct search search = {.out = out, .storage = storage, .run = run};
    int error = storage_list(storage, run, search_entry, &search);
    if (error != 0)
        return store_rubbish_unknown(out, run, error);
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]) && error == 0; i++) {
        char folder[STORAGE_KEY_MAX + 1];
        search.folder = folders[i];
        if (storage_join(folder, run, folders[i]))
            error = store_rubbish_unknown(out, folder,
                                          storage_list(storage, folder, search_note, &search));
    }
    return error == 0 ? store_rubbish_unknown(out, run, sweep(&search, run)) : error;
}

int store_rubbish_find_above(struct store_rubbish_list *out, struct storage *storage)
{
    struct search search = {.out = out, .storage = storage};
    return store_rubbish_unknown(out, "", sweep(&search, ""));
}

void store_rubbish_free(struct store_rubbish_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i].reason);
    free(list->items);
    *list = (struct store_rubbish_list){0};
}

/* ---- removal ---- */

/* The checkpoint of a tombstone; the key of a checkpoint stays the same. */
static void prefix_of(char out[STORAGE_KEY_MAX + 1], const char *key)
{
    static const char folder[] = "/tombstones/";
    const char *at = strstr(key, folder);
    if (at == NULL)
        snprintf(out, STORAGE_KEY_MAX + 1, "%s", key);
    else
        snprintf(out, STORAGE_KEY_MAX + 1, "%.*s/%s", (int)(at - key), key, at + strlen(folder));
}

static int clear_checkpoint(struct storage *storage, const char *checkpoint)
{
    char run[STORAGE_KEY_MAX + 1];
    struct report_text text;
    int error = store_clear(storage, checkpoint);
    if (error != ERR_DENIED)
        return error;
    /* A process has leased it since, or the system refuses the removal. */
    const char *name = strrchr(checkpoint, '/');
    report_keep(&text);
    snprintf(run, sizeof(run), "%.*s", name != NULL ? (int)(name - checkpoint) : 0, checkpoint);
    return find_lease(storage, run, name != NULL ? name + 1 : checkpoint) == IS_LEASED
               ? 0
               : report_restore(&text, error);
}

static int remove_item(struct storage *storage, const struct store_rubbish *item)
{
    struct storage_sweep leftovers = {.seconds = LEFTOVER_SECONDS_MIN, .removes = true};
    char checkpoint[STORAGE_KEY_MAX + 1];
    int error = 0;
    switch (item->what) {
    case STORE_UNFINISHED:
    case STORE_CUT_SHORT:
        prefix_of(checkpoint, item->key);
        return clear_checkpoint(storage, checkpoint);
    case STORE_STALE:
        error = storage_remove(storage, item->key);
        return error == ERR_NOT_FOUND ? 0 : error;
    case STORE_LEFTOVER:
        return storage_sweep(storage, item->key, &leftovers);
    case STORE_ASIDE:
        return 0;
    case STORE_UNKNOWN:
        break;
    }
    CHECK(false);
}

int store_rubbish_remove(struct storage *storage, struct store_rubbish *item)
{
    if (item->error != 0)
        return item->error;
    return keep_reason(item, remove_item(storage, item));
}
