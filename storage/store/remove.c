/* remove.c - removes a checkpoint for good, and classifies directories without a manifest.
 *
 *   tombstone durable ──► pinned, in quarantine, leased? ──yes──► tombstone removed: nothing
 *                              │ no                                                 happened
 *                              ▼
 *          manifest removed, durably: from here on no reader finds the checkpoint
 *                              │
 *                              ▼
 *               the other objects, the directory ──► tombstone removed
 *
 * The other objects are listed after the manifest is gone, because a process that leased the
 * checkpoint before the tombstone may have left another one.
 *
 * The manifest is removed before the shards, as in restic and Delta Lake. A crash before it is gone
 * leaves a whole checkpoint and a tombstone; a crash after it leaves rubbish, which the same call
 * removes when it is repeated.
 *
 * If no process locks the store, as in a bucket that several ckptd share, the remover has a hold
 * beside the tombstone until the manifest is gone (notes.c). One remover at a time works on a
 * checkpoint and its trash; the others stop.
 *
 * No process reads a directory without a manifest. So it is cleared without a tombstone, if its
 * mark proves that it is unfinished work and it has no writer's lease. The mark is removed last. A
 * pinned directory has lost its manifest, so it stays. Any other one is set aside: its manifest may
 * have been moved away by mistake, or may still come.
 *
 * A removal must work on a full disk. A tombstone has no bytes, so it needs an inode and a place in
 * its directory. An empty file there, the reserve, keeps both. The reserve becomes the tombstone,
 * and what the removal frees brings it back. move.c has removals that can be undone. */
#include "storage/store/private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IS_FOUND 1 /* not an error code */

static int visit_member(void *user, const struct storage_entry *entry)
{
    struct members *members = user;
    if (!entry->is_dir && strcmp(entry->name, MANIFEST_NAME) == 0) {
        members->has_manifest = true;
        return 0;
    }
    if (!entry->is_dir && strcmp(entry->name, MARK_NAME) == 0) {
        members->has_mark = true;
        return 0;
    }
    if (!entry->is_dir && origin_is_member(entry->name))
        return names_add(&members->names, entry->name);
    members->has_others = true;
    return 0;
}

int removal_list(struct members *members, struct storage *storage, const char *prefix)
{
    names_free(&members->names);
    *members = (struct members){0};
    return storage_list(storage, prefix, visit_member, members);
}

int removal_remove_member(struct storage *storage, const char *prefix, const char *name)
{
    char key[STORAGE_KEY_MAX + 1];
    int error = note_key_in(key, prefix, name);
    if (error == 0)
        error = storage_remove(storage, key);
    return error == ERR_NOT_FOUND ? 0 : error;
}

/* The manifest is gone: no reader finds the other members. */
int removal_remove_rest(struct storage *storage, const char *prefix, const struct members *members)
{
    char parent[STORAGE_KEY_MAX + 1];
    int error = 0;
    bool stays = members->has_others;
    for (size_t i = 0; i < members->names.count; i++)
        ERR_TRY(removal_remove_member(storage, prefix, members->names.list[i]));
    if (members->has_mark) { /* removed last: shards without a mark are set aside, not removed */
        error = storage_sync_names(storage, prefix);
        if (error == 0)
            error = removal_remove_member(storage, prefix, MARK_NAME);
    }
    if (error == 0 && !stays) {
        error = storage_remove(storage, prefix);
        stays = error == ERR_EXISTS; /* it has names that lists hide */
    }
    if (error != 0 && error != ERR_EXISTS && error != ERR_NOT_FOUND)
        return error;
    note_parent_of(parent, prefix);
    return storage_sync_names(storage, stays ? prefix : parent);
}

/* Quarantine keeps evidence for operators, so it does not refuse an operator (`by_operator`). */
static int refuse_held(struct storage *storage, const char *prefix, bool by_operator)
{
    int error = 0;
    for (size_t i = 0; i < (by_operator ? STORE_QUARANTINE : NOTE_KINDS) && error == 0; i++)
        error = note_refuse(storage, note_folders[i], prefix, ERR_DENIED);
    return error == 0 ? lease_refuse(storage, prefix) : error;
}

/* Does its mark prove that the checkpoint is unfinished work? */
static int check_mark(struct storage *storage, const struct members *members, const char *prefix,
                      bool *out_is_proven)
{
    char key[STORAGE_KEY_MAX + 1], text[MARK_BYTES_MAX] = "";
    uint64_t bytes;
    *out_is_proven = false;
    if (!members->has_mark)
        return 0;
    int error = note_key_in(key, prefix, MARK_NAME);
    if (error == 0)
        error = storage_fetch(storage, key, text, sizeof(text) - 1, &bytes);
    *out_is_proven = error == 0 && mark_is_of(prefix, text);
    return error == ERR_NOT_FOUND ? 0 : error;
}

/* A search for a checkpoint's manifest in the trash beside it. */
struct parted_search {
    struct storage *storage;
    const char *name;   /* of the checkpoint */
    const char *folder; /* the trash */
    const char *besides;
    char *found;
};

static int visit_parted(void *user, const struct storage_entry *entry)
{
    const struct parted_search *search = user;
    char *key = search->found, manifest[STORAGE_KEY_MAX + 1];
    size_t length = strlen(search->name);
    uint64_t bytes;
    if (!entry->is_dir || strncmp(entry->name, search->name, length) != 0 ||
        entry->name[length] != '.')
        return 0;
    ERR_TRY(note_key_in(key, search->folder, entry->name));
    if (strcmp(key, search->besides) == 0)
        return 0;
    ERR_TRY(note_key_in(manifest, key, MANIFEST_NAME));
    int error = storage_fetch(search->storage, manifest, NULL, 0, &bytes);
    return error == 0 ? IS_FOUND : error == ERR_NOT_FOUND ? 0 : error;
}

/* 0: the checkpoint's manifest is in the trash, at *out, which is not `besides`. ERR_NOT_FOUND: it
 * is not, or the checkpoint was renamed into the trash with its objects. */
static int find_parted(char out[STORAGE_KEY_MAX + 1], struct storage *storage, const char *prefix,
                       const char *besides)
{
    char parent[STORAGE_KEY_MAX + 1], folder[STORAGE_KEY_MAX + 1];
    struct parted_search search = {storage, prefix, folder, besides, out};
    if (storage_renames(storage))
        return ERR_NOT_FOUND;
    note_parent_of(parent, prefix);
    search.name += parent[0] ? strlen(parent) + 1 : 0;
    ERR_TRY(note_key_in(folder, parent, STORE_TRASH));
    int error = storage_list(storage, folder, visit_parted, &search);
    return error == IS_FOUND ? 0 : error == 0 ? ERR_NOT_FOUND : error;
}

int removal_is_parted(struct storage *storage, const char *prefix, const char *besides)
{
    char key[STORAGE_KEY_MAX + 1];
    return find_parted(key, storage, prefix, besides);
}

/* The same at the key that the tombstone names, because a list may be stale. */
static int find_at_tombstone(struct storage *storage, const char *prefix)
{
    char key[STORAGE_KEY_MAX + 1], told[STORAGE_KEY_MAX + 1] = "", manifest[STORAGE_KEY_MAX + 1];
    uint64_t bytes;
    if (storage_renames(storage))
        return ERR_NOT_FOUND;
    ERR_TRY(note_key(key, NOTE_TOMBSTONES, prefix));
    ERR_TRY(storage_fetch(storage, key, told, sizeof(told) - 1, &bytes));
    if (told[0] == '\0')
        return ERR_NOT_FOUND;
    ERR_TRY(note_key_in(manifest, told, MANIFEST_NAME));
    return storage_fetch(storage, manifest, NULL, 0, &bytes);
}

/* Classifies a directory without a manifest. A writer leases or marks it before its first
 * object. */
static int classify_rest(struct storage *storage, const struct members *members, const char *prefix,
                         enum store_rest *out)
{
    int error = removal_is_parted(storage, prefix, "");
    if (error == ERR_NOT_FOUND)
        error = find_at_tombstone(storage, prefix);
    *out = STORE_REST_TRASHED;
    if (error != ERR_NOT_FOUND)
        return error;
    error = note_find(storage, NOTE_TOMBSTONES, prefix);
    *out = STORE_REST_CUT_SHORT;
    if (error != ERR_NOT_FOUND)
        return error;
    error = lease_refuse(storage, prefix);
    *out = STORE_REST_WRITTEN;
    if (error != 0)
        return error == ERR_DENIED ? 0 : error;
    bool is_empty = members->names.count == 0, is_proven = false;
    error = check_mark(storage, members, prefix, &is_proven);
    *out = is_proven ? STORE_REST_UNFINISHED : is_empty ? STORE_REST_EMPTY : STORE_REST_ASIDE;
    return error;
}

int store_rest(struct storage *storage, const char *prefix, enum store_rest *out)
{
    struct members members = {0};
    int error = removal_list(&members, storage, prefix);
    if (error == 0)
        error = classify_rest(storage, &members, prefix, out);
    names_free(&members.names);
    return error;
}

static int refuse_rest(struct storage *storage, const struct members *members, const char *prefix,
                       enum store_rest *out)
{
    int error = classify_rest(storage, members, prefix, out);
    if (error != 0 || *out == STORE_REST_CUT_SHORT || *out == STORE_REST_TRASHED)
        return error;
    error = refuse_held(storage, prefix, false);
    if (error == 0 && *out == STORE_REST_ASIDE)
        error = report_error(ERR_DENIED, "put its manifest back, or remove it: ckpt-cli rm",
                             "%s has no %s, and no mark of unfinished work", prefix, MANIFEST_NAME);
    return error;
}

/* Renames the reserve to the tombstone, or back, so that no other file can take its inode. */
static int swap_reserve(struct storage *storage, const char *prefix, bool is_back)
{
    char folder[STORAGE_KEY_MAX + 1], reserve[STORAGE_KEY_MAX + 1], tombstone[STORAGE_KEY_MAX + 1];
    ERR_TRY(note_folder_beside(folder, NOTE_TOMBSTONES, prefix));
    ERR_TRY(note_key_in(reserve, folder, STORE_RESERVE));
    ERR_TRY(note_key(tombstone, NOTE_TOMBSTONES, prefix));
    const char *from = is_back ? tombstone : reserve, *to = is_back ? reserve : tombstone;
    ERR_TRY(storage_rename(storage, from, to));
    int error = storage_sync_names(storage, folder);
    if (error != 0 && !is_back)
        storage_rename(storage, to, from);
    return error;
}

/* An earlier tombstone belongs to an interrupted removal. */
static int make_tombstone(struct removing *removing, struct storage *storage, const char *prefix)
{
    const char *to = removing->to ? removing->to : "";
    int error = note_publish(storage, NOTE_TOMBSTONES, prefix, to);
    removing->is_again = error == ERR_EXISTS;
    if (removing->is_again &&
        to[0]) { /* it names the key to which an earlier try has moved the manifest */
        ERR_TRY(note_remove(storage, NOTE_TOMBSTONES, prefix));
        error = note_publish(storage, NOTE_TOMBSTONES, prefix, to);
    }
    if (error != ERR_SPACE)
        return error == ERR_EXISTS ? 0 : error;
    error = swap_reserve(storage, prefix, false);
    removing->is_spent = error == 0;
    if (error != ERR_NOT_FOUND)
        return error;
    removing->is_again = note_find(storage, NOTE_TOMBSTONES, prefix) == 0;
    return removing->is_again
               ? 0
               : report_error(ERR_SPACE, NULL, "no room for the tombstone of %s", prefix);
}

/* A tombstone that was the reserve becomes it again. */
int removal_drop_tombstone(const struct removing *removing, struct storage *storage,
                           const char *prefix)
{
    return removing->is_spent && swap_reserve(storage, prefix, true) == 0
               ? 0
               : note_remove(storage, NOTE_TOMBSTONES, prefix);
}

/* `error` forbids the removal: removes its tombstone. If that fails, the next start removes it. */
int removal_give_way(const struct removing *removing, struct storage *storage, const char *prefix,
                     int error)
{
    struct report_text text;
    if (error == 0)
        return 0;
    report_keep(&text);
    if (removal_drop_tombstone(removing, storage, prefix) != 0)
        log_warn("storage", "could not remove the tombstone of %s: %s", prefix, report_line());
    return report_restore(&text, error);
}

/* Of several removers of one checkpoint the later ones stop before they make anything. */
int removal_begin(struct removing *removing, struct storage *storage, const char *prefix,
                  bool by_operator)
{
    ERR_TRY(remover_begin(removing, storage, prefix));
    ERR_TRY(remover_alone(removing, storage, prefix));
    ERR_TRY(make_tombstone(removing, storage, prefix));
    int error = refuse_held(storage, prefix, by_operator);
    if (error == 0)
        error = remover_check(removing, storage);
    return removal_give_way(removing, storage, prefix, error);
}

/* Does the checkpoint still have its manifest, as when it was listed? ERR_NOT_FOUND: another
 * process has removed it since. 0 also after an interrupted removal, which this one completes. */
static int check_unchanged(const struct removing *removing, struct storage *storage,
                           const char *prefix)
{
    char manifest[STORAGE_KEY_MAX + 1];
    uint64_t bytes;
    ERR_TRY(note_key_in(manifest, prefix, MANIFEST_NAME));
    int error = storage_fetch(storage, manifest, NULL, 0, &bytes);
    if (error != ERR_NOT_FOUND || !removing->is_again)
        return error;
    error = find_at_tombstone(storage, prefix);
    return error == ERR_NOT_FOUND ? 0 : error == 0 ? ERR_NOT_FOUND : error;
}

/* Removes manifests in the trash that name the same objects before the objects. */
static int discard_trashed(struct storage *storage, const char *prefix)
{
    char key[STORAGE_KEY_MAX + 1];
    int error;
    while ((error = find_parted(key, storage, prefix, "")) == 0)
        ERR_TRY(store_discard(storage, key));
    return error == ERR_NOT_FOUND ? 0 : error;
}

/* The members are listed again afterwards, because a reader may have left one before the tombstone.
 * The trash's manifests are removed before the checkpoint's own: an undelete notices that
 * (move.c). */
static int remove_manifest(struct removing *removing, struct storage *storage,
                           struct members *members, const char *prefix, bool by_operator)
{
    int error = removal_begin(removing, storage, prefix, by_operator);
    if (error == 0 && !by_operator && !storage_renames(storage))
        error =
            removal_give_way(removing, storage, prefix, check_unchanged(removing, storage, prefix));
    if (error == 0)
        error = discard_trashed(storage, prefix);
    if (error == 0)
        error = removal_remove_member(storage, prefix, MANIFEST_NAME);
    if (error == 0)
        error = storage_sync_names(storage, prefix);
    storage_release(storage, removing->hold);
    return error == 0 ? removal_list(members, storage, prefix) : error;
}

/* `is_new`: removes whole checkpoints, too; else only the rest of those without a manifest. */
static int remove_checkpoint(struct storage *storage, const char *prefix, bool is_new)
{
    struct members members = {0};
    enum store_rest rest = STORE_REST_ASIDE;
    struct removing removing = {.hold = NULL};
    int error = removal_list(&members, storage, prefix);
    bool has_manifest = members.has_manifest;
    if (error == 0 && !has_manifest)
        error = refuse_rest(storage, &members, prefix, &rest);
    bool goes = has_manifest ? is_new : rest != STORE_REST_TRASHED;
    if (error == 0 && members.has_manifest && is_new)
        error = remove_manifest(&removing, storage, &members, prefix, false);
    if (error == 0 && goes)
        error = removal_remove_rest(storage, prefix, &members);
    names_free(&members.names);
    if (error == 0 && goes)
        error = store_forget_leases(storage, prefix);
    if (error == 0)
        error = removal_drop_tombstone(&removing, storage, prefix);
    return error == ERR_NOT_FOUND ? 0 : error; /* another call has completed it */
}

int store_remove(struct storage *storage, const char *prefix)
{
    return remove_checkpoint(storage, prefix, true);
}

int store_erase(struct storage *storage, const char *prefix)
{
    struct members members = {0};
    struct removing removing = {.hold = NULL};
    int error = remove_manifest(&removing, storage, &members, prefix, true);
    if (error == 0)
        error = removal_remove_rest(storage, prefix, &members);
    names_free(&members.names);
    if (error == 0)
        error = store_forget_leases(storage, prefix);
    if (error == 0) {
        error = note_remove(storage, note_folders[STORE_QUARANTINE], prefix);
        error = error == ERR_NOT_FOUND ? 0 : error;
    }
    return error == 0 ? removal_drop_tombstone(&removing, storage, prefix) : error;
}

int store_clear(struct storage *storage, const char *prefix)
{
    return remove_checkpoint(storage, prefix, false);
}

static int visit_tombstone(void *user, const struct storage_entry *entry)
{
    return entry->is_dir || strcmp(entry->name, STORE_RESERVE) == 0 ? 0
                                                                    : names_add(user, entry->name);
}

int store_prepare_run(struct storage *storage, const char *parent)
{
    char key[STORAGE_KEY_MAX + 1];
    int error = note_key_in(key, parent, STORE_RESERVE);
    if (error == 0)
        error = note_find(storage, NOTE_TOMBSTONES, key);
    if (error == ERR_NOT_FOUND)
        error = note_publish(storage, NOTE_TOMBSTONES, key, "");
    return error == ERR_EXISTS ? 0 : error;
}

/* Skips a checkpoint on which another remover without the store's lock works, and removes the holds
 * of dead ones. */
static int recover_one(struct storage *storage, const char *prefix)
{
    int error = remover_find(storage, prefix);
    if (error != ERR_NOT_FOUND)
        return error;
    return remover_is_name(prefix) ? remover_forget(storage, prefix) : store_clear(storage, prefix);
}

int store_recover_run(struct storage *storage, const char *parent)
{
    struct names names = {0};
    struct report_text text = {0};
    char key[STORAGE_KEY_MAX + 1];
    int error = note_key_in(key, parent, NOTE_TOMBSTONES);
    if (error == 0)
        error = storage_list(storage, key, visit_tombstone, &names);
    if (error != 0)
        report_keep(&text);
    for (size_t i = 0; i < names.count; i++) {
        int failed = note_key_in(key, parent, names.list[i]);
        if (failed == 0)
            failed = recover_one(storage, key);
        if (failed == 0)
            continue;
        error = failed; /* continue with the others */
        report_keep(&text);
    }
    names_free(&names);
    return error == 0 ? 0 : report_restore(&text, error);
}
