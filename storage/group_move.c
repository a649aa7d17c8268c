/* group_move.c - removals that can be taken back: a group under another key, its trash.
 *
 * Where names can be renamed the whole directory moves. Where nothing can be, as in a bucket, the
 * marker alone does: it is published under the other key, which the tombstone tells, then removed
 * here. The shards stay where they are, and what looks for rubbish leaves them alone while the
 * trash has a marker that names them. */
#include "storage/group.h"

#include <stdlib.h>
#include <string.h>

#define MARKER_BYTES_MAX (1u << 30) /* of one that moves by itself */

static int fetch_marker(struct storage *storage, const struct storage_group_kind *kind,
                        const char *prefix, void **out, size_t *out_bytes)
{
    char key[STORAGE_KEY_MAX + 1];
    ERR_TRY(group_key_in(key, prefix, kind->marker));
    return storage_fetch_all(storage, key, MARKER_BYTES_MAX, out, out_bytes);
}

/* An answer that was lost, and an earlier try that had its effect, are told by the bytes. */
static int publish_marker(struct storage *storage, const struct storage_group_kind *kind,
                          const char *prefix, const void *text, size_t bytes, bool is_ours)
{
    char key[STORAGE_KEY_MAX + 1];
    struct report_text kept;
    void *found = NULL;
    size_t bytes_found = 0;
    ERR_TRY(group_key_in(key, prefix, kind->marker));
    int error = storage_publish(storage, key, text, bytes);
    if (error == 0 || (error == ERR_EXISTS && !is_ours))
        return error;
    report_keep(&kept);
    bool is_same = fetch_marker(storage, kind, prefix, &found, &bytes_found) == 0 &&
                   bytes_found == bytes && memcmp(found, text, bytes) == 0;
    free(found);
    return is_same ? 0 : report_restore(&kept, error);
}

/* The marker alone: behind its copy, which names the shards from here on. */
static int part_marker(struct storage *storage, const struct storage_group_kind *kind,
                       const char *prefix, const char *other)
{
    void *text = NULL;
    size_t bytes = 0;
    int error = fetch_marker(storage, kind, prefix, &text, &bytes);
    if (error == 0 && kind->mark) /* beside no marker it would prove that the shards may go */
        error = group_remove_member(storage, prefix, kind->mark);
    if (error == 0)
        error = publish_marker(storage, kind, other, text, bytes, true);
    if (error == 0)
        error = group_remove_member(storage, prefix, kind->marker);
    free(text);
    return error;
}

/* Behind a move: the new name first. */
static int sync_parents(struct storage *storage, const char *from, const char *to)
{
    char parent[STORAGE_KEY_MAX + 1];
    group_parent_of(parent, to);
    ERR_TRY(storage_sync_names(storage, parent));
    group_parent_of(parent, from);
    return storage_sync_names(storage, parent);
}

int storage_group_move(struct storage *storage, const struct storage_group_kind *kind,
                       const char *prefix, const char *other, bool is_told)
{
    struct removing removing = {.to = storage_renames(storage) ? NULL : other};
    int error = group_begin_removal(&removing, storage, prefix, is_told);
    if (error == 0) {
        error = storage_renames(storage) ? storage_rename(storage, prefix, other)
                                         : part_marker(storage, kind, prefix, other);
        error = group_give_way(&removing, storage, prefix, error);
    }
    storage_release(storage, removing.hold);
    if (error == 0)
        error = sync_parents(storage, prefix, other);
    if (error == 0)
        error = storage_groups_forget(storage, prefix);
    if (error == 0 && is_told) {
        error = note_remove(storage, note_folders[STORAGE_QUARANTINE], prefix);
        error = error == ERR_NOT_FOUND ? 0 : error;
    }
    return error == 0 ? group_drop_tombstone(&removing, storage, prefix) : error;
}

/* Its lease may have been lost behind the look at its shards, and the trash been emptied since.
 * Whoever removes shards that a marker in the trash names removes that marker first, and looks for
 * the group's own one then: of the two, one sees the other. */
static int withdraw_if_emptied(struct storage *storage, const struct storage_group_kind *kind,
                               const char *from, const char *prefix)
{
    char key[STORAGE_KEY_MAX + 1];
    uint64_t bytes;
    ERR_TRY(group_key_in(key, from, kind->marker));
    int error = storage_fetch(storage, key, NULL, 0, &bytes);
    if (error != ERR_NOT_FOUND)
        return error;
    ERR_TRY(group_remove_member(storage, prefix, kind->marker));
    return report_error(ERR_NOT_FOUND, NULL, "%s was emptied meanwhile", from);
}

/* Under a lease, or the store's lock, so that nobody empties the trash of it meanwhile. */
static int bring_back(struct storage *storage, const struct storage_group_kind *kind,
                      const char *from, const char *prefix)
{
    void *text = NULL;
    size_t bytes = 0;
    if (storage_renames(storage))
        return storage_rename(storage, from, prefix);
    int error = fetch_marker(storage, kind, from, &text, &bytes);
    if (error == 0 && kind->check) /* `rm --now` elsewhere may have come between */
        error = kind->check(storage, prefix, text, bytes);
    if (error == 0)
        error = publish_marker(storage, kind, prefix, text, bytes, false);
    if (error == 0)
        error = withdraw_if_emptied(storage, kind, from, prefix);
    if (error == 0)
        error = group_remove_member(storage, from, kind->marker);
    free(text);
    return error;
}

int storage_group_move_back(struct storage *storage, const struct storage_group_kind *kind,
                            const char *from, const char *prefix)
{
    struct removing removing = {.hold = NULL};
    struct storage_hold *lease = NULL;
    int error = storage_is_locked(storage)
                    ? removing_alone(&removing, storage, prefix)
                    : storage_group_lease(storage, &lease, prefix, "it is undeleted\n");
    if (error == 0)
        error = bring_back(storage, kind, from, prefix);
    if (error == 0)
        error = sync_parents(storage, from, prefix);
    storage_release(storage, lease);
    return error;
}

/* The marker at `other` goes, and then what it names, unless the group has a marker again, or
 * another one in the trash. */
static int discard_parted(struct storage *storage, const struct storage_group_kind *kind,
                          const char *prefix, const char *other)
{
    struct members members = {.kind = kind};
    char marker[STORAGE_KEY_MAX + 1];
    uint64_t bytes;
    ERR_TRY(group_key_in(marker, prefix, kind->marker));
    ERR_TRY(storage_group_discard(storage, kind, other));
    int named = storage_fetch(storage, marker, NULL, 0, &bytes); /* a list may lag behind */
    if (named == ERR_NOT_FOUND)
        named = group_is_parted(storage, kind, prefix, other);
    if (named != ERR_NOT_FOUND)
        return named;
    int error = group_list(&members, storage, prefix);
    if (error == 0)
        error = group_remove_rest(storage, prefix, &members);
    names_free(&members.names);
    return error;
}

int storage_group_empty(struct storage *storage, const struct storage_group_kind *kind,
                        const char *prefix, const char *other)
{
    struct removing removing = {.hold = NULL};
    if (storage_renames(storage) && storage_is_locked(storage)) /* nobody else takes it back */
        return storage_group_discard(storage, kind, other);
    int error = group_begin_removal(&removing, storage, prefix, true);
    bool is_begun = error == 0;
    if (error == 0)
        error = storage_renames(storage) ? storage_group_discard(storage, kind, other)
                                         : discard_parted(storage, kind, prefix, other);
    storage_release(storage, removing.hold);
    if (error == 0)
        error = storage_groups_forget(storage, prefix);
    return error == 0 && is_begun ? group_drop_tombstone(&removing, storage, prefix) : error;
}

int storage_group_discard(struct storage *storage, const struct storage_group_kind *kind,
                          const char *prefix)
{
    struct members members = {.kind = kind};
    int error = group_list(&members, storage, prefix);
    if (error == 0 && members.has_marker) {
        error = group_remove_member(storage, prefix, kind->marker);
        if (error == 0)
            error = storage_sync_names(storage, prefix);
    }
    if (error == 0)
        error = group_remove_rest(storage, prefix, &members);
    names_free(&members.names);
    return error;
}
