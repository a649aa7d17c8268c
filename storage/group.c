/* group.c - the removal of a directory whose objects belong together.
 *
 *   tombstone durable ──► is it pinned? ──yes──► tombstone removed: nothing happened
 *                              │ no
 *                              ▼
 *          marker removed, durably: from here on the group does not exist for anybody
 *                              │
 *                              ▼
 *               the other objects, the directory ──► tombstone removed
 *
 * The order is that of restic and Delta Lake: what makes data reachable goes before the data. A
 * crash before the marker is gone leaves a whole group and a tombstone; after it, rubbish that the
 * same call removes when it is made again. */
#include "storage/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char pins[] = "pins", tombstones[] = "tombstones";

/* Names of a directory's objects. */
struct names {
    char **list;
    size_t count, room;
};

static int add_name(struct names *names, const char *name)
{
    if (names->count == names->room) {
        size_t room = names->room > 0 ? 2 * names->room : 64;
        char **list = realloc(names->list, room * sizeof(char *));
        if (list == NULL)
            return report_error(ERR_MEMORY, NULL, "no memory for a list of %zu names", room);
        names->list = list;
        names->room = room;
    }
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

static int note_key(char out[STORAGE_KEY_MAX + 1], const char *kind, const char *prefix)
{
    char parent[STORAGE_KEY_MAX + 1], folder[STORAGE_KEY_MAX + 1];
    parent_of(parent, prefix);
    int error = key_in(folder, parent, kind);
    return error == 0 ? key_in(out, folder, prefix + name_in(prefix)) : error;
}

/* Removes a pin or a tombstone, durably. */
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

/* After a note was published: one of the other kind forbids it. Then it is taken back, and `denial`
 * is the answer. Where that fails, a note too many keeps what could go: harmless. */
static int give_way(struct storage *storage, const char *kind, const char *other,
                    const char *prefix, int denial)
{
    char line[512];
    int error = find_note(storage, other, prefix);
    if (error == ERR_NOT_FOUND)
        return 0;
    if (error == 0)
        error = report_error(denial, NULL, "%s is in %s", prefix, other);
    snprintf(line, sizeof(line), "%s", report_line());
    if (remove_note(storage, kind, prefix) != 0)
        log_warn("storage", "%s stays in %s: %s", prefix, kind, report_line());
    return report_error(error, NULL, "%s", line);
}

/* ---- removal ---- */

struct members {
    const struct storage_group_kind *kind;
    struct names names; /* ours, without the marker */
    bool has_marker, has_others;
};

static int visit_member(void *user, const struct storage_entry *entry)
{
    struct members *members = user;
    if (!entry->is_dir && strcmp(entry->name, members->kind->marker) == 0) {
        members->has_marker = true;
        return 0;
    }
    if (!entry->is_dir && members->kind->is_ours(entry->name))
        return add_name(&members->names, entry->name);
    members->has_others = true;
    return 0;
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
    if (error == 0 && !stays) {
        error = storage_remove(storage, prefix);
        stays = error == ERR_EXISTS; /* names that are hidden from lists */
    }
    if (error != 0 && error != ERR_EXISTS && error != ERR_NOT_FOUND)
        return error;
    parent_of(parent, prefix);
    return storage_sync_names(storage, stays ? prefix : parent);
}

static int remove_marker(struct storage *storage, const char *prefix, const char *marker)
{
    int error = publish_note(storage, tombstones, prefix, "");
    if (error == 0 || error == ERR_EXISTS) /* of a removal that was cut short */
        error = give_way(storage, tombstones, pins, prefix, ERR_DENIED);
    if (error == 0)
        error = remove_member(storage, prefix, marker);
    return error == 0 ? storage_sync_names(storage, prefix) : error;
}

/* `is_new`: whole groups go; else only what is left of those that lost their marker. */
static int remove_group(struct storage *storage, const struct storage_group_kind *kind,
                        const char *prefix, bool is_new)
{
    struct members members = {.kind = kind};
    int error = storage_list(storage, prefix, visit_member, &members);
    if (error == 0 && members.has_marker && is_new)
        error = remove_marker(storage, prefix, kind->marker);
    if (error == 0 && (!members.has_marker || is_new))
        error = remove_rest(storage, prefix, &members);
    free_names(&members.names);
    if (error == 0)
        error = remove_note(storage, tombstones, prefix);
    return error == ERR_NOT_FOUND ? 0 : error; /* another call has come to its end */
}

int storage_group_remove(struct storage *storage, const struct storage_group_kind *kind,
                         const char *prefix)
{
    return remove_group(storage, kind, prefix, true);
}

static int visit_tombstone(void *user, const struct storage_entry *entry)
{
    return entry->is_dir ? 0 : add_name(user, entry->name);
}

int storage_groups_recover(struct storage *storage, const struct storage_group_kind *kind,
                           const char *parent)
{
    struct names names = {0};
    char key[STORAGE_KEY_MAX + 1];
    int error = key_in(key, parent, tombstones);
    if (error == 0)
        error = storage_list(storage, key, visit_tombstone, &names);
    for (size_t i = 0; i < names.count && error == 0; i++) {
        error = key_in(key, parent, names.list[i]);
        if (error == 0)
            error = remove_group(storage, kind, key, false);
    }
    free_names(&names);
    return error;
}

/* ---- pins ---- */

int storage_group_pin(struct storage *storage, const char *prefix, const char *text)
{
    int error = publish_note(storage, pins, prefix, text);
    return error == 0 ? give_way(storage, pins, tombstones, prefix, ERR_NOT_FOUND) : error;
}

int storage_group_unpin(struct storage *storage, const char *prefix)
{
    int error = remove_note(storage, pins, prefix);
    return error == ERR_NOT_FOUND ? report_error(error, NULL, "%s is not pinned", prefix) : error;
}

int storage_group_find_pin(struct storage *storage, const char *prefix)
{
    return find_note(storage, pins, prefix);
}

int storage_groups_pinned(struct storage *storage, const char *parent,
                          int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    char folder[STORAGE_KEY_MAX + 1];
    int error = key_in(folder, parent, pins);
    return error == 0 ? storage_list(storage, folder, visit, user) : error;
}
