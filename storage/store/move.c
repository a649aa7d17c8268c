/* move.c - gives a checkpoint another key, and its original key back: for removals that can be
 * undone.
 *
 * If the back-end can rename, the whole directory moves. A bucket cannot: there only the manifest
 * moves. It is published under the other key, which the tombstone names, and then removed from its
 * own. The shards stay in place; gc keeps them while a manifest in the trash names them. */
#include "storage/store/private.h"

#include <stdlib.h>
#include <string.h>

static int fetch_manifest(struct storage *storage, const char *prefix, void **out,
                          size_t *out_bytes)
{
    char key[STORAGE_KEY_MAX + 1];
    ERR_TRY(note_key_in(key, prefix, MANIFEST_NAME));
    return storage_fetch_all(storage, key, MANIFEST_BYTES_MAX, out, out_bytes);
}

/* Equal bytes under the key mean that the answer was lost, or that an earlier try has succeeded. */
static int publish_manifest(struct storage *storage, const char *prefix, const void *text,
                            size_t bytes, bool is_ours)
{
    char key[STORAGE_KEY_MAX + 1];
    struct report_text kept;
    void *found = NULL;
    size_t bytes_found = 0;
    ERR_TRY(note_key_in(key, prefix, MANIFEST_NAME));
    int error = storage_publish(storage, key, text, bytes);
    if (error == 0 || (error == ERR_EXISTS && !is_ours))
        return error;
    report_keep(&kept);
    bool is_same = fetch_manifest(storage, prefix, &found, &bytes_found) == 0 &&
                   bytes_found == bytes && memcmp(found, text, bytes) == 0;
    free(found);
    return is_same ? 0 : report_restore(&kept, error);
}

/* Removes the manifest after its copy exists, which from then on names the shards. */
static int remove_moved_manifest(struct storage *storage, const char *prefix, const char *other)
{
    void *text = NULL;
    size_t bytes = 0;
    int error = fetch_manifest(storage, prefix, &text, &bytes);
    if (error == 0) /* without a manifest the mark proves that the shards may be removed */
        error = removal_remove_member(storage, prefix, MARK_NAME);
    if (error == 0)
        error = publish_manifest(storage, other, text, bytes, true);
    if (error == 0)
        error = removal_remove_member(storage, prefix, MANIFEST_NAME);
    free(text);
    return error;
}

/* Syncs after a move, the new name first. */
static int sync_parents(struct storage *storage, const char *from, const char *to)
{
    char parent[STORAGE_KEY_MAX + 1];
    note_parent_of(parent, to);
    ERR_TRY(storage_sync_names(storage, parent));
    note_parent_of(parent, from);
    return storage_sync_names(storage, parent);
}

int store_move(struct storage *storage, const char *prefix, const char *other, bool by_operator)
{
    struct removing removing = {.to = storage_renames(storage) ? NULL : other};
    int error = removal_begin(&removing, storage, prefix, by_operator);
    if (error == 0) {
        error = storage_renames(storage) ? storage_rename(storage, prefix, other)
                                         : remove_moved_manifest(storage, prefix, other);
        error = removal_give_way(&removing, storage, prefix, error);
    }
    storage_release(storage, removing.hold);
    if (error == 0)
        error = sync_parents(storage, prefix, other);
    if (error == 0)
        error = store_forget_leases(storage, prefix);
    if (error == 0 && by_operator) {
        error = note_remove(storage, note_folders[STORE_QUARANTINE], prefix);
        error = error == ERR_NOT_FOUND ? 0 : error;
    }
    return error == 0 ? removal_drop_tombstone(&removing, storage, prefix) : error;
}

/* The lease may have been lost after the shards were checked, and the trash emptied since. A
 * process that empties the trash removes the manifest there first, then checks for the checkpoint's
 * own manifest. So one of the two processes sees the other. */
static int withdraw_if_emptied(struct storage *storage, const char *from, const char *prefix)
{
    char key[STORAGE_KEY_MAX + 1];
    uint64_t bytes;
    ERR_TRY(note_key_in(key, from, MANIFEST_NAME));
    int error = storage_fetch(storage, key, NULL, 0, &bytes);
    if (error != ERR_NOT_FOUND)
        return error;
    ERR_TRY(removal_remove_member(storage, prefix, MANIFEST_NAME));
    return report_error(ERR_NOT_FOUND, NULL, "%s was emptied in the meantime", from);
}

/* Call it under a lease, or the store's lock, which prevent that the trash is emptied meanwhile. */
static int restore_checkpoint(struct storage *storage, const char *from, const char *prefix)
{
    void *text = NULL;
    size_t bytes = 0;
    if (storage_renames(storage))
        return storage_rename(storage, from, prefix);
    int error = fetch_manifest(storage, from, &text, &bytes);
    if (error == 0) /* another process may have run `rm --now` meanwhile */
        error = store_check_shards(storage, prefix, text, bytes);
    if (error == 0)
        error = publish_manifest(storage, prefix, text, bytes, false);
    if (error == 0)
        error = withdraw_if_emptied(storage, from, prefix);
    if (error == 0)
        error = removal_remove_member(storage, from, MANIFEST_NAME);
    free(text);
    return error;
}

int removal_move_back(struct storage *storage, const char *from, const char *prefix)
{
    struct removing removing = {.hold = NULL};
    struct storage_hold *lease = NULL;
    int error = storage_is_locked(storage)
                    ? remover_alone(&removing, storage, prefix)
                    : store_lease(storage, &lease, prefix, "it is undeleted\n");
    if (error == 0)
        error = restore_checkpoint(storage, from, prefix);
    if (error == 0)
        error = sync_parents(storage, from, prefix);
    storage_release(storage, lease);
    return error;
}

/* Removes the manifest at `other`, and then the objects that it names, unless another manifest
 * names them: the checkpoint's own, or one in the trash. */
static int discard_parted(struct storage *storage, const char *prefix, const char *other)
{
    struct members members = {0};
    char manifest[STORAGE_KEY_MAX + 1];
    uint64_t bytes;
    ERR_TRY(note_key_in(manifest, prefix, MANIFEST_NAME));
    ERR_TRY(store_discard(storage, other));
    int named = storage_fetch(storage, manifest, NULL, 0, &bytes); /* a list may be stale */
    if (named == ERR_NOT_FOUND)
        named = removal_is_parted(storage, prefix, other);
    if (named != ERR_NOT_FOUND)
        return named;
    int error = removal_list(&members, storage, prefix);
    if (error == 0)
        error = removal_remove_rest(storage, prefix, &members);
    names_free(&members.names);
    return error;
}

int removal_empty(struct storage *storage, const char *prefix, const char *other)
{
    struct removing removing = {.hold = NULL};
    if (storage_renames(storage) && storage_is_locked(storage)) /* no other process restores it */
        return store_discard(storage, other);
    int error = removal_begin(&removing, storage, prefix, true);
    bool is_begun = error == 0;
    if (error == 0)
        error = storage_renames(storage) ? store_discard(storage, other)
                                         : discard_parted(storage, prefix, other);
    storage_release(storage, removing.hold);
    if (error == 0)
        error = store_forget_leases(storage, prefix);
    return error == 0 && is_begun ? removal_drop_tombstone(&removing, storage, prefix) : error;
}

int store_discard(struct storage *storage, const char *prefix)
{
    struct members members = {0};
    int error = removal_list(&members, storage, prefix);
    if (error == 0 && members.has_manifest) {
        error = removal_remove_member(storage, prefix, MANIFEST_NAME);
        if (error == 0)
            error = storage_sync_names(storage, prefix);
    }
    if (error == 0)
        error = removal_remove_rest(storage, prefix, &members);
    names_free(&members.names);
    return error;
}
