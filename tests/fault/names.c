/* names.c - names that a power loss may undo; see the header.
 *
 * All work is done with the wrapped back-end's own functions, so any back-end can be wrapped. Lists
 * are short (what one checkpoint changes), look-ups walk them. */
#include "tests/fault/names.h"

#include "proto/base/array.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct name_list {
    uint32_t count, room;
    struct name_item {
        char name[STORAGE_KEY_MAX + 1];
        struct storage_entry entry; /* its name is the one above */
    } * items;
};

/* ---- keys ---- */

static bool is_below_or_same(const char *key, const char *directory)
{
    size_t length = strlen(directory);
    return length == 0 ||
           (strncmp(key, directory, length) == 0 && (key[length] == '/' || key[length] == '\0'));
}

static void copy_parent(char out[STORAGE_KEY_MAX + 1], const char *key)
{
    const char *slash = strrchr(key, '/');
    snprintf(out, STORAGE_KEY_MAX + 1, "%.*s", slash ? (int)(slash - key) : 0, key);
}

/* ---- the wrapped back-end ---- */

static int add_item(void *user, const struct storage_entry *entry)
{
    struct name_list *list = user;
    ERR_TRY(array_reserve(&list->items, &list->room, list->count, sizeof(*list->items)));
    struct name_item *item = &list->items[list->count++];
    snprintf(item->name, sizeof(item->name), "%s", entry->name);
    item->entry = *entry;
    return 0;
}

void fault_names_free_list(struct name_list *list)
{
    if (list != NULL)
        free(list->items);
    free(list);
}

/* Every entry of the wrapped back-end below `prefix`. */
static int read_list(struct fault_names *names, struct name_list **out, const char *prefix)
{
    struct name_list *list = calloc(1, sizeof(*list));
    if (list == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate a list of names");
    int error = storage_list(names->inner, prefix, add_item, list);
    if (error != 0) {
        fault_names_free_list(list);
        return error;
    }
    *out = list;
    return 0;
}

/* Does the wrapped back-end hold `key`, hidden or not? */
static int look_up(struct fault_names *names, bool *out_exists, bool *out_is_dir, const char *key)
{
    char parent[STORAGE_KEY_MAX + 1];
    copy_parent(parent, key);
    const char *name = parent[0] ? key + strlen(parent) + 1 : key;
    struct name_list *list;
    ERR_TRY(read_list(names, &list, parent));
    *out_exists = false;
    *out_is_dir = false;
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->items[i].name, name) != 0)
            continue;
        *out_exists = true;
        *out_is_dir = list->items[i].entry.is_dir;
    }
    fault_names_free_list(list);
    return 0;
}

/* Removes `key` and all below it for good; nothing there is fine. */
static int remove_tree(struct fault_names *names, const char *key)
{
    struct name_list *list;
    int error = read_list(names, &list, key);
    if (error != 0)
        return error;
    for (size_t i = 0; error == 0 && i < list->count; i++) {
        char child[STORAGE_KEY_MAX + 1];
        if (storage_join(child, key, list->items[i].name))
            error = remove_tree(names, child);
    }
    fault_names_free_list(list);
    if (error == 0)
        error = storage_remove(names->inner, key);
    return error == ERR_NOT_FOUND ? 0 : error;
}

/* ---- the list of changes ---- */

static struct name_change *find_change(const struct fault_names *names, enum name_change_kind kind,
                                       const char *key)
{
    for (struct name_change *change = names->changes; change != NULL; change = change->next)
        if (change->kind == kind && strcmp(change->key, key) == 0)
            return change;
    return NULL;
}

/* `from`: of a rename, else "". */
static int add_change(struct fault_names *names, enum name_change_kind kind, const char *key,
                      const char *from)
{
    struct name_change *change = calloc(1, sizeof(*change));
    if (change == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate a change of a name");
    change->kind = kind;
    snprintf(change->key, sizeof(change->key), "%s", key);
    snprintf(change->from, sizeof(change->from), "%s", from);
    struct name_change **end = &names->changes;
    while (*end != NULL)
        end = &(*end)->next;
    *end = change;
    return 0;
}

/* Forgets the changes of which is_one(change, key) is true. */
static void drop_those(struct fault_names *names,
                       bool (*is_one)(const struct name_change *change, const char *key),
                       const char *key)
{
    struct name_change **link = &names->changes;
    while (*link != NULL) {
        struct name_change *change = *link;
        if (!is_one(change, key)) {
            link = &change->next;
            continue;
        }
        *link = change->next;
        free(change);
    }
}

static bool lies_in(const struct name_change *change, const char *key)
{
    return is_below_or_same(change->key, key);
}

/* Forgets every change of `key` and below it: they were removed with it. */
static void drop_changes(struct fault_names *names, const char *key)
{
    drop_those(names, lies_in, key);
}

static bool came_from(const struct name_change *change, const char *key)
{
    return change->kind == NAME_RENAMED && is_below_or_same(change->from, key);
}

static bool makes_way_to(const struct name_change *change, const char *key)
{
    return change->kind == NAME_CREATED && is_below_or_same(key, change->key);
}

static bool removes_way_to(const struct name_change *change, const char *key)
{
    return change->kind == NAME_REMOVED && is_below_or_same(key, change->key);
}

static void move_key(char key[STORAGE_KEY_MAX + 1], const char *from, const char *to)
{
    char rest[STORAGE_KEY_MAX + 1];
    if (!is_below_or_same(key, from))
        return;
    snprintf(rest, sizeof(rest), "%s", key + strlen(from));
    /* The wrapped back-end has it under this key, so it is not too long. */
    CHECK(snprintf(key, STORAGE_KEY_MAX + 1, "%s%s", to, rest) <= STORAGE_KEY_MAX);
}

/* An object in `from` is now in `to`; one that was renamed out of `from` returns there instead. */
static void move_changes(struct fault_names *names, const char *from, const char *to)
{
    for (struct name_change *change = names->changes; change != NULL; change = change->next) {
        move_key(change->key, from, to);
        move_key(change->from, from, to);
    }
}

void fault_names_deinit(struct fault_names *names)
{
    drop_changes(names, "");
}

bool fault_names_hidden(const struct fault_names *names, const char *key)
{
    for (struct name_change *change = names->changes; change != NULL; change = change->next)
        if (change->kind == NAME_REMOVED && is_below_or_same(key, change->key))
            return true;
    return false;
}

/* `key` is about to be created again: the removed object there cannot come back any more. */
static int end_removal(struct fault_names *names, const char *key)
{
    if (find_change(names, NAME_REMOVED, key) == NULL)
        return 0;
    int error = remove_tree(names, key);
    if (error == 0)
        drop_changes(names, key);
    return error;
}

int fault_names_prepare(struct fault_names *names, const char *key)
{
    for (const char *slash = strchr(key, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        char directory[STORAGE_KEY_MAX + 1];
        snprintf(directory, sizeof(directory), "%.*s", (int)(slash - key), key);
        bool exists, is_dir;
        int error = end_removal(names, directory);
        if (error == 0)
            error = look_up(names, &exists, &is_dir, directory);
        if (error == 0 && !exists) {
            drop_those(names, came_from, directory);
            error = fault_names_created(names, directory);
        }
        if (error != 0)
            return error;
    }
    drop_those(names, came_from, key); /* nor a renamed one */
    return end_removal(names, key);
}

int fault_names_created(struct fault_names *names, const char *key)
{
    if (find_change(names, NAME_CREATED, key) != NULL)
        return 0;
    return add_change(names, NAME_CREATED, key, "");
}

int fault_names_list(struct fault_names *names, struct name_list **out, const char *prefix)
{
    struct name_list *list;
    ERR_TRY(read_list(names, &list, prefix));
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        char key[STORAGE_KEY_MAX + 1];
        if (storage_join(key, prefix, list->items[i].name) && !fault_names_hidden(names, key))
            list->items[kept++] = list->items[i];
    }
    list->count = kept;
    *out = list;
    return 0;
}

int fault_names_visit(const struct name_list *list,
                      int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    int result = 0;
    for (size_t i = 0; result == 0 && i < list->count; i++) {
        const struct name_item *item = &list->items[i];
        struct storage_entry entry = item->entry;
        entry.name = item->name;
        result = visit(user, &entry);
    }
    return result;
}

static int check_empty(struct fault_names *names, const char *key)
{
    struct name_list *list;
    int error = fault_names_list(names, &list, key);
    if (error != 0)
        return error;
    if (list->count > 0)
        error = report_error(ERR_EXISTS, NULL, "the directory \"%s\" is not empty", key);
    fault_names_free_list(list);
    return error;
}

int fault_names_remove(struct fault_names *names, const char *key)
{
    bool exists = false, is_dir = false;
    ERR_TRY(look_up(names, &exists, &is_dir, key));
    if (!exists || fault_names_hidden(names, key))
        return report_error(ERR_NOT_FOUND, NULL, "there is no \"%s\"", key);
    int error = is_dir ? check_empty(names, key) : 0;
    if (error != 0)
        return error;
    if (find_change(names, NAME_CREATED, key) == NULL)
        return add_change(names, NAME_REMOVED, key, "");
    /* It was never durable: after a crash it is gone. */
    error = remove_tree(names, key);
    if (error == 0)
        drop_changes(names, key);
    return error;
}

int fault_names_rename(struct fault_names *names, const char *key, const char *other)
{
    bool exists = false, is_taken = false, is_dir = false;
    ERR_TRY(look_up(names, &exists, &is_dir, key));
    if (!exists || fault_names_hidden(names, key))
        return report_error(ERR_NOT_FOUND, NULL, "there is no \"%s\"", key);
    ERR_TRY(look_up(names, &is_taken, &is_dir, other));
    if (is_taken && !fault_names_hidden(names, other))
        return report_error(ERR_EXISTS, NULL, "\"%s\" is there already", other);
    ERR_TRY(fault_names_prepare(names, other));
    ERR_TRY(storage_rename(names->inner, key, other));
    move_changes(names, key, other);
    return add_change(names, NAME_RENAMED, other, key);
}

void fault_names_released(struct fault_names *names, const char *key)
{
    if (find_change(names, NAME_CREATED, key) != NULL)
        drop_changes(names, key);
    else if (storage_publish(names->inner, key, NULL, 0) == 0)
        CHECK(add_change(names, NAME_REMOVED, key, "") == 0);
}

static bool is_in_directory(const char *prefix, const char *key)
{
    char parent[STORAGE_KEY_MAX + 1];
    copy_parent(parent, key);
    return is_below_or_same(prefix, parent);
}

/* Is `change` durable, now that the directories of `prefix` are? */
static bool is_settled(struct name_change *change, const char *prefix)
{
    bool is_synced = is_in_directory(prefix, change->key);
    if (change->kind != NAME_RENAMED)
        return is_synced;
    change->is_synced |= is_synced;
    change->is_from_synced |= is_in_directory(prefix, change->from);
    return change->is_synced && change->is_from_synced;
}

int fault_names_synced(struct fault_names *names, const char *prefix)
{
    struct name_change **link = &names->changes;
    while (*link != NULL) {
        struct name_change *change = *link;
        if (!is_settled(change, prefix)) {
            link = &change->next;
            continue;
        }
        if (change->kind == NAME_REMOVED) {
            char key[STORAGE_KEY_MAX + 1];
            snprintf(key, sizeof(key), "%s", change->key);
            ERR_TRY(remove_tree(names, key));
            drop_changes(names, key); /* this one, too */
            link = &names->changes;
            continue;
        }
        *link = change->next;
        free(change);
    }
    return 0;
}

int fault_names_published(struct fault_names *names, const char *key)
{
    char directory[STORAGE_KEY_MAX + 1];
    copy_parent(directory, key);
    return fault_names_synced(names, directory);
}

/* Removes the last rename that is not durable from the list; NULL: there is none. */
static struct name_change *take_rename(struct fault_names *names)
{
    struct name_change **last = NULL;
    for (struct name_change **link = &names->changes; *link != NULL; link = &(*link)->next)
        if ((*link)->kind == NAME_RENAMED)
            last = link;
    struct name_change *change = last != NULL ? *last : NULL;
    if (change != NULL)
        *last = change->next;
    return change;
}

/* The last rename first, so that each finds its objects where it put them. A kept rename keeps the
 * directories that were made for it, an undone one those that it came from. */
static int crash_renames(struct fault_names *names, bool (*lose)(void *user), void *user)
{
    struct name_change *change;
    int error = 0;
    while (error == 0 && (change = take_rename(names)) != NULL) {
        if (lose(user)) {
            error = storage_rename(names->inner, change->key, change->from);
            move_changes(names, change->key, change->from);
            drop_those(names, removes_way_to, change->from);
        } else {
            drop_those(names, makes_way_to, change->key);
        }
        free(change);
    }
    return error;
}

int fault_names_crash(struct fault_names *names, bool (*lose)(void *user), void *user)
{
    ERR_TRY(crash_renames(names, lose, user));
    while (names->changes != NULL) {
        struct name_change *change = names->changes;
        /* A lost creation, and a removal that is not lost: both times the name is gone. */
        bool gone = lose(user) == (change->kind == NAME_CREATED);
        int error = gone ? remove_tree(names, change->key) : 0;
        if (error != 0)
            return error;
        names->changes = change->next;
        free(change);
    }
    return 0;
}
