/* private.h - shared by the files of storage/store/: names and keys, the small files that protect a
 * checkpoint (notes.c), and the parts of a removal (remove.c, move.c). */
#ifndef HOLDFAST_STORAGE_STORE_PRIVATE_H
#define HOLDFAST_STORAGE_STORE_PRIVATE_H

#include "proto/base/report.h"
#include "proto/format/origin.h"
#include "proto/format/retain.h"
#include "storage/store/store.h"

/* The directories of notes, beside the checkpoints. */
#define NOTE_TOMBSTONES "tombstones"
#define NOTE_LEASES "leases"
#define NOTE_KINDS 2u
extern const char *const note_folders[NOTE_KINDS]; /* by enum store_note */

/* Names of a directory's objects. */
struct names {
    char **list;
    uint32_t count, room;
};

int names_add(struct names *names, const char *name);
void names_free(struct names *names);
/* The parent directory of a checkpoint, or of a note on one; "" for the root. */
void note_parent_of(char out[STORAGE_KEY_MAX + 1], const char *key);
int note_key_in(char out[STORAGE_KEY_MAX + 1], const char *folder, const char *name);
int note_key(char out[STORAGE_KEY_MAX + 1], const char *kind, const char *prefix);
/* Removes a note or a tombstone, durably. */
int note_remove(struct storage *storage, const char *kind, const char *prefix);
/* ERR_NOT_FOUND: there is none. */
int note_find(struct storage *storage, const char *kind, const char *prefix);
int note_publish(struct storage *storage, const char *kind, const char *prefix, const char *text);
/* 0: there is no such note; else `denial`. */
int note_refuse(struct storage *storage, const char *kind, const char *prefix, int denial);
int lease_refuse(struct storage *storage, const char *prefix);
/* A remover without the store's lock has a hold "tombstones/<checkpoint>.<nonce>". A process that
 * leases or pins the checkpoint meanwhile sees it, even if the tombstone is removed. If this
 * process has the lock, hold is NULL. */
struct removing {
    struct storage_hold *hold;
    const char *to; /* where only the manifest moves: its new key, for the tombstone; else NULL */
    bool is_spent;  /* the reserve became the tombstone */
    bool is_again;  /* an earlier removal has left its tombstone */
    char key[STORAGE_KEY_MAX + 1];
};
int remover_begin(struct removing *removing, struct storage *storage, const char *prefix);
/* ERR_BUSY: another remover without the lock works on the checkpoint; or this one has no lock, and
 * a tool has it. */
int remover_alone(const struct removing *removing, struct storage *storage, const char *prefix);
/* ERR_STALE: the hold was lost meanwhile, so another process may have leased the checkpoint. */
int remover_check(const struct removing *removing, struct storage *storage);
/* 0: a remover without the lock works on the checkpoint; ERR_NOT_FOUND: none does. */
int remover_find(struct storage *storage, const char *prefix);
/* Is this the name of such a hold, or its key without the folder? */
bool remover_is_name(const char *name);
/* Removes such a hold whose holder has died. */
int remover_forget(struct storage *storage, const char *name);
/* The directory of notes on checkpoints beside `prefix`. */
int note_folder_beside(char out[STORAGE_KEY_MAX + 1], const char *kind, const char *prefix);

/* Reads size and header of a shard's file in one request; opening it takes two on a bucket.
 * ERR_CORRUPT: also if it is missing. */
int shard_check_header(struct storage *storage, const struct manifest *manifest, uint32_t shard,
                       struct shard_expected *expected);
/* Like store_check(), for the shards at `prefix` of a manifest that is not there now. */
int store_check_shards(struct storage *storage, const char *prefix, const void *text, size_t bytes);

/* ---- removals ---- */

struct members {
    struct names names; /* members of a checkpoint, without the manifest */
    bool has_manifest, has_mark, has_others;
};

/* Lists its present contents; free members->names. */
int removal_list(struct members *members, struct storage *storage, const char *prefix);
/* 0 also if it does not exist. */
int removal_remove_member(struct storage *storage, const char *prefix, const char *name);
/* Removes the rest of a checkpoint whose manifest is gone. */
int removal_remove_rest(struct storage *storage, const char *prefix, const struct members *members);

/* Begins every removal: makes the tombstone, after which no new lease or note holds the checkpoint.
 * Release removing->hold after the manifest is removed, also after an error. `by_operator`: an
 * operator has named the checkpoint. */
int removal_begin(struct removing *removing, struct storage *storage, const char *prefix,
                  bool by_operator);
/* Stops a removal: returns `error`, and removes the tombstone. */
int removal_give_way(const struct removing *removing, struct storage *storage, const char *prefix,
                     int error);
int removal_drop_tombstone(const struct removing *removing, struct storage *storage,
                           const char *prefix);
/* 0: the trash has a manifest, at another key than `besides`, that names the objects of the
 * checkpoint. ERR_NOT_FOUND: it has none. */
int removal_is_parted(struct storage *storage, const char *prefix, const char *besides);
/* Moves it back to `prefix`, from the key that store_move() gave it. Errors as of
 * store_trash_take(). */
int removal_move_back(struct storage *storage, const char *from, const char *prefix);
/* Removes the objects moved to `other`. Keeps all objects at `prefix` that a manifest there, or
 * another one in the trash, names. Errors as of store_move(). */
int removal_empty(struct storage *storage, const char *prefix, const char *other);

#endif
