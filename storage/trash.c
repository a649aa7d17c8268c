/* trash.c - removed groups that can be taken back.
 *
 *   <parent>/<group> ──put──► <parent>/trash/<group>.<seconds> ──empty──► gone
 *          ▲                            │
 *          └───────────take─────────────┘
 *
 * Each arrow but the last is one rename, so a crash leaves the group under one of the two names,
 * whole. A bucket renames nothing: there the marker alone moves, by an exclusive publication of
 * what it says under the other name, and the removal of the first. The shards stay where they are.
 * A crash between the two leaves the marker under both names: the group exists, and what lies in
 * the trash counts as no trash (is_back) until it is emptied.
 *
 * Where several processes share the store, one at a time has a group and its trash. Who removes,
 * puts or empties holds the tombstone of a removal, who takes back leases the group: each sees the
 * other, and gives way (group_move.c, notes.c). A removal for good takes what the trash has of the
 * group along, before the shards.
 *
 * The time of the removal is in the name: no second object can be lost or contradict it. A
 * group may be removed, made again and removed again: both lie in the trash, and the newest is
 * taken back.
 *
 * How long groups stay is the business of whoever serves the store. The term lies in the store all
 * the same, so that a tool without a server removes as the server would. Its object also keeps a
 * block of the directory, so that a rename into it needs no room on a full disk. */
#include "storage/engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TERM "term"
#define TERM_BYTES 32u
#define SAME_SECONDS_MAX                                                     \
    60u /* groups of one name that are removed in one second get later times \
         */

static int term_key(char out[STORAGE_KEY_MAX + 1], const char *parent)
{
    return storage_join(out, parent, STORAGE_TRASH "/" TERM)
               ? 0
               : report_error(ERR_INVALID, NULL, "a key in %s is too long", parent);
}

int storage_trash_term(struct storage *storage, const char *parent, uint64_t *out_seconds)
{
    char key[STORAGE_KEY_MAX + 1], text[TERM_BYTES] = "";
    uint64_t bytes;
    *out_seconds = 0;
    int error = term_key(key, parent);
    if (error == 0)
        error = storage_fetch(storage, key, text, sizeof(text) - 1, &bytes);
    if (error == 0 && text[0] >= '0' && text[0] <= '9')
        *out_seconds = strtoull(text, NULL, 10);
    return error == ERR_NOT_FOUND ? 0 : error;
}

int storage_trash_set_term(struct storage *storage, const char *parent, uint64_t seconds)
{
    char key[STORAGE_KEY_MAX + 1], text[TERM_BYTES];
    uint64_t before;
    int error = storage_trash_term(storage, parent, &before);
    if (error != 0 || before == seconds)
        return error;
    error = term_key(key, parent);
    if (error == 0 && before != 0)
        error = storage_remove(storage, key);
    snprintf(text, sizeof(text), "%llu\n", (unsigned long long)seconds);
    return error == 0 && seconds != 0 ? storage_publish(storage, key, text, strlen(text)) : error;
}

/* "<parent>/trash/<group>.<seconds>" of "<parent>/<group>". */
static int trashed_key(char out[STORAGE_KEY_MAX + 1], const char *prefix, uint64_t seconds)
{
    const char *slash = strrchr(prefix, '/');
    CHECK(slash != NULL);
    int length = snprintf(out, STORAGE_KEY_MAX + 1, "%.*s/" STORAGE_TRASH "/%s.%llu",
                          (int)(slash - prefix), prefix, slash + 1, (unsigned long long)seconds);
    return length <= STORAGE_KEY_MAX
               ? 0
               : report_error(ERR_INVALID, NULL, "the key of %s is too long", prefix);
}

int storage_trash_put(struct storage *storage, const struct storage_group_kind *kind,
                      const char *prefix, uint64_t seconds, bool is_told)
{
    char key[STORAGE_KEY_MAX + 1];
    int error = ERR_EXISTS;
    for (uint32_t i = 0; i < SAME_SECONDS_MAX && error == ERR_EXISTS; i++) {
        error = trashed_key(key, prefix, seconds + i);
        if (error == 0)
            error = storage_group_move(storage, kind, prefix, key, is_told);
    }
    return error;
}

int storage_trash_take(struct storage *storage, const struct storage_group_kind *kind,
                       const struct storage_trashed *item)
{
    return storage_group_move_back(storage, kind, item->key, item->group);
}

int storage_trash_empty(struct storage *storage, const struct storage_group_kind *kind,
                        const struct storage_trashed *item)
{
    return storage_group_empty(storage, kind, item->group, item->key);
}

/* ---- what is there ---- */

struct trash_list {
    struct storage *storage;
    const struct storage_group_kind *kind;
    const char *parent;
    int (*visit)(void *user, const struct storage_trashed *item);
    void *user;
};

static int add_file(void *user, const struct storage_entry *entry)
{
    struct storage_trashed *item = user;
    item->files += !entry->is_dir;
    item->bytes += entry->is_dir ? 0 : entry->bytes;
    return 0;
}

/* Where a marker moves alone, its group's objects are where they were. */
static int look_at_group(const struct trash_list *list, struct storage_trashed *item)
{
    char marker[STORAGE_KEY_MAX + 1];
    uint64_t bytes;
    if (storage_renames(list->storage) || !storage_join(marker, item->group, list->kind->marker))
        return 0;
    int error = storage_fetch(list->storage, marker, NULL, 0, &bytes);
    item->is_back = error == 0;
    return error == ERR_NOT_FOUND ? storage_list(list->storage, item->group, add_file, item)
                                  : error;
}

static int visit_trashed(void *user, const struct storage_entry *entry)
{
    const struct trash_list *list = user;
    struct storage_trashed item = {0};
    char folder[STORAGE_KEY_MAX + 1], name[STORAGE_KEY_MAX + 1], *end;
    snprintf(name, sizeof(name), "%s", entry->name);
    char *dot = strrchr(name, '.');
    if (!entry->is_dir || dot == NULL || dot[1] < '0' || dot[1] > '9')
        return 0;
    errno = 0;
    item.seconds = strtoull(dot + 1, &end, 10);
    *dot = '\0';
    if (*end != '\0' || errno != 0 || !storage_join(item.group, list->parent, name) ||
        !storage_join(folder, list->parent, STORAGE_TRASH) ||
        !storage_join(item.key, folder, entry->name))
        return 0;
    int error = storage_list(list->storage, item.key, add_file, &item);
    if (error == 0)
        error = look_at_group(list, &item);
    return error == 0 ? list->visit(list->user, &item) : error;
}

int storage_trash_list(struct storage *storage, const struct storage_group_kind *kind,
                       const char *parent,
                       int (*visit)(void *user, const struct storage_trashed *item), void *user)
{
    struct trash_list list = {storage, kind, parent, visit, user};
    char folder[STORAGE_KEY_MAX + 1];
    return storage_join(folder, parent, STORAGE_TRASH)
               ? storage_list(storage, folder, visit_trashed, &list)
               : 0;
}
