/* private.h - what the files of storage/store/ share: names and keys, the files beside a
 * checkpoint that hold it back (notes.c), and the parts of a removal (remove.c, move.c). */
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
/* The directory that a checkpoint, or a note on one, lies in; "" for the root. */
void note_parent_of(char out[STORAGE_KEY_MAX + 1], const char *key);
int note_key_in(char out[STORAGE_KEY_MAX + 1], const char *folder, const char *name);
int note_key(char out[STORAGE_KEY_MAX + 1], const char *kind, const char *prefix);
/* Removes a note or a tombstone, durably. */
int note_remove(struct storage *storage, const char *kind, const char *prefix);
/* ERR_NOT_FOUND: there is none. */
int note_find(struct storage *storage, const char *kind, const char *prefix);
int note_publish(struct storage *storage, const char *kind, const char *prefix, const char *text);
/* 0 while there is no such note; `denial` when there is. */
int note_refuse(struct storage *storage, const char *kind, const char *prefix, int denial);
int lease_refuse(struct storage *storage, const char *prefix);
/* What a remover holds, "tombstones/<checkpoint>.<nonce>", where nobody has the store's lock: who
 * leases or pins the checkpoint meanwhile sees it, whoever else takes the tombstone away. Where
 * this process has the lock, that says so: hold NULL. */
struct removing {
    struct storage_hold *hold;
    const char *to; /* where the manifest goes alone, as the tombstone will tell; NULL: nowhere */
    bool is_spent;  /* the tombstone was the reserve */
    bool is_again;  /* an earlier removal has left its tombstone */
    char key[STORAGE_KEY_MAX + 1];
};
int remover_begin(struct removing *removing, struct storage *storage, const char *prefix);
/* ERR_BUSY: another remover without the lock is at work on the checkpoint, or, for who has no lock,
 * a tool has it. */
int remover_alone(const struct removing *removing, struct storage *storage, const char *prefix);
/* ERR_STALE: it was lost meanwhile, so somebody may have leased the checkpoint. */
int remover_check(const struct removing *removing, struct storage *storage);
/* 0: a remover without the lock is at work on the checkpoint; ERR_NOT_FOUND: none is. */
int remover_find(struct storage *storage, const char *prefix);
/* Is this the name of such a hold, or its key without the folder? */
bool remover_is_name(const char *name);
/* Removes such a one whose holder has died. */
int remover_forget(struct storage *storage, const char *name);
/* The directory of notes on checkpoints beside `prefix`. */
int note_folder_beside(char out[STORAGE_KEY_MAX + 1], const char *kind, const char *prefix);

/* Size and header of a shard's file, by one request, where opening it would take two of a bucket.
 * ERR_CORRUPT: also where it is missing. */
int shard_check_header(struct storage *storage, const struct manifest *manifest, uint32_t shard,
                       struct shard_expected *expected);
/* As store_check(), of the shards at `prefix` that a manifest names which is not there now. */
int store_check_shards(struct storage *storage, const char *prefix, const void *text, size_t bytes);

/* ---- removals ---- */

struct members {
    struct names names; /* ours, without the manifest */
    bool has_manifest, has_mark, has_others;
};

/* What is in it now; free members->names. */
int removal_list(struct members *members, struct storage *storage, const char *prefix);
/* 0 also where it is not there. */
int removal_remove_member(struct storage *storage, const char *prefix, const char *name);
/* Of a checkpoint whose manifest is gone. */
int removal_remove_rest(struct storage *storage, const char *prefix, const struct members *members);

/* What every removal begins with: the tombstone, behind which nothing holds the checkpoint. Release
 * removing->hold behind the manifest, also after an error. `is_told`: a person names the
 * checkpoint. */
int removal_begin(struct removing *removing, struct storage *storage, const char *prefix,
                  bool is_told);
/* Where a removal goes no further: `error`, and the tombstone goes. */
int removal_give_way(const struct removing *removing, struct storage *storage, const char *prefix,
                     int error);
int removal_drop_tombstone(const struct removing *removing, struct storage *storage,
                           const char *prefix);
/* 0: a manifest lies in the trash at another key than `besides`, and names the objects of the
 * checkpoint. ERR_NOT_FOUND: none does. */
int removal_is_parted(struct storage *storage, const char *prefix, const char *besides);
/* Back to `prefix`, from the key that store_move() gave it. Errors as of store_trash_take(). */
int removal_move_back(struct storage *storage, const char *from, const char *prefix);
/* Removes what was moved to `other`; of what is at `prefix` nothing that a manifest there, or
 * another one in the trash, names. Errors as of store_move(). */
int removal_empty(struct storage *storage, const char *prefix, const char *other);

#endif
