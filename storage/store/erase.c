/* erase.c - removes a whole run that an operator has named.
 *
 * Pins and leases refuse it before anything is removed. Then each checkpoint is removed as by
 * store_erase(), so a crash leaves whole checkpoints, or rubbish that the same call removes. The
 * other directories and files of the run follow, then the run. Links and sockets stay, with their
 * directory. */
#include "storage/store/private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ERASE_DEPTH_MAX 3u /* levels of directories below a run that are searched */

static int add_name(void *user, const struct storage_entry *entry)
{
    return names_add(user, entry->name);
}

static int erase_tree(struct storage *storage, const char *prefix, unsigned depth)
{
    struct names names = {0};
    char key[STORAGE_KEY_MAX + 1];
    int error = depth < ERASE_DEPTH_MAX ? storage_list(storage, prefix, add_name, &names) : 0;
    for (uint32_t i = 0; i < names.count && error == 0; i++)
        if (storage_join(key, prefix, names.list[i]))
            error = erase_tree(storage, key, depth + 1);
    names_free(&names);
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
    (void)user;
    return retain_is_checkpoint(entry->name)
               ? refuse_entry((void *)(uintptr_t) "pinned: unpin it first", entry)
               : 0;
}

/* Lists the names in the run, if no note or lease protects any of its checkpoints. */
static int list_free(struct names *names, struct storage *storage, const char *run)
{
    int error = store_for_notes(storage, STORE_PIN, run, refuse_pin, NULL);
    if (error == 0)
        error = store_for_leases(storage, run, refuse_entry,
                                 (void *)(uintptr_t) "in use: a process reads or writes it");
    return error == 0 ? storage_list(storage, run, add_name, names) : error;
}

/* If the back-end cannot rename, a directory without a manifest stays: its manifest is lost, or in
 * the trash already. */
static bool can_be_put(struct storage *storage, const char *checkpoint)
{
    char manifest[STORAGE_KEY_MAX + 1];
    uint64_t bytes;
    return storage_renames(storage) || !storage_join(manifest, checkpoint, MANIFEST_NAME) ||
           storage_fetch(storage, manifest, NULL, 0, &bytes) != ERR_NOT_FOUND;
}

int store_trash_put_all(struct storage *storage, const char *run, uint64_t seconds,
                        uint64_t *out_count)
{
    struct names names = {0};
    char key[STORAGE_KEY_MAX + 1];
    *out_count = 0;
    int error = list_free(&names, storage, run);
    for (uint32_t i = 0; i < names.count && error == 0; i++) {
        if (!retain_is_checkpoint(names.list[i]) || !storage_join(key, run, names.list[i]) ||
            !can_be_put(storage, key))
            continue;
        error = store_trash_put(storage, key, seconds, true);
        *out_count += error == 0;
    }
    names_free(&names);
    return error;
}

int store_erase_run(struct storage *storage, const char *run)
{
    struct names names = {0};
    char key[STORAGE_KEY_MAX + 1];
    int error = list_free(&names, storage, run);
    if (error == 0 && storage_join(key, run, STORE_TRASH)) /* remove manifests before objects */
        error = erase_tree(storage, key, 1);
    for (uint32_t i = 0; i < names.count && error == 0; i++)
        if (retain_is_checkpoint(names.list[i]) && storage_join(key, run, names.list[i]))
            error = store_erase(storage, key);
    names_free(&names);
    if (error == 0)
        error = erase_tree(storage, run, 0);
    return error == 0 ? storage_sync_names(storage, "") : error;
}
