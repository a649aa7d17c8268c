/* group.c - the removal of a directory whose objects belong together.
 *
 *   tombstone durable ──► is it held? ──yes──► tombstone removed: nothing happened
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

struct members {
    const struct storage_group *group;
    char **names;
    size_t count, room;
    bool has_marker, has_others;
};

static int visit_member(void *user, const struct storage_entry *entry)
{
    struct members *members = user;
    if (!entry->is_dir && strcmp(entry->name, members->group->marker) == 0) {
        members->has_marker = true;
        return 0;
    }
    if (entry->is_dir || !members->group->is_ours(entry->name)) {
        members->has_others = true;
        return 0;
    }
    if (members->count == members->room) {
        size_t room = members->room > 0 ? 2 * members->room : 64;
        char **names = realloc(members->names, room * sizeof(char *));
        if (names == NULL)
            return report_error(ERR_MEMORY, NULL, "no memory for a list of %zu names", room);
        members->names = names;
        members->room = room;
    }
    members->names[members->count] = strdup(entry->name);
    if (members->names[members->count] == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a name");
    members->count++;
    return 0;
}

static void free_members(struct members *members)
{
    for (size_t i = 0; i < members->count; i++)
        free(members->names[i]);
    free(members->names);
}

/* Parent of a key, "" for one in the root. */
static void parent_of(char out[STORAGE_KEY_MAX + 1], const char *key)
{
    const char *slash = strrchr(key, '/');
    snprintf(out, STORAGE_KEY_MAX + 1, "%.*s", slash != NULL ? (int)(slash - key) : 0, key);
}

static int remove_member(struct storage *storage, const char *prefix, const char *name)
{
    char key[2 * STORAGE_KEY_MAX];
    snprintf(key, sizeof(key), "%s/%s", prefix, name);
    int error = storage_remove(storage, key);
    return error == ERR_NOT_FOUND ? 0 : error;
}

/* Removes a hold or a tombstone, durably. */
static int remove_note(struct storage *storage, const char *key)
{
    char parent[STORAGE_KEY_MAX + 1];
    parent_of(parent, key);
    int error = storage_remove(storage, key);
    return error == 0 ? storage_sync_names(storage, parent) : error;
}

/* ERR_NOT_FOUND: there is none. */
static int look_for(struct storage *storage, const char *key)
{
    uint64_t bytes;
    return storage_fetch(storage, key, NULL, 0, &bytes);
}

/* Before the marker goes. */
static int announce(struct storage *storage, const struct storage_group *group)
{
    int error = storage_publish(storage, group->tombstone, "", 0);
    if (error != 0 && error != ERR_EXISTS)
        return error;
    error = look_for(storage, group->hold);
    if (error == ERR_NOT_FOUND)
        return 0;
    if (error == 0)
        error = report_error(ERR_DENIED, NULL, "%s is held by %s", group->prefix, group->hold);
    char text[512];
    snprintf(text, sizeof(text), "%s", report_line());
    /* A tombstone that cannot be taken back stops new holds, and no more: the group stays. */
    if (remove_note(storage, group->tombstone) != 0)
        log_warn("storage", "the tombstone %s could not be taken back: %s", group->tombstone,
                 report_line());
    return report_error(error, NULL, "%s", text);
}

/* After the marker went: nobody can reach the rest. */
static int remove_rest(struct storage *storage, const struct storage_group *group,
                       const struct members *members)
{
    char parent[STORAGE_KEY_MAX + 1];
    int error = 0;
    bool stays = members->has_others;
    for (size_t i = 0; i < members->count && error == 0; i++)
        error = remove_member(storage, group->prefix, members->names[i]);
    if (error == 0 && !stays) {
        error = storage_remove(storage, group->prefix);
        stays = error == ERR_EXISTS; /* names that are hidden from lists */
    }
    if (error != 0 && error != ERR_EXISTS && error != ERR_NOT_FOUND)
        return error;
    parent_of(parent, group->prefix);
    return storage_sync_names(storage, stays ? group->prefix : parent);
}

int storage_group_remove(struct storage *storage, const struct storage_group *group)
{
    struct members members = {.group = group};
    int error = storage_list(storage, group->prefix, visit_member, &members);
    if (error == 0 && members.has_marker) {
        error = announce(storage, group);
        if (error == 0)
            error = remove_member(storage, group->prefix, group->marker);
        if (error == 0)
            error = storage_sync_names(storage, group->prefix);
    }
    if (error == 0)
        error = remove_rest(storage, group, &members);
    free_members(&members);
    if (error == 0)
        error = remove_note(storage, group->tombstone);
    return error == ERR_NOT_FOUND ? 0 : error; /* the tombstone: another call came to its end */
}

int storage_group_recover(struct storage *storage, const struct storage_group *group)
{
    struct members members = {.group = group};
    int error = storage_list(storage, group->prefix, visit_member, &members);
    if (error == 0 && !members.has_marker)
        error = remove_rest(storage, group, &members);
    free_members(&members);
    if (error == 0)
        error = remove_note(storage, group->tombstone);
    return error == ERR_NOT_FOUND ? 0 : error;
}

int storage_group_hold(struct storage *storage, const struct storage_group *group, const char *text)
{
    int error = storage_publish(storage, group->hold, text, strlen(text));
    if (error != 0)
        return error;
    error = look_for(storage, group->tombstone);
    if (error == ERR_NOT_FOUND)
        return 0;
    if (error == 0)
        error = report_error(ERR_NOT_FOUND, NULL, "%s is being removed", group->prefix);
    char line[512];
    snprintf(line, sizeof(line), "%s", report_line());
    /* A hold too many keeps what could go: harmless. */
    if (remove_note(storage, group->hold) != 0)
        log_warn("storage", "the hold %s could not be taken back: %s", group->hold, report_line());
    return report_error(error, NULL, "%s", line);
}

int storage_group_release(struct storage *storage, const struct storage_group *group)
{
    return remove_note(storage, group->hold);
}
