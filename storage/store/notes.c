/* notes.c - the small objects beside a checkpoint: notes, tombstones, leases.
 *
 * Notes are durable and stay until they are removed. A lease is a file "leases/<name>.<nonce>" that
 * its holder keeps locked, so it ends with its holder. A lease file without a holder is rubbish; a
 * removal of the checkpoint removes it, too. A process that makes a note or a lease writes it first
 * and then checks for a tombstone; a remover does these in the opposite order. So of two concurrent
 * ones at least one sees the other. */
#include "storage/store/private.h"

#include "proto/base/array.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define NONCE_DIGITS 16
#define IS_REMOVED 1        /* result of a visit: a remover was found */
#define LEASE_TEXT_BYTES 64 /* bytes of a lease that are read */

const char *const note_folders[NOTE_KINDS] = {
    [STORE_PIN] = "pins", [STORE_QUARANTINE] = "quarantine"};
static const char *const states[NOTE_KINDS] = {
    [STORE_PIN] = "pinned", [STORE_QUARANTINE] = "in quarantine"};

int names_add(struct names *names, const char *name)
{
    ERR_TRY(array_reserve(&names->list, &names->room, names->count, sizeof(char *)));
    names->list[names->count] = strdup(name);
    if (names->list[names->count] == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a name");
    names->count++;
    return 0;
}

void names_free(struct names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->list[i]);
    free(names->list);
}

/* ---- keys ---- */

/* Where the name begins in the key of a checkpoint. */
static size_t name_in(const char *prefix)
{
    const char *slash = strrchr(prefix, '/');
    return slash != NULL ? (size_t)(slash + 1 - prefix) : 0;
}

void note_parent_of(char out[STORAGE_KEY_MAX + 1], const char *key)
{
    size_t length = name_in(key);
    snprintf(out, STORAGE_KEY_MAX + 1, "%.*s", length > 0 ? (int)length - 1 : 0, key);
}

int note_key_in(char out[STORAGE_KEY_MAX + 1], const char *folder, const char *name)
{
    int length = snprintf(out, STORAGE_KEY_MAX + 1, "%s%s%s", folder, folder[0] ? "/" : "", name);
    return length <= STORAGE_KEY_MAX
               ? 0
               : report_error(ERR_INVALID, NULL, "a key in %s is longer than %d bytes", folder,
                              STORAGE_KEY_MAX);
}

int note_folder_beside(char out[STORAGE_KEY_MAX + 1], const char *kind, const char *prefix)
{
    char parent[STORAGE_KEY_MAX + 1];
    note_parent_of(parent, prefix);
    return note_key_in(out, parent, kind);
}

int note_key(char out[STORAGE_KEY_MAX + 1], const char *kind, const char *prefix)
{
    char folder[STORAGE_KEY_MAX + 1];
    int error = note_folder_beside(folder, kind, prefix);
    return error == 0 ? note_key_in(out, folder, prefix + name_in(prefix)) : error;
}

int note_remove(struct storage *storage, const char *kind, const char *prefix)
{
    char key[STORAGE_KEY_MAX + 1], folder[STORAGE_KEY_MAX + 1];
    int error = note_key(key, kind, prefix);
    if (error == 0)
        error = storage_remove(storage, key);
    note_parent_of(folder, key);
    return error == 0 ? storage_sync_names(storage, folder) : error;
}

int note_find(struct storage *storage, const char *kind, const char *prefix)
{
    char key[STORAGE_KEY_MAX + 1];
    uint64_t bytes;
    int error = note_key(key, kind, prefix);
    return error == 0 ? storage_fetch(storage, key, NULL, 0, &bytes) : error;
}

int note_publish(struct storage *storage, const char *kind, const char *prefix, const char *text)
{
    char key[STORAGE_KEY_MAX + 1];
    int error = note_key(key, kind, prefix);
    return error == 0 ? storage_publish(storage, key, text, strlen(text)) : error;
}

int note_refuse(struct storage *storage, const char *kind, const char *prefix, int denial)
{
    int error = note_find(storage, kind, prefix);
    if (error == 0)
        return report_error(denial, NULL, "%s is in %s", prefix, kind);
    return error == ERR_NOT_FOUND ? 0 : error;
}

/* ---- leases ---- */

struct leases {
    struct storage *storage;
    const char *folder;
    /* Visit those without a holder whose text begins with this; NULL: those with a holder. */
    const char *left;
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

/* Does the text of the lease begin with list->left? False also if it cannot be read. */
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
    struct storage_entry checkpoint = {.name = name};
    snprintf(name, sizeof(name), "%s", entry->name);
    if (entry->is_dir || !cut_nonce(name))
        return 0;
    int error = note_key_in(key, list->folder, entry->name);
    if (error == 0)
        error = storage_find_holder(list->storage, key);
    if (error != 0 && error != ERR_NOT_FOUND)
        return error;
    bool is_asked = list->left == NULL ? error == 0 : error != 0 && is_by(list, key);
    return is_asked ? list->visit(list->user, &checkpoint) : 0;
}

int store_for_leases(struct storage *storage, const char *parent,
                     int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    return store_for_left_leases(storage, parent, NULL, visit, user);
}

int store_for_left_leases(struct storage *storage, const char *parent, const char *text,
                          int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    char folder[STORAGE_KEY_MAX + 1];
    struct leases list = {storage, folder, text, visit, user};
    ERR_TRY(note_key_in(folder, parent, NOTE_LEASES));
    return storage_list(storage, folder, visit_lease, &list);
}

static int deny_lease(void *user, const struct storage_entry *entry)
{
    const char *prefix = user;
    return strcmp(entry->name, prefix + name_in(prefix)) != 0
               ? 0
               : report_error(ERR_DENIED, NULL, "%s is in %s: a process reads it", prefix,
                              NOTE_LEASES);
}

int lease_refuse(struct storage *storage, const char *prefix)
{
    char parent[STORAGE_KEY_MAX + 1];
    note_parent_of(parent, prefix);
    return store_for_leases(storage, parent, deny_lease, (void *)(uintptr_t)prefix);
}

static int collect_lease(void *user, const struct storage_entry *entry)
{
    return entry->is_dir ? 0 : names_add(user, entry->name);
}

/* A remaining lease file is harmless. */
int store_forget_leases(struct storage *storage, const char *prefix)
{
    struct names names = {0};
    char folder[STORAGE_KEY_MAX + 1], key[STORAGE_KEY_MAX + 1];
    int error = note_folder_beside(folder, NOTE_LEASES, prefix);
    if (error == 0)
        error = storage_list(storage, folder, collect_lease, &names);
    for (size_t i = 0; i < names.count && error == 0; i++) {
        error = note_key_in(key, folder, names.list[i]);
        if (error == 0 && cut_nonce(names.list[i]) &&
            strcmp(names.list[i], prefix + name_in(prefix)) == 0 &&
            storage_find_holder(storage, key) == ERR_NOT_FOUND)
            storage_remove(storage, key);
    }
    names_free(&names);
    return error;
}

/* ---- removals ---- */

/* Makes a small object "<folder>/<checkpoint>.<nonce>" that this process holds; *out_key is its
 * key. */
static int hold_beside(struct storage *storage, struct storage_hold **out,
                       char out_key[STORAGE_KEY_MAX + 1], const char *kind, const char *prefix,
                       const char *text)
{
    char key[STORAGE_KEY_MAX + 1];
    uint64_t nonce;
    *out = NULL;
    if (getrandom(&nonce, sizeof(nonce), 0) != sizeof(nonce))
        return report_error(ERR_IO, NULL, "could not get a random number");
    ERR_TRY(note_key(key, kind, prefix));
    if (snprintf(out_key, STORAGE_KEY_MAX + 1, "%s.%0*llx", key, NONCE_DIGITS,
                 (unsigned long long)nonce) > STORAGE_KEY_MAX)
        return report_error(ERR_INVALID, NULL, "the key of a lease is too long");
    return storage_hold(storage, out, out_key, text, strlen(text));
}

bool remover_is_name(const char *name)
{
    char copy[STORAGE_KEY_MAX + 1];
    snprintf(copy, sizeof(copy), "%s", name);
    return cut_nonce(copy);
}

int remover_begin(struct removing *removing, struct storage *storage, const char *prefix)
{
    removing->hold = NULL;
    if (storage_is_locked(storage))
        return 0;
    return hold_beside(storage, &removing->hold, removing->key, NOTE_TOMBSTONES, prefix, "");
}

int remover_check(const struct removing *removing, struct storage *storage)
{
    int error = removing->hold ? storage_find_holder(storage, removing->key) : 0;
    return error == ERR_NOT_FOUND
               ? report_error(ERR_STALE, "run the command again; ckptd tries again itself",
                              "the mark of a removal, %s, was removed meanwhile", removing->key)
               : error;
}

struct removers {
    struct leases list;
    const char *prefix; /* of the checkpoint */
    const char *ours;   /* skipped */
};

static int visit_removing(void *user, const struct storage_entry *entry)
{
    const struct removers *removers = user;
    const char *prefix = removers->prefix;
    char key[STORAGE_KEY_MAX + 1], name[STORAGE_KEY_MAX + 1];
    snprintf(name, sizeof(name), "%s", entry->name);
    if (entry->is_dir || !cut_nonce(name) || strcmp(name, prefix + name_in(prefix)) != 0)
        return 0;
    int error = note_key_in(key, removers->list.folder, entry->name);
    if (error == 0 && strcmp(key, removers->ours) == 0)
        return 0;
    if (error == 0)
        error = storage_find_holder(removers->list.storage, key);
    return error == 0 ? IS_REMOVED : error == ERR_NOT_FOUND ? 0 : error;
}

static int find_remover(struct storage *storage, const char *prefix, const char *ours)
{
    char folder[STORAGE_KEY_MAX + 1];
    struct removers removers = {{storage, folder, NULL, NULL, NULL}, prefix, ours};
    int error = note_folder_beside(folder, NOTE_TOMBSTONES, prefix);
    if (error == 0)
        error = storage_list(storage, folder, visit_removing, &removers);
    return error == IS_REMOVED ? 0
           : error == 0        ? report_error(ERR_NOT_FOUND, NULL, "no process removes %s", prefix)
                               : error;
}

int remover_find(struct storage *storage, const char *prefix)
{
    return find_remover(storage, prefix, "");
}

static int refuse_tool(struct storage *storage)
{
    if (storage_is_locked(storage) || !storage_is_shared(storage))
        return 0;
    int error = storage_find_holder(storage, NULL);
    if (error == 0)
        return report_error(ERR_BUSY, "try again", "a tool has the store's lock");
    return error == ERR_NOT_FOUND ? 0 : error;
}

int remover_alone(const struct removing *removing, struct storage *storage, const char *prefix)
{
    int error = find_remover(storage, prefix, removing->hold ? removing->key : "");
    if (error == 0)
        return report_error(ERR_BUSY, "try again", "another process removes %s", prefix);
    return error == ERR_NOT_FOUND ? refuse_tool(storage) : error;
}

int remover_forget(struct storage *storage, const char *name)
{
    char key[STORAGE_KEY_MAX + 1];
    ERR_TRY(note_key(key, NOTE_TOMBSTONES, name));
    int error = storage_find_holder(storage, key);
    if (error == ERR_NOT_FOUND)
        error = note_remove(storage, NOTE_TOMBSTONES, name);
    return error == ERR_NOT_FOUND ? 0 : error;
}

/* A tombstone means a removal under way only while a process has the store's lock: the next holder
 * of the lock completes or reverts what was left. A remover without the lock has a hold; this
 * function checks for one whether there is a tombstone or not. */
static int refuse_removal(struct storage *storage, const char *prefix)
{
    int error = remover_find(storage, prefix);
    if (error == ERR_NOT_FOUND) {
        error = note_find(storage, NOTE_TOMBSTONES, prefix);
        if (error == 0)
            error = storage_find_holder(storage, NULL);
    }
    if (error == 0)
        return report_error(ERR_NOT_FOUND, "use another checkpoint", "%s is being removed", prefix);
    return error == ERR_NOT_FOUND ? 0 : error;
}

int store_lease(struct storage *storage, struct storage_hold **out, const char *prefix,
                const char *text)
{
    char key[STORAGE_KEY_MAX + 1];
    int error = hold_beside(storage, out, key, NOTE_LEASES, prefix, text);
    if (error == 0)
        error = refuse_removal(storage, prefix);
    if (error != 0) {
        storage_release(storage, *out);
        *out = NULL;
    }
    return error;
}

/* ---- notes ---- */

/* `error` forbids the note: removes it again. If that fails, the note protects too much, which is
 * harmless. */
static int withdraw_note(struct storage *storage, const char *folder, const char *prefix, int error)
{
    struct report_text text;
    if (error == 0)
        return 0;
    report_keep(&text);
    if (note_remove(storage, folder, prefix) != 0)
        log_warn("storage", "%s stays in %s: %s", prefix, folder, report_line());
    return report_restore(&text, error);
}

int store_put_note(struct storage *storage, enum store_note kind, const char *prefix,
                   const char *text)
{
    const char *folder = note_folders[kind];
    int error = note_publish(storage, folder, prefix, text);
    if (error == ERR_EXISTS && note_find(storage, folder, prefix) == ERR_NOT_FOUND)
        return report_error(
            ERR_IO, "try again; if the error stays, remove the file or directory of that name",
            "%s/%s cannot be made: its name belongs to something that is not a note", folder,
            prefix + name_in(prefix));
    return error != 0 ? error
                      : withdraw_note(storage, folder, prefix, refuse_removal(storage, prefix));
}

int store_remove_note(struct storage *storage, enum store_note kind, const char *prefix)
{
    int error = note_remove(storage, note_folders[kind], prefix);
    return error == ERR_NOT_FOUND ? report_error(error, NULL, "%s is not %s", prefix, states[kind])
                                  : error;
}

int store_find_note(struct storage *storage, enum store_note kind, const char *prefix, char *text,
                    size_t size)
{
    char key[STORAGE_KEY_MAX + 1];
    uint64_t bytes = 0;
    int error = note_key(key, note_folders[kind], prefix);
    if (error == 0)
        error = storage_fetch(storage, key, text, size > 0 ? size - 1 : 0, &bytes);
    if (size > 0)
        text[error != 0 ? 0 : bytes < size ? bytes : size - 1] = '\0';
    if (size > 0)
        report_make_printable(text);
    return error;
}

int store_find_pin(struct storage *storage, bool *out_is_pinned, const char *prefix, char *note,
                   size_t size)
{
    int error = store_find_note(storage, STORE_PIN, prefix, note, size);
    *out_is_pinned = error != ERR_NOT_FOUND;
    return error == ERR_NOT_FOUND ? 0 : error;
}

int store_for_notes(struct storage *storage, enum store_note kind, const char *parent,
                    int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    char folder[STORAGE_KEY_MAX + 1];
    int error = note_key_in(folder, parent, note_folders[kind]);
    return error == 0 ? storage_list(storage, folder, visit, user) : error;
}
