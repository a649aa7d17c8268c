/* trash.c - removed checkpoints that can be restored.
 *
 *   <run>/<name> ──put──► <run>/trash/<name>.<seconds> ──empty──► gone
 *        ▲                         │
 *        └──────────take───────────┘
 *
 * Put and take are one rename each, so a crash leaves the checkpoint whole under one of the two
 * names. In a bucket only the manifest moves (move.c). A crash between its publication and its
 * removal leaves it under both names: the checkpoint exists, and is_back marks the trash as stale.
 *
 * If several processes share the store, one at a time works on a checkpoint and its trash. A
 * process that removes, puts or empties holds the tombstone of a removal; one that takes it back
 * leases the checkpoint. Each sees the other, and stops. A final removal also removes the manifests
 * in the trash, before the shards.
 *
 * The time of the removal is in the name, so no second object can be lost or contradict it. A
 * checkpoint may be removed, made again and removed again: then the trash has both, and the newest
 * is restored.
 *
 * A key of ckptd sets how long they stay. The store has this term, too, so that a tool without a
 * server removes like the server. Its object also keeps a block of the directory, so that a rename
 * into it needs no space on a full disk. */
#include "storage/store/private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TERM "term"
#define TERM_BYTES 32u
#define SAME_SECONDS_MAX 60u /* removals of one name within a second get later times */

static int term_key(char out[STORAGE_KEY_MAX + 1], const char *run)
{
    return storage_join(out, run, STORE_TRASH "/" TERM)
               ? 0
               : report_error(ERR_INVALID, NULL, "a key in %s is too long", run);
}

int store_trash_term(struct storage *storage, const char *run, uint64_t *out_seconds)
{
    char key[STORAGE_KEY_MAX + 1], text[TERM_BYTES] = "";
    uint64_t bytes;
    *out_seconds = 0;
    int error = term_key(key, run);
    if (error == 0)
        error = storage_fetch(storage, key, text, sizeof(text) - 1, &bytes);
    if (error == 0 && text[0] >= '0' && text[0] <= '9')
        *out_seconds = strtoull(text, NULL, 10);
    return error == ERR_NOT_FOUND ? 0 : error;
}

int store_trash_set_term(struct storage *storage, const char *run, uint64_t seconds)
{
    char key[STORAGE_KEY_MAX + 1], text[TERM_BYTES];
    uint64_t before;
    int error = store_trash_term(storage, run, &before);
    if (error != 0 || before == seconds)
        return error;
    error = term_key(key, run);
    if (error == 0 && before != 0)
        error = storage_remove(storage, key);
    snprintf(text, sizeof(text), "%llu\n", (unsigned long long)seconds);
    return error == 0 && seconds != 0 ? storage_publish(storage, key, text, strlen(text)) : error;
}

/* "<run>/trash/<checkpoint>.<seconds>" of "<run>/<checkpoint>". */
static int trashed_key(char out[STORAGE_KEY_MAX + 1], const char *prefix, uint64_t seconds)
{
    const char *slash = strrchr(prefix, '/');
    CHECK(slash != NULL);
    int length = snprintf(out, STORAGE_KEY_MAX + 1, "%.*s/" STORE_TRASH "/%s.%llu",
                          (int)(slash - prefix), prefix, slash + 1, (unsigned long long)seconds);
    return length <= STORAGE_KEY_MAX
               ? 0
               : report_error(ERR_INVALID, NULL, "the key of %s is too long", prefix);
}

int store_trash_put(struct storage *storage, const char *prefix, uint64_t seconds, bool by_operator)
{
    char key[STORAGE_KEY_MAX + 1];
    int error = ERR_EXISTS;
    for (uint32_t i = 0; i < SAME_SECONDS_MAX && error == ERR_EXISTS; i++) {
        error = trashed_key(key, prefix, seconds + i);
        if (error == 0)
            error = store_move(storage, prefix, key, by_operator);
    }
    return error;
}

int store_trash_take(struct storage *storage, const struct store_trashed *item)
{
    return removal_move_back(storage, item->key, item->prefix);
}

int store_trash_empty(struct storage *storage, const struct store_trashed *item)
{
    return removal_empty(storage, item->prefix, item->key);
}

/* ---- contents ---- */

struct trash_list {
    struct storage *storage;
    const char *run;
    int (*visit)(void *user, const struct store_trashed *item);
    void *user;
};

static int add_file(void *user, const struct storage_entry *entry)
{
    struct store_trashed *item = user;
    item->files += !entry->is_dir;
    item->bytes += entry->is_dir ? 0 : entry->bytes;
    return 0;
}

/* If only a manifest moved, its checkpoint's objects are in their original place. */
static int measure_in_place(const struct trash_list *list, struct store_trashed *item)
{
    char manifest[STORAGE_KEY_MAX + 1];
    uint64_t bytes;
    if (storage_renames(list->storage) || !storage_join(manifest, item->prefix, MANIFEST_NAME))
        return 0;
    int error = storage_fetch(list->storage, manifest, NULL, 0, &bytes);
    item->is_back = error == 0;
    return error == ERR_NOT_FOUND ? storage_list(list->storage, item->prefix, add_file, item)
                                  : error;
}

static int visit_trashed(void *user, const struct storage_entry *entry)
{
    const struct trash_list *list = user;
    struct store_trashed item = {0};
    char folder[STORAGE_KEY_MAX + 1], name[STORAGE_KEY_MAX + 1], *end;
    snprintf(name, sizeof(name), "%s", entry->name);
    char *dot = strrchr(name, '.');
    if (!entry->is_dir || dot == NULL || dot[1] < '0' || dot[1] > '9')
        return 0;
    errno = 0;
    item.seconds = strtoull(dot + 1, &end, 10);
    *dot = '\0';
    if (*end != '\0' || errno != 0 || !storage_join(item.prefix, list->run, name) ||
        !storage_join(folder, list->run, STORE_TRASH) ||
        !storage_join(item.key, folder, entry->name))
        return 0;
    retain_parse(name, &item.step, &item.attempt);
    int error = storage_list(list->storage, item.key, add_file, &item);
    if (error == 0)
        error = measure_in_place(list, &item);
    return error == 0 ? list->visit(list->user, &item) : error;
}

int store_trash_list(struct storage *storage, const char *run,
                     int (*visit)(void *user, const struct store_trashed *item), void *user)
{
    struct trash_list list = {storage, run, visit, user};
    char folder[STORAGE_KEY_MAX + 1];
    return storage_join(folder, run, STORE_TRASH)
               ? storage_list(storage, folder, visit_trashed, &list)
               : 0;
}
