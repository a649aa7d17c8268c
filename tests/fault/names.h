/* names.h - private to fault: the names that a power loss may undo.
 *
 * The wrapped back-end does everything at once; this keeps the list of changes to names that no
 * sync_names has covered yet. A created name is there and listed; a crash may remove it. A removed
 * name is kept in the wrapped back-end and hidden; a crash may bring it back, a sync removes it for
 * good. A renamed one has its new name. Until both directories were synced a crash may restore the
 * old one: as with a journal it has one of the two. Changes inside a renamed directory move with
 * it. Threads: fault holds one mutex around every call. */
#ifndef HOLDFAST_TESTS_FAULT_NAMES_H
#define HOLDFAST_TESTS_FAULT_NAMES_H

#include "storage/storage.h"

enum name_change_kind { NAME_CREATED, NAME_REMOVED, NAME_RENAMED };

struct name_change {
    struct name_change *next;
    enum name_change_kind kind;
    char key[STORAGE_KEY_MAX + 1];
    char from[STORAGE_KEY_MAX + 1]; /* NAME_RENAMED: the key before */
    bool is_synced, is_from_synced; /* NAME_RENAMED: the directory of each */
};

struct fault_names {
    struct storage *inner;
    struct name_change *changes; /* oldest first */
};

/* Was `key`, or a directory above it, removed? */
bool fault_names_hidden(const struct fault_names *names, const char *key);
/* Before `key` is created: notes the directories that will be made, ends hidden removals on the
 * way. */
int fault_names_prepare(struct fault_names *names, const char *key);
/* After `key` was created. */
int fault_names_created(struct fault_names *names, const char *key);
/* Removes as the caller sees it: ERR_NOT_FOUND, ERR_EXISTS for a directory that is not empty. */
int fault_names_remove(struct fault_names *names, const char *key);
/* Renames, as storage_rename() says. */
int fault_names_rename(struct fault_names *names, const char *key, const char *other);
/* After the wrapped back-end removed the file of a hold: if the file was durable a crash brings it
 * back, without a holder. */
void fault_names_released(struct fault_names *names, const char *key);
/* The names in `prefix` and in every directory above it are durable from now on. */
int fault_names_synced(struct fault_names *names, const char *prefix);
/* The same after `key` was published. */
int fault_names_published(struct fault_names *names, const char *key);
/* Entries below `prefix` that are not hidden. visit() runs afterwards, so it may call the store;
 * the caller holds no mutex for fault_names_visit. */
struct name_list;
int fault_names_list(struct fault_names *names, struct name_list **out, const char *prefix);
int fault_names_visit(const struct name_list *list,
                      int (*visit)(void *user, const struct storage_entry *entry), void *user);
void fault_names_free_list(struct name_list *list);
/* Power is lost: lose(user) says of each change whether it is undone. Nothing is pending
 * afterwards. */
int fault_names_crash(struct fault_names *names, bool (*lose)(void *user), void *user);
void fault_names_deinit(struct fault_names *names);

#endif
