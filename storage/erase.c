/* erase.c - a person has said that all of a parent of groups goes: the groups, and what lies beside
 * them.
 *
 * Pins and leases refuse it before anything is removed. Then each group goes as by
 * storage_group_erase(), so that a crash leaves whole groups, or rubbish that the same call takes
 * up again; then the other directories and files of the parent, then the parent. What is no object
 * (a link, a socket) stays, and keeps its directory. */
#include "storage/engine.h"

#include "proto/base/array.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ERASE_DEPTH_MAX 3u /* directories below a parent that are looked into */

struct erase_names {
    char **list;
    uint32_t count, room;
};

static int add_name(void *user, const struct storage_entry *entry)
{
    struct erase_names *names = user;
    ERR_TRY(array_reserve(&names->list, &names->room, names->count, sizeof(char *)));
    names->list[names->count] = strdup(entry->name);
    if (names->list[names->count] == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a name");
    names->count++;
    return 0;
}

static void free_names(struct erase_names *names)
{
    for (uint32_t i = 0; i < names->count; i++)
        free(names->list[i]);
    free(names->list);
}

static int erase_tree(struct storage *storage, const char *prefix, unsigned depth)
{
    struct erase_names names = {0};
    char key[STORAGE_KEY_MAX + 1];
    int error = depth < ERASE_DEPTH_MAX ? storage_list(storage, prefix, add_name, &names) : 0;
    for (uint32_t i = 0; i < names.count && error == 0; i++)
        if (storage_join(key, prefix, names.list[i]))
            error = erase_tree(storage, key, depth + 1);
    free_names(&names);
    if (error == 0)
        error = storage_remove(storage, prefix);
    return error == ERR_NOT_FOUND ? 0 : error;
}

static int refuse_entry(void *user, const struct storage_entry *entry)
{
    return report_error(ERR_DENIED, NULL, "%s is %s", entry->name, (const char *)user);
}

static int refuse_pin(void *user, const struct storage_entry *entry)
{
    const struct storage_group_kind *kind = user;
    return kind->is_group(entry->name)
               ? refuse_entry((void *)(uintptr_t) "pinned: unpin it first", entry)
               : 0;
}

/* Nothing holds any of its groups back; then the names of what is in it. */
static int list_free(struct erase_names *names, struct storage *storage,
                     const struct storage_group_kind *kind, const char *parent)
{
    int error =
        storage_groups_noted(storage, STORAGE_PIN, parent, refuse_pin, (void *)(uintptr_t)kind);
    if (error == 0)
        error = storage_groups_leased(storage, parent, refuse_entry,
                                      (void *)(uintptr_t) "in use: somebody reads or writes it");
    return error == 0 ? storage_list(storage, parent, add_name, names) : error;
}

/* Where nothing can be renamed what has no marker stays where it is: it has nothing that could go,
 * or that lies in the trash already. */
static bool can_be_put(struct storage *storage, const struct storage_group_kind *kind,
                       const char *group)
{
    char marker[STORAGE_KEY_MAX + 1];
    uint64_t bytes;
    return storage_renames(storage) || !storage_join(marker, group, kind->marker) ||
           storage_fetch(storage, marker, NULL, 0, &bytes) != ERR_NOT_FOUND;
}

int storage_trash_put_all(struct storage *storage, const struct storage_group_kind *kind,
                          const char *parent, uint64_t seconds, uint64_t *out_count)
{
    struct erase_names names = {0};
    char key[STORAGE_KEY_MAX + 1];
    *out_count = 0;
    int error = list_free(&names, storage, kind, parent);
    for (uint32_t i = 0; i < names.count && error == 0; i++) {
        if (!kind->is_group(names.list[i]) || !storage_join(key, parent, names.list[i]) ||
            !can_be_put(storage, kind, key))
            continue;
        error = storage_trash_put(storage, kind, key, seconds, true);
        *out_count += error == 0;
    }
    free_names(&names);
    return error;
}

int storage_groups_erase(struct storage *storage, const struct storage_group_kind *kind,
                         const char *parent)
{
    struct erase_names names = {0};
    char key[STORAGE_KEY_MAX + 1];
    int error = list_free(&names, storage, kind, parent);
    if (error == 0 && storage_join(key, parent, STORAGE_TRASH)) /* markers go before objects */
        error = erase_tree(storage, key, 1);
    for (uint32_t i = 0; i < names.count && error == 0; i++)
        if (kind->is_group(names.list[i]) && storage_join(key, parent, names.list[i]))
            error = storage_group_erase(storage, kind, key);
    free_names(&names);
    if (error == 0)
        error = erase_tree(storage, parent, 0);
    return error == 0 ? storage_sync_names(storage, "") : error;
}
