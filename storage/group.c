/* group.c - the removal of a directory whose objects belong together, and what forbids it; of that
 * notes.c has the files.
 *
 *   tombstone durable ──► pinned, in quarantine, leased? ──yes──► tombstone removed: nothing
 *                              │ no                                                 happened
 *                              ▼
 *          marker removed, durably: from here on the group does not exist for anybody
 *                              │
 *                              ▼
 *               the other objects, the directory ──► tombstone removed
 *
 * The other objects are those that are listed behind the marker: who leased the group until the
 * tombstone came may have left one more.
 *
 * Where nobody locks the store, as several ckptd share a far tier, the remover holds an object of
 * its own beside the tombstone from before that until the marker is gone (notes.c).
 *
 * The order is that of restic and Delta Lake: what makes data reachable goes before the data. A
 * crash before the marker is gone leaves a whole group and a tombstone; after it, rubbish that the
 * same call removes when it is made again.
 *
 * A group that never got its marker is cleared without a tombstone, as nobody reads it: when its
 * mark proves that it is unfinished work, and nobody leases it, who would be its writer. The mark
 * goes last. One that is pinned has had a marker and has lost it: it stays. So does any other,
 * whose marker may have been moved away by mistake, or not have come yet: it is set aside.
 *
 * A removal must work where nothing can be made, for it is what makes room. A tombstone has no
 * bytes, so it needs an inode and a place in its directory: both are kept by an empty file there,
 * the reserve. On a full disk that goes, and what the removal frees brings it back. */
#include "storage/notes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct members {
    const struct storage_group_kind *kind;
    struct names names; /* ours, without the marker */
    bool has_marker, has_mark, has_others;
};

static int visit_member(void *user, const struct storage_entry *entry)
{
    struct members *members = user;
    if (!entry->is_dir && strcmp(entry->name, members->kind->marker) == 0) {
        members->has_marker = true;
        return 0;
    }
    if (!entry->is_dir && members->kind->mark && strcmp(entry->name, members->kind->mark) == 0) {
        members->has_mark = true;
        return 0;
    }
    if (!entry->is_dir && members->kind->is_ours(entry->name))
        return names_add(&members->names, entry->name);
    members->has_others = true;
    return 0;
}

/* What is in it now; free members->names. */
static int list_members(struct members *members, struct storage *storage, const char *prefix)
{
    names_free(&members->names);
    *members = (struct members){.kind = members->kind};
    return storage_list(storage, prefix, visit_member, members);
}

static int remove_member(struct storage *storage, const char *prefix, const char *name)
{
    char key[STORAGE_KEY_MAX + 1];
    int error = group_key_in(key, prefix, name);
    if (error == 0)
        error = storage_remove(storage, key);
    return error == ERR_NOT_FOUND ? 0 : error;
}

/* Nobody can reach them: the marker is gone. */
static int remove_rest(struct storage *storage, const char *prefix, const struct members *members)
{
    char parent[STORAGE_KEY_MAX + 1];
    int error = 0;
    bool stays = members->has_others;
    for (size_t i = 0; i < members->names.count && error == 0; i++)
        error = remove_member(storage, prefix, members->names.list[i]);
    if (error == 0 && members->has_mark) { /* the last: without it shards would be set aside */
        error = storage_sync_names(storage, prefix);
        if (error == 0)
            error = remove_member(storage, prefix, members->kind->mark);
    }
    if (error == 0 && !stays) {
        error = storage_remove(storage, prefix);
        stays = error == ERR_EXISTS; /* names that are hidden from lists */
    }
    if (error != 0 && error != ERR_EXISTS && error != ERR_NOT_FOUND)
        return error;
    group_parent_of(parent, prefix);
    return storage_sync_names(storage, stays ? prefix : parent);
}

/* `is_told`: a person names it, so quarantine, which is evidence for a person, is no reason. */
static int refuse_held(struct storage *storage, const char *prefix, bool is_told)
{
    int error = 0;
    for (size_t i = 0; i < (is_told ? STORAGE_QUARANTINE : NOTE_KINDS) && error == 0; i++)
        error = note_refuse(storage, note_folders[i], prefix, ERR_DENIED);
    return error == 0 ? lease_refuse(storage, prefix) : error;
}

/* Does its mark prove that the group is unfinished work? */
static int look_for_proof(struct storage *storage, const struct members *members,
                          const char *prefix, bool *out_is_proven)
{
    char key[STORAGE_KEY_MAX + 1], text[STORAGE_MARK_BYTES_MAX] = "";
    uint64_t bytes;
    *out_is_proven = !members->kind->mark;
    if (!members->has_mark)
        return 0;
    int error = group_key_in(key, prefix, members->kind->mark);
    if (error == 0)
        error = storage_fetch(storage, key, text, sizeof(text) - 1, &bytes);
    *out_is_proven = error == 0 && members->kind->is_marked(prefix, text);
    return error == ERR_NOT_FOUND ? 0 : error;
}

/* A group without a marker, and what it holds is known: who writes one leases it before its first
 * object, or marks it, and a note was made on one that had its marker. Where a removal took that
 * away, these came too late. */
static int judge_rest(struct storage *storage, const struct members *members, const char *prefix,
                      enum storage_rest *out)
{
    int error = note_find(storage, NOTE_TOMBSTONES, prefix);
    *out = STORAGE_REST_CUT_SHORT;
    if (error != ERR_NOT_FOUND)
        return error;
    error = lease_refuse(storage, prefix);
    *out = STORAGE_REST_WRITTEN;
    if (error != 0)
        return error == ERR_DENIED ? 0 : error;
    bool is_empty = members->names.count == 0, is_proven = false;
    error = look_for_proof(storage, members, prefix, &is_proven);
    *out = is_proven ? STORAGE_REST_UNFINISHED : is_empty ? STORAGE_REST_EMPTY : STORAGE_REST_ASIDE;
    return error;
}

int storage_group_rest(struct storage *storage, const struct storage_group_kind *kind,
                       const char *prefix, enum storage_rest *out)
{
    struct members members = {.kind = kind};
    int error = list_members(&members, storage, prefix);
    if (error == 0)
        error = judge_rest(storage, &members, prefix, out);
    names_free(&members.names);
    return error;
}

static int refuse_rest(struct storage *storage, const struct members *members, const char *prefix)
{
    enum storage_rest rest = STORAGE_REST_ASIDE;
    int error = judge_rest(storage, members, prefix, &rest);
    if (error != 0 || rest == STORAGE_REST_CUT_SHORT)
        return error;
    error = refuse_held(storage, prefix, false);
    if (error == 0 && rest == STORAGE_REST_ASIDE)
        error = report_error(ERR_DENIED, "put its marker back, or remove it: ckpt-cli rm",
                             "%s has no %s, and no mark of unfinished work", prefix,
                             members->kind->marker);
    return error;
}

/* The reserve becomes the tombstone, or the tombstone the reserve. Whatever else fills the disk
 * gets no chance at its inode. */
static int swap_reserve(struct storage *storage, const char *prefix, bool is_back)
{
    char folder[STORAGE_KEY_MAX + 1], reserve[STORAGE_KEY_MAX + 1], tombstone[STORAGE_KEY_MAX + 1];
    ERR_TRY(group_folder_beside(folder, NOTE_TOMBSTONES, prefix));
    ERR_TRY(group_key_in(reserve, folder, STORAGE_RESERVE));
    ERR_TRY(note_key(tombstone, NOTE_TOMBSTONES, prefix));
    const char *from = is_back ? tombstone : reserve, *to = is_back ? reserve : tombstone;
    ERR_TRY(storage_rename(storage, from, to));
    int error = storage_sync_names(storage, folder);
    if (error != 0 && !is_back)
        storage_rename(storage, to, from);
    return error;
}

/* ERR_EXISTS: there is one, of a removal that was cut short. */
static int make_tombstone(struct storage *storage, const char *prefix, bool *out_is_spent)
{
    int error = note_publish(storage, NOTE_TOMBSTONES, prefix, "");
    if (error != ERR_SPACE)
        return error;
    error = swap_reserve(storage, prefix, false);
    *out_is_spent = error == 0;
    if (error != ERR_NOT_FOUND)
        return error;
    if (note_find(storage, NOTE_TOMBSTONES, prefix) == 0)
        return ERR_EXISTS;
    return report_error(ERR_SPACE, NULL, "no room for the tombstone of %s", prefix);
}

/* One that was the reserve becomes it again: the next removal may find no more room. */
static int drop_tombstone(struct storage *storage, const char *prefix, bool is_spent)
{
    return is_spent && swap_reserve(storage, prefix, true) == 0
               ? 0
               : note_remove(storage, NOTE_TOMBSTONES, prefix);
}

/* `error` forbids the removal whose tombstone was made. Where the tombstone stays, the next start
 * takes it away. */
static int give_way(struct storage *storage, const char *prefix, bool is_spent, int error)
{
    struct report_text text;
    if (error == 0)
        return 0;
    report_keep(&text);
    if (drop_tombstone(storage, prefix, is_spent) != 0)
        log_warn("storage", "the tombstone of %s stays: %s", prefix, report_line());
    return report_restore(&text, error);
}

/* Who leased the group until now may have left an object in it: once nobody can any more, the
 * members are listed anew. */
static int remove_marker(struct storage *storage, struct members *members, const char *prefix,
                         bool is_told, bool *out_is_spent)
{
    struct removing removing;
    int error = removing_begin(&removing, storage, prefix);
    if (error != 0)
        return error;
    error = make_tombstone(storage, prefix, out_is_spent);
    if (error == 0 || error == ERR_EXISTS) { /* of a removal that was cut short */
        error = refuse_held(storage, prefix, is_told);
        if (error == 0)
            error = removing_check(&removing, storage);
        error = give_way(storage, prefix, *out_is_spent, error);
    }
    if (error == 0)
        error = remove_member(storage, prefix, members->kind->marker);
    if (error == 0)
        error = storage_sync_names(storage, prefix);
    storage_release(storage, removing.hold);
    return error == 0 ? list_members(members, storage, prefix) : error;
}

/* `is_new`: whole groups go; else only what is left of those that lost their marker. */
static int remove_group(struct storage *storage, const struct storage_group_kind *kind,
                        const char *prefix, bool is_new)
{
    struct members members = {.kind = kind};
    bool is_spent = false;
    int error = list_members(&members, storage, prefix);
    bool goes = !members.has_marker || is_new;
    if (error == 0 && !members.has_marker)
        error = refuse_rest(storage, &members, prefix);
    if (error == 0 && members.has_marker && is_new)
        error = remove_marker(storage, &members, prefix, false, &is_spent);
    if (error == 0 && goes)
        error = remove_rest(storage, prefix, &members);
    names_free(&members.names);
    if (error == 0 && goes)
        error = storage_groups_forget(storage, prefix);
    if (error == 0)
        error = drop_tombstone(storage, prefix, is_spent);
    return error == ERR_NOT_FOUND ? 0 : error; /* another call has come to its end */
}

int storage_group_remove(struct storage *storage, const struct storage_group_kind *kind,
                         const char *prefix)
{
    return remove_group(storage, kind, prefix, true);
}

int storage_group_erase(struct storage *storage, const struct storage_group_kind *kind,
                        const char *prefix)
{
    struct members members = {.kind = kind};
    bool is_spent = false;
    int error = list_members(&members, storage, prefix);
    if (error == 0)
        error = remove_marker(storage, &members, prefix, true, &is_spent);
    if (error == 0)
        error = remove_rest(storage, prefix, &members);
    names_free(&members.names);
    if (error == 0)
        error = storage_groups_forget(storage, prefix);
    if (error == 0) {
        error = note_remove(storage, note_folders[STORAGE_QUARANTINE], prefix);
        error = error == ERR_NOT_FOUND ? 0 : error;
    }
    return error == 0 ? drop_tombstone(storage, prefix, is_spent) : error;
}

int storage_group_move(struct storage *storage, const char *prefix, const char *other, bool is_told)
{
    char from[STORAGE_KEY_MAX + 1], to[STORAGE_KEY_MAX + 1];
    bool is_spent = false;
    group_parent_of(from, prefix);
    group_parent_of(to, other);
    int error = make_tombstone(storage, prefix, &is_spent);
    if (error == 0 || error == ERR_EXISTS) { /* of a removal that was cut short */
        error = refuse_held(storage, prefix, is_told);
        if (error == 0)
            error = storage_rename(storage, prefix, other);
        error = give_way(storage, prefix, is_spent, error);
    }
    if (error == 0)
        error = storage_sync_names(storage, to);
    if (error == 0)
        error = storage_sync_names(storage, from);
    if (error == 0)
        error = storage_groups_forget(storage, prefix);
    if (error == 0 && is_told) {
        error = note_remove(storage, note_folders[STORAGE_QUARANTINE], prefix);
        error = error == ERR_NOT_FOUND ? 0 : error;
    }
    return error == 0 ? drop_tombstone(storage, prefix, is_spent) : error;
}

int storage_group_discard(struct storage *storage, const struct storage_group_kind *kind,
                          const char *prefix)
{
    struct members members = {.kind = kind};
    int error = list_members(&members, storage, prefix);
    if (error == 0 && members.has_marker) {
        error = remove_member(storage, prefix, kind->marker);
        if (error == 0)
            error = storage_sync_names(storage, prefix);
    }
    if (error == 0)
        error = remove_rest(storage, prefix, &members);
    names_free(&members.names);
    return error;
}

int storage_group_clear(struct storage *storage, const struct storage_group_kind *kind,
                        const char *prefix)
{
    return remove_group(storage, kind, prefix, false);
}

static int visit_tombstone(void *user, const struct storage_entry *entry)
{
    return entry->is_dir || strcmp(entry->name, STORAGE_RESERVE) == 0
               ? 0
               : names_add(user, entry->name);
}

int storage_groups_prepare(struct storage *storage, const char *parent)
{
    char key[STORAGE_KEY_MAX + 1];
    int error = group_key_in(key, parent, STORAGE_RESERVE);
    if (error == 0)
        error = note_find(storage, NOTE_TOMBSTONES, key);
    if (error == ERR_NOT_FOUND)
        error = note_publish(storage, NOTE_TOMBSTONES, key, "");
    return error == ERR_EXISTS ? 0 : error;
}

/* What a remover without the store's lock is at work on is left to it; what it held goes once it
 * has died. */
static int recover_one(struct storage *storage, const struct storage_group_kind *kind,
                       const char *prefix)
{
    int error = removing_find(storage, prefix);
    if (error != ERR_NOT_FOUND)
        return error;
    return removing_is_name(prefix) ? removing_forget(storage, prefix)
                                    : storage_group_clear(storage, kind, prefix);
}

int storage_groups_recover(struct storage *storage, const struct storage_group_kind *kind,
                           const char *parent)
{
    struct names names = {0};
    struct report_text text = {0};
    char key[STORAGE_KEY_MAX + 1];
    int error = group_key_in(key, parent, NOTE_TOMBSTONES);
    if (error == 0)
        error = storage_list(storage, key, visit_tombstone, &names);
    if (error != 0)
        report_keep(&text);
    for (size_t i = 0; i < names.count; i++) {
        int failed = group_key_in(key, parent, names.list[i]);
        if (failed == 0)
            failed = recover_one(storage, kind, key);
        if (failed == 0)
            continue;
        error = failed; /* one that stays holds up no other */
        report_keep(&text);
    }
    names_free(&names);
    return error == 0 ? 0 : report_restore(&text, error);
}
