/* group.c - the removal of a directory whose objects belong together, and what forbids it.
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
 * the reserve. On a full disk that goes, and what the removal frees brings it back.
 *
 * Notes are durable and stay until somebody takes them away. A lease is a file
 * "leases/<group>.<nonce>" that its holder keeps locked, so it ends with its holder however that
 * ends; a file that nobody holds is rubbish, which whoever removes the group removes too. Whoever
 * holds back writes first and looks for a tombstone then; whoever removes, the other way round: of
 * two at the same time one sees the other. */
#include "storage/engine.h"

#include "proto/array.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define NONCE_DIGITS 16
#define LEASE_TEXT_BYTES 64 /* of a lease that are looked at */

static const char tombstones[] = "tombstones", leases[] = "leases";
static const char *const folders[] = {[STORAGE_PIN] = "pins", [STORAGE_QUARANTINE] = "quarantine"};
#define NUM_NOTES (sizeof(folders) / sizeof(folders[0]))
static const char *const states[NUM_NOTES] = {
    [STORAGE_PIN] = "pinned", [STORAGE_QUARANTINE] = "in quarantine"};

/* Names of a directory's objects. */
struct names {
    char **list;
    uint32_t count, room;
};

static int add_name(struct names *names, const char *name)
{
    ERR_TRY(array_reserve(&names->list, &names->room, names->count, sizeof(char *)));
    names->list[names->count] = strdup(name);
    if (names->list[names->count] == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a name");
    names->count++;
    return 0;
}

static void free_names(struct names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->list[i]);
    free(names->list);
}

/* ---- keys ---- */

/* Where the name begins in the key of a group. */
static size_t name_in(const char *prefix)
{
    const char *slash = strrchr(prefix, '/');
    return slash != NULL ? (size_t)(slash + 1 - prefix) : 0;
}

/* The directory that a group, or a note on one, lies in; "" for the root. */
static void parent_of(char out[STORAGE_KEY_MAX + 1], const char *key)
{
    size_t length = name_in(key);
    snprintf(out, STORAGE_KEY_MAX + 1, "%.*s", length > 0 ? (int)length - 1 : 0, key);
}

static int key_in(char out[STORAGE_KEY_MAX + 1], const char *folder, const char *name)
{
    int length = snprintf(out, STORAGE_KEY_MAX + 1, "%s%s%s", folder, folder[0] ? "/" : "", name);
    return length <= STORAGE_KEY_MAX
               ? 0
               : report_error(ERR_INVALID, NULL, "a key in %s is longer than %d bytes", folder,
                              STORAGE_KEY_MAX);
}

/* The directory of notes on groups beside `prefix`. */
static int folder_beside(char out[STORAGE_KEY_MAX + 1], const char *kind, const char *prefix)
{
    char parent[STORAGE_KEY_MAX + 1];
    parent_of(parent, prefix);
    return key_in(out, parent, kind);
}

static int note_key(char out[STORAGE_KEY_MAX + 1], const char *kind, const char *prefix)
{
    char folder[STORAGE_KEY_MAX + 1];
    int error = folder_beside(folder, kind, prefix);
    return error == 0 ? key_in(out, folder, prefix + name_in(prefix)) : error;
}

/* Removes a note or a tombstone, durably. */
static int remove_note(struct storage *storage, const char *kind, const char *prefix)
{
    char key[STORAGE_KEY_MAX + 1], folder[STORAGE_KEY_MAX + 1];
    int error = note_key(key, kind, prefix);
    if (error == 0)
        error = storage_remove(storage, key);
    parent_of(folder, key);
    return error == 0 ? storage_sync_names(storage, folder) : error;
}

/* ERR_NOT_FOUND: there is none. */
static int find_note(struct storage *storage, const char *kind, const char *prefix)
{
    char key[STORAGE_KEY_MAX + 1];
    uint64_t bytes;
    int error = note_key(key, kind, prefix);
    return error == 0 ? storage_fetch(storage, key, NULL, 0, &bytes) : error;
}

static int publish_note(struct storage *storage, const char *kind, const char *prefix,
                        const char *text)
{
    char key[STORAGE_KEY_MAX + 1];
    int error = note_key(key, kind, prefix);
    return error == 0 ? storage_publish(storage, key, text, strlen(text)) : error;
}

/* After a note was published: `error` forbids it. Then it is taken back. Where that fails, a note
 * too many keeps what could go: harmless. */
static int give_way(struct storage *storage, const char *kind, const char *prefix, int error)
{
    char line[512];
    if (error == 0)
        return 0;
    snprintf(line, sizeof(line), "%s", report_line());
    if (remove_note(storage, kind, prefix) != 0)
        log_warn("storage", "%s stays in %s: %s", prefix, kind, report_line());
    return report_error(error, NULL, "%s", line);
}

/* 0 while there is no such note; `denial` when there is. */
static int refuse_note(struct storage *storage, const char *kind, const char *prefix, int denial)
{
    int error = find_note(storage, kind, prefix);
    if (error == 0)
        return report_error(denial, NULL, "%s is in %s", prefix, kind);
    return error == ERR_NOT_FOUND ? 0 : error;
}

/* ---- leases ---- */

struct leases {
    struct storage *storage;
    const char *folder;
    const char *left; /* only those that nobody holds, whose text begins so; NULL: that are held */
    int (*visit)(void *user, const struct storage_entry *entry);
    void *user;
};

/* Cuts ".<nonce>" off; false: not the name of a lease. */
static bool cut_nonce(char *name)
{
    char *dot = strrchr(name, '.');
    if (dot == NULL || strspn(dot + 1, "0123456789abcdef") != NONCE_DIGITS ||
        dot[1 + NONCE_DIGITS] != '\0')
        return false;
    *dot = '\0';
    return true;
}

/* Does the text of the lease begin as is asked? What cannot be read does not. */
static bool is_by(const struct leases *list, const char *key)
{
    char text[LEASE_TEXT_BYTES] = "";
    uint64_t bytes;
    return storage_fetch(list->storage, key, text, sizeof(text) - 1, &bytes) == 0 &&
           strncmp(text, list->left, strlen(list->left)) == 0;
}

static int visit_lease(void *user, const struct storage_entry *entry)
{
    const struct leases *list = user;
    char key[STORAGE_KEY_MAX + 1], name[STORAGE_KEY_MAX + 1];
    struct storage_entry group = {.name = name};
    snprintf(name, sizeof(name), "%s", entry->name);
    if (entry->is_dir || !cut_nonce(name))
        return 0;
    int error = key_in(key, list->folder, entry->name);
    if (error == 0)
        error = storage_find_holder(list->storage, key);
    if (error != 0 && error != ERR_NOT_FOUND)
        return error;
    bool is_asked = list->left == NULL ? error == 0 : error != 0 && is_by(list, key);
    return is_asked ? list->visit(list->user, &group) : 0;
}

int storage_groups_leased(struct storage *storage, const char *parent,
                          int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    char folder[STORAGE_KEY_MAX + 1];
    struct leases list = {storage, folder, NULL, visit, user};
    int error = key_in(folder, parent, leases);
    return error == 0 ? storage_list(storage, folder, visit_lease, &list) : error;
}

int storage_groups_left(struct storage *storage, const char *parent, const char *text,
                        int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    char folder[STORAGE_KEY_MAX + 1];
    struct leases list = {storage, folder, text, visit, user};
    int error = key_in(folder, parent, leases);
    return error == 0 ? storage_list(storage, folder, visit_lease, &list) : error;
}

static int deny_lease(void *user, const struct storage_entry *entry)
{
    const char *prefix = user;
    return strcmp(entry->name, prefix + name_in(prefix)) != 0
               ? 0
               : report_error(ERR_DENIED, NULL, "%s is in %s: somebody reads it", prefix, leases);
}

static int refuse_lease(struct storage *storage, const char *prefix)
{
    char parent[STORAGE_KEY_MAX + 1];
    parent_of(parent, prefix);
    return storage_groups_leased(storage, parent, deny_lease, (void *)(uintptr_t)prefix);
}

static int collect_lease(void *user, const struct storage_entry *entry)
{
    return entry->is_dir ? 0 : add_name(user, entry->name);
}

/* One that may not be removed is no harm. */
int storage_groups_forget(struct storage *storage, const char *prefix)
{
    struct names names = {0};
    char folder[STORAGE_KEY_MAX + 1], key[STORAGE_KEY_MAX + 1];
    int error = folder_beside(folder, leases, prefix);
    if (error == 0)
        error = storage_list(storage, folder, collect_lease, &names);
    for (size_t i = 0; i < names.count && error == 0; i++) {
        error = key_in(key, folder, names.list[i]);
        if (error == 0 && cut_nonce(names.list[i]) &&
            strcmp(names.list[i], prefix + name_in(prefix)) == 0 &&
            storage_find_holder(storage, key) == ERR_NOT_FOUND)
            storage_remove(storage, key);
    }
    free_names(&names);
    return error;
}

/* A tombstone is of a removal under way only while somebody has the store's lock: who takes that
 * first ends or takes back what an earlier one left. */
static int refuse_removal(struct storage *storage, const char *prefix)
{
    int error = find_note(storage, tombstones, prefix);
    if (error == 0)
        error = storage_find_holder(storage, NULL);
    if (error == 0)
        return report_error(ERR_NOT_FOUND, "take another one", "%s is being removed", prefix);
    return error == ERR_NOT_FOUND ? 0 : error;
}

int storage_group_lease(struct storage *storage, struct storage_hold **out, const char *prefix,
                        const char *text)
{
    char key[STORAGE_KEY_MAX + 1], name[STORAGE_KEY_MAX + 1];
    uint64_t nonce;
    *out = NULL;
    if (getrandom(&nonce, sizeof(nonce), 0) != sizeof(nonce))
        return report_error(ERR_IO, NULL, "could not get a random number");
    int error = note_key(key, leases, prefix);
    if (error == 0)
        error = snprintf(name, sizeof(name), "%s.%0*llx", key, NONCE_DIGITS,
                         (unsigned long long)nonce) > STORAGE_KEY_MAX
                    ? report_error(ERR_INVALID, NULL, "the key of a lease is too long")
                    : storage_hold(storage, out, name, text, strlen(text));
    if (error == 0)
        error = refuse_removal(storage, prefix);
    if (error != 0) {
        storage_release(storage, *out);
        *out = NULL;
    }
    return error;
}

/* ---- removal ---- */

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
        return add_name(&members->names, entry->name);
    members->has_others = true;
    return 0;
}

/* What is in it now; free members->names. */
static int list_members(struct members *members, struct storage *storage, const char *prefix)
{
    free_names(&members->names);
    *members = (struct members){.kind = members->kind};
    return storage_list(storage, prefix, visit_member, members);
}

static int remove_member(struct storage *storage, const char *prefix, const char *name)
{
    char key[STORAGE_KEY_MAX + 1];
    int error = key_in(key, prefix, name);
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
    parent_of(parent, prefix);
    return storage_sync_names(storage, stays ? prefix : parent);
}

/* `is_told`: a person names it, so quarantine, which is evidence for a person, is no reason. */
static int refuse_held(struct storage *storage, const char *prefix, bool is_told)
{
    int error = 0;
    for (size_t i = 0; i < (is_told ? STORAGE_QUARANTINE : NUM_NOTES) && error == 0; i++)
        error = refuse_note(storage, folders[i], prefix, ERR_DENIED);
    return error == 0 ? refuse_lease(storage, prefix) : error;
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
    int error = key_in(key, prefix, members->kind->mark);
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
    int error = find_note(storage, tombstones, prefix);
    *out = STORAGE_REST_CUT_SHORT;
    if (error != ERR_NOT_FOUND)
        return error;
    error = refuse_lease(storage, prefix);
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
    free_names(&members.names);
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

static int make_tombstone(struct storage *storage, const char *prefix, bool *out_is_spent)
{
    char reserve[STORAGE_KEY_MAX + 1];
    int error = publish_note(storage, tombstones, prefix, "");
    if (error != ERR_SPACE || folder_beside(reserve, STORAGE_RESERVE, prefix) != 0)
        return error;
    *out_is_spent = true;
    remove_note(storage, tombstones, reserve); /* as a tombstone of that name */
    return publish_note(storage, tombstones, prefix, "");
}

/* Who leased the group until now may have left an object in it: once nobody can any more, the
 * members are listed anew. */
static int remove_marker(struct storage *storage, struct members *members, const char *prefix,
                         bool is_told, bool *out_is_spent)
{
    int error = make_tombstone(storage, prefix, out_is_spent);
    if (error == 0 || error == ERR_EXISTS) /* of a removal that was cut short */
        error = give_way(storage, tombstones, prefix, refuse_held(storage, prefix, is_told));
    if (error == 0)
        error = remove_member(storage, prefix, members->kind->marker);
    if (error == 0)
        error = storage_sync_names(storage, prefix);
    return error == 0 ? list_members(members, storage, prefix) : error;
}

/* The removal made room, or its tombstone is gone again. Without the reserve the next one needs an
 * inode: no harm. `error` is that of the removal, and stays it. */
static int restore_reserve(struct storage *storage, const char *prefix, int error)
{
    char parent[STORAGE_KEY_MAX + 1];
    struct report_text text;
    parent_of(parent, prefix);
    report_keep(&text);
    if (storage_groups_prepare(storage, parent) != 0)
        log_debug("storage", "%s", report_line());
    return report_restore(&text, error);
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
    free_names(&members.names);
    if (error == 0 && goes)
        error = storage_groups_forget(storage, prefix);
    if (error == 0)
        error = remove_note(storage, tombstones, prefix);
    if (is_spent)
        error = restore_reserve(storage, prefix, error);
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
    free_names(&members.names);
    if (error == 0)
        error = storage_groups_forget(storage, prefix);
    if (error == 0) {
        error = remove_note(storage, folders[STORAGE_QUARANTINE], prefix);
        error = error == ERR_NOT_FOUND ? 0 : error;
    }
    if (error == 0)
        error = remove_note(storage, tombstones, prefix);
    return is_spent ? restore_reserve(storage, prefix, error) : error;
}

int storage_group_move(struct storage *storage, const char *prefix, const char *other, bool is_told)
{
    char from[STORAGE_KEY_MAX + 1], to[STORAGE_KEY_MAX + 1];
    bool is_spent = false;
    parent_of(from, prefix);
    parent_of(to, other);
    int error = make_tombstone(storage, prefix, &is_spent);
    if (error == 0 || error == ERR_EXISTS) { /* of a removal that was cut short */
        error = refuse_held(storage, prefix, is_told);
        if (error == 0)
            error = storage_rename(storage, prefix, other);
        error = give_way(storage, tombstones, prefix, error);
    }
    if (error == 0)
        error = storage_sync_names(storage, to);
    if (error == 0)
        error = storage_sync_names(storage, from);
    if (error == 0)
        error = storage_groups_forget(storage, prefix);
    if (error == 0 && is_told) {
        error = remove_note(storage, folders[STORAGE_QUARANTINE], prefix);
        error = error == ERR_NOT_FOUND ? 0 : error;
    }
    if (error == 0)
        error = remove_note(storage, tombstones, prefix);
    return is_spent ? restore_reserve(storage, prefix, error) : error;
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
    free_names(&members.names);
    return error;
}

int storage_group_clear(struct storage *storage, const struct storage_group_kind *kind,
                        const char *prefix)
{
    return remove_group(storage, kind, prefix, false);
}

static int visit_tombstone(void *user, const struct storage_entry *entry)
{
    return entry->is_dir || strcmp(entry->name, STORAGE_RESERVE) == 0 ? 0
                                                                      : add_name(user, entry->name);
}

int storage_groups_prepare(struct storage *storage, const char *parent)
{
    char key[STORAGE_KEY_MAX + 1];
    int error = key_in(key, parent, STORAGE_RESERVE);
    if (error == 0)
        error = find_note(storage, tombstones, key);
    if (error == ERR_NOT_FOUND)
        error = publish_note(storage, tombstones, key, "");
    return error == ERR_EXISTS ? 0 : error;
}

int storage_groups_recover(struct storage *storage, const struct storage_group_kind *kind,
                           const char *parent)
{
    struct names names = {0};
    struct report_text text = {0};
    char key[STORAGE_KEY_MAX + 1];
    int error = key_in(key, parent, tombstones);
    if (error == 0)
        error = storage_list(storage, key, visit_tombstone, &names);
    if (error != 0)
        report_keep(&text);
    for (size_t i = 0; i < names.count; i++) {
        int failed = key_in(key, parent, names.list[i]);
        if (failed == 0)
            failed = storage_group_clear(storage, kind, key);
        if (failed == 0)
            continue;
        error = failed; /* one that stays holds up no other */
        report_keep(&text);
    }
    free_names(&names);
    return error == 0 ? 0 : report_restore(&text, error);
}

/* ---- notes ---- */

int storage_group_note(struct storage *storage, enum storage_note kind, const char *prefix,
                       const char *text)
{
    const char *folder = folders[kind];
    int error = publish_note(storage, folder, prefix, text);
    if (error == ERR_EXISTS && find_note(storage, folder, prefix) == ERR_NOT_FOUND)
        return report_error(ERR_IO, "try again, and if it stays so remove what lies there",
                            "%s/%s cannot be made: something has its name that is no note", folder,
                            prefix + name_in(prefix));
    return error != 0 ? error : give_way(storage, folder, prefix, refuse_removal(storage, prefix));
}

int storage_group_unnote(struct storage *storage, enum storage_note kind, const char *prefix)
{
    int error = remove_note(storage, folders[kind], prefix);
    return error == ERR_NOT_FOUND ? report_error(error, NULL, "%s is not %s", prefix, states[kind])
                                  : error;
}

int storage_group_find_note(struct storage *storage, enum storage_note kind, const char *prefix,
                            char *text, size_t size)
{
    char key[STORAGE_KEY_MAX + 1];
    uint64_t bytes = 0;
    int error = note_key(key, folders[kind], prefix);
    if (error == 0)
        error = storage_fetch(storage, key, text, size > 0 ? size - 1 : 0, &bytes);
    if (size > 0)
        text[error != 0 ? 0 : bytes < size ? bytes : size - 1] = '\0';
    if (size > 0)
        report_make_printable(text);
    return error;
}

int storage_group_find_pin(struct storage *storage, bool *out_is_pinned, const char *prefix,
                           char *note, size_t size)
{
    int error = storage_group_find_note(storage, STORAGE_PIN, prefix, note, size);
    *out_is_pinned = error != ERR_NOT_FOUND;
    return error == ERR_NOT_FOUND ? 0 : error;
}

int storage_groups_noted(struct storage *storage, enum storage_note kind, const char *parent,
                         int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    char folder[STORAGE_KEY_MAX + 1];
    int error = key_in(folder, parent, folders[kind]);
    return error == 0 ? storage_list(storage, folder, visit, user) : error;
}
