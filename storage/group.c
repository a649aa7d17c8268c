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
 * its own beside the tombstone from before that until the marker is gone (notes.c). One at a time
 * has a group: whatever it does, remove, put into the trash or empty that, it gives way to others.
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
 * A removal that can be taken back: group_move.c.
 *
 * A removal must work where nothing can be made, for it is what makes room. A tombstone has no
 * bytes, so it needs an inode and a place in its directory: both are kept by an empty file there,
 * the reserve. On a full disk that goes, and what the removal frees brings it back. */
#include "storage/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IS_FOUND 1 /* no error code */

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

int group_list(struct members *members, struct storage *storage, const char *prefix)
{
    names_free(&members->names);
    *members = (struct members){.kind = members->kind};
    return storage_list(storage, prefix, visit_member, members);
}

int group_remove_member(struct storage *storage, const char *prefix, const char *name)
{
    char key[STORAGE_KEY_MAX + 1];
    int error = group_key_in(key, prefix, name);
    if (error == 0)
        error = storage_remove(storage, key);
    return error == ERR_NOT_FOUND ? 0 : error;
}

/* Nobody can reach them: the marker is gone. */
int group_remove_rest(struct storage *storage, const char *prefix, const struct members *members)
{
    char parent[STORAGE_KEY_MAX + 1];
    int error = 0;
    bool stays = members->has_others;
    for (size_t i = 0; i < members->names.count; i++)
        ERR_TRY(group_remove_member(storage, prefix, members->names.list[i]));
    if (members->has_mark) { /* goes last: shards without it are set aside, not removed */
        error = storage_sync_names(storage, prefix);
        if (error == 0)
            error = group_remove_member(storage, prefix, members->kind->mark);
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

/* Looks for a group's marker in the trash beside it. */
struct parted_search {
    struct storage *storage;
    const struct storage_group_kind *kind;
    const char *name;   /* of the group */
    const char *folder; /* the trash */
    const char *besides;
    char *found;
};

static int visit_parted(void *user, const struct storage_entry *entry)
{
    const struct parted_search *search = user;
    char *key = search->found, marker[STORAGE_KEY_MAX + 1];
    size_t length = strlen(search->name);
    uint64_t bytes;
    if (!entry->is_dir || strncmp(entry->name, search->name, length) != 0 ||
        entry->name[length] != '.')
        return 0;
    ERR_TRY(group_key_in(key, search->folder, entry->name));
    if (strcmp(key, search->besides) == 0)
        return 0;
    ERR_TRY(group_key_in(marker, key, search->kind->marker));
    int error = storage_fetch(search->storage, marker, NULL, 0, &bytes);
    return error == 0 ? IS_FOUND : error == ERR_NOT_FOUND ? 0 : error;
}

/* 0: its marker lies in the trash, at *out, which is not `besides`, and names the objects of the
 * group. ERR_NOT_FOUND: it does not; a group that was renamed into the trash has its objects there.
 */
static int group_find_parted(char out[STORAGE_KEY_MAX + 1], struct storage *storage,
                             const struct storage_group_kind *kind, const char *prefix,
                             const char *besides)
{
    char parent[STORAGE_KEY_MAX + 1], folder[STORAGE_KEY_MAX + 1];
    struct parted_search search = {storage, kind, prefix, folder, besides, out};
    if (storage_renames(storage))
        return ERR_NOT_FOUND;
    group_parent_of(parent, prefix);
    search.name += parent[0] ? strlen(parent) + 1 : 0;
    ERR_TRY(group_key_in(folder, parent, STORAGE_TRASH));
    int error = storage_list(storage, folder, visit_parted, &search);
    return error == IS_FOUND ? 0 : error == 0 ? ERR_NOT_FOUND : error;
}

int group_is_parted(struct storage *storage, const struct storage_group_kind *kind,
                    const char *prefix, const char *besides)
{
    char key[STORAGE_KEY_MAX + 1];
    return group_find_parted(key, storage, kind, prefix, besides);
}

/* Likewise where its tombstone says that the marker went: no list is asked, which may lag behind.
 */
static int find_told(struct storage *storage, const struct storage_group_kind *kind,
                     const char *prefix)
{
    char key[STORAGE_KEY_MAX + 1], told[STORAGE_KEY_MAX + 1] = "", marker[STORAGE_KEY_MAX + 1];
    uint64_t bytes;
    if (storage_renames(storage))
        return ERR_NOT_FOUND;
    ERR_TRY(note_key(key, NOTE_TOMBSTONES, prefix));
    ERR_TRY(storage_fetch(storage, key, told, sizeof(told) - 1, &bytes));
    if (told[0] == '\0')
        return ERR_NOT_FOUND;
    ERR_TRY(group_key_in(marker, told, kind->marker));
    return storage_fetch(storage, marker, NULL, 0, &bytes);
}

/* A group without a marker, and what it holds is known: who writes one leases it before its first
 * object, or marks it, and a note was made on one that had its marker. Where a removal took that
 * away, these came too late. */
static int judge_rest(struct storage *storage, const struct members *members, const char *prefix,
                      enum storage_rest *out)
{
    int error = group_is_parted(storage, members->kind, prefix, "");
    if (error == ERR_NOT_FOUND)
        error = find_told(storage, members->kind, prefix);
    *out = STORAGE_REST_TRASHED;
    if (error != ERR_NOT_FOUND)
        return error;
    error = note_find(storage, NOTE_TOMBSTONES, prefix);
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
    int error = group_list(&members, storage, prefix);
    if (error == 0)
        error = judge_rest(storage, &members, prefix, out);
    names_free(&members.names);
    return error;
}

static int refuse_rest(struct storage *storage, const struct members *members, const char *prefix,
                       enum storage_rest *out)
{
    int error = judge_rest(storage, members, prefix, out);
    if (error != 0 || *out == STORAGE_REST_CUT_SHORT || *out == STORAGE_REST_TRASHED)
        return error;
    error = refuse_held(storage, prefix, false);
    if (error == 0 && *out == STORAGE_REST_ASIDE)
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

/* One that is there is of a removal that was cut short. */
static int make_tombstone(struct removing *removing, struct storage *storage, const char *prefix)
{
    const char *to = removing->to ? removing->to : "";
    int error = note_publish(storage, NOTE_TOMBSTONES, prefix, to);
    removing->is_again = error == ERR_EXISTS;
    if (removing->is_again && to[0]) { /* it says where an earlier try has gone */
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

/* One that was the reserve becomes it again: the next removal may find no more room. */
int group_drop_tombstone(const struct removing *removing, struct storage *storage,
                         const char *prefix)
{
    return removing->is_spent && swap_reserve(storage, prefix, true) == 0
               ? 0
               : note_remove(storage, NOTE_TOMBSTONES, prefix);
}

/* `error` forbids the removal whose tombstone was made. Where the tombstone stays, the next start
 * takes it away. */
int group_give_way(const struct removing *removing, struct storage *storage, const char *prefix,
                   int error)
{
    struct report_text text;
    if (error == 0)
        return 0;
    report_keep(&text);
    if (group_drop_tombstone(removing, storage, prefix) != 0)
        log_warn("storage", "the tombstone of %s stays: %s", prefix, report_line());
    return report_restore(&text, error);
}

/* What every removal begins with. Where several processes remove, one at a time has a group: who
 * finds another one gives way before it has made anything. Release removing->hold behind the
 * marker, also after an error. */
int group_begin_removal(struct removing *removing, struct storage *storage, const char *prefix,
                        bool is_told)
{
    ERR_TRY(removing_begin(removing, storage, prefix));
    ERR_TRY(removing_alone(removing, storage, prefix));
    ERR_TRY(make_tombstone(removing, storage, prefix));
    int error = refuse_held(storage, prefix, is_told);
    if (error == 0)
        error = removing_check(removing, storage);
    return group_give_way(removing, storage, prefix, error);
}

/* The group had its marker when it was listed. ERR_NOT_FOUND: another process has ended a removal
 * of it since; what is there is trash, or nothing. One that was cut short is ended. */
static int look_again(const struct removing *removing, struct storage *storage,
                      const struct storage_group_kind *kind, const char *prefix)
{
    char marker[STORAGE_KEY_MAX + 1];
    uint64_t bytes;
    ERR_TRY(group_key_in(marker, prefix, kind->marker));
    int error = storage_fetch(storage, marker, NULL, 0, &bytes);
    if (error != ERR_NOT_FOUND || !removing->is_again)
        return error;
    error = find_told(storage, kind, prefix);
    return error == ERR_NOT_FOUND ? 0 : error == 0 ? ERR_NOT_FOUND : error;
}

/* Markers in the trash that name the same objects go before these. */
static int discard_trashed(struct storage *storage, const struct storage_group_kind *kind,
                           const char *prefix)
{
    char key[STORAGE_KEY_MAX + 1];
    int error;
    while ((error = group_find_parted(key, storage, kind, prefix, "")) == 0)
        ERR_TRY(storage_group_discard(storage, kind, key));
    return error == ERR_NOT_FOUND ? 0 : error;
}

/* Who leased the group until now may have left an object in it: once nobody can any more, the
 * members are listed anew. The trash's markers go before the group's own one: who brings that back
 * from there sees it (group_move.c). */
static int remove_marker(struct removing *removing, struct storage *storage,
                         struct members *members, const char *prefix, bool is_told)
{
    int error = group_begin_removal(removing, storage, prefix, is_told);
    if (error == 0 && !is_told && !storage_renames(storage))
        error = group_give_way(removing, storage, prefix,
                               look_again(removing, storage, members->kind, prefix));
    if (error == 0)
        error = discard_trashed(storage, members->kind, prefix);
    if (error == 0)
        error = group_remove_member(storage, prefix, members->kind->marker);
    if (error == 0)
        error = storage_sync_names(storage, prefix);
    storage_release(storage, removing->hold);
    return error == 0 ? group_list(members, storage, prefix) : error;
}

/* `is_new`: whole groups go; else only what is left of those that lost their marker. */
static int remove_group(struct storage *storage, const struct storage_group_kind *kind,
                        const char *prefix, bool is_new)
{
    struct members members = {.kind = kind};
    enum storage_rest rest = STORAGE_REST_ASIDE;
    struct removing removing = {.hold = NULL};
    int error = group_list(&members, storage, prefix);
    bool has_marker = members.has_marker;
    if (error == 0 && !has_marker)
        error = refuse_rest(storage, &members, prefix, &rest);
    bool goes = has_marker ? is_new : rest != STORAGE_REST_TRASHED;
    if (error == 0 && members.has_marker && is_new)
        error = remove_marker(&removing, storage, &members, prefix, false);
    if (error == 0 && goes)
        error = group_remove_rest(storage, prefix, &members);
    names_free(&members.names);
    if (error == 0 && goes)
        error = storage_groups_forget(storage, prefix);
    if (error == 0)
        error = group_drop_tombstone(&removing, storage, prefix);
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
    struct removing removing = {.hold = NULL};
    int error = remove_marker(&removing, storage, &members, prefix, true);
    if (error == 0)
        error = group_remove_rest(storage, prefix, &members);
    names_free(&members.names);
    if (error == 0)
        error = storage_groups_forget(storage, prefix);
    if (error == 0) {
        error = note_remove(storage, note_folders[STORAGE_QUARANTINE], prefix);
        error = error == ERR_NOT_FOUND ? 0 : error;
    }
    return error == 0 ? group_drop_tombstone(&removing, storage, prefix) : error;
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
