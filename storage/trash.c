/* trash.c - removed groups that can be taken back.
 *
 *   <parent>/<group> ──put──► <parent>/trash/<group>.<seconds> ──storage_group_discard──► gone
 *          ▲                            │
 *          └───────────take─────────────┘
 *
 * Each arrow but the last is one rename, so a crash leaves the group under one of the two names,
 * whole. The time of the removal is in the name: no second object can be lost or contradict it. A
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

#define TRASH "trash"
#define TERM "term"
#define TERM_BYTES 32u
#define SAME_SECONDS_MAX                                                     \
    60u /* groups of one name that are removed in one second get later times \
         */

static int term_key(char out[STORAGE_KEY_MAX + 1], const char *parent)
{
    return storage_join(out, parent, TRASH "/" TERM)
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
    int length = snprintf(out, STORAGE_KEY_MAX + 1, "%.*s/" TRASH "/%s.%llu", (int)(slash - prefix),
                          prefix, slash + 1, (unsigned long long)seconds);
    return length <= STORAGE_KEY_MAX
               ? 0
               : report_error(ERR_INVALID, NULL, "the key of %s is too long", prefix);
}

int storage_trash_put(struct storage *storage, const char *prefix, uint64_t seconds, bool is_told)
{
    char key[STORAGE_KEY_MAX + 1];
    int error = ERR_EXISTS;
    for (uint32_t i = 0; i < SAME_SECONDS_MAX && error == ERR_EXISTS; i++) {
        error = trashed_key(key, prefix, seconds + i);
        if (error == 0)
            error = storage_group_move(storage, prefix, key, is_told);
    }
    return error;
}

int storage_trash_take(struct storage *storage, const struct storage_trashed *item)
{
    char from[STORAGE_KEY_MAX + 1], to[STORAGE_KEY_MAX + 1];
    snprintf(from, sizeof(from), "%.*s", (int)(strrchr(item->key, '/') - item->key), item->key);
    snprintf(to, sizeof(to), "%.*s", (int)(strrchr(item->group, '/') - item->group), item->group);
    int error = storage_rename(storage, item->key, item->group);
    if (error == 0)
        error = storage_sync_names(storage, to);
    return error == 0 ? storage_sync_names(storage, from) : error;
}

/* ---- what is there ---- */

struct trash_list {
    struct storage *storage;
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
        !storage_join(folder, list->parent, TRASH) || !storage_join(item.key, folder, entry->name))
        return 0;
    int error = storage_list(list->storage, item.key, add_file, &item);
    return error == 0 ? list->visit(list->user, &item) : error;
}

int storage_trash_list(struct storage *storage, const char *parent,
                       int (*visit)(void *user, const struct storage_trashed *item), void *user)
{
    struct trash_list list = {storage, parent, visit, user};
    char folder[STORAGE_KEY_MAX + 1];
    return storage_join(folder, parent, TRASH) ? storage_list(storage, folder, visit_trashed, &list)
                                               : 0;
}
