/* notes.h - private to storage/: the files beside a group that hold it back, and the names of them,
 * for notes.c, group.c and group_move.c. */
#ifndef HOLDFAST_STORAGE_NOTES_H
#define HOLDFAST_STORAGE_NOTES_H

#include "storage/engine.h"

/* The directories of notes, beside the groups. */
#define NOTE_TOMBSTONES "tombstones"
#define NOTE_LEASES "leases"
#define NOTE_KINDS 2u
extern const char *const note_folders[NOTE_KINDS]; /* by enum storage_note */

/* Names of a directory's objects. */
struct names {
    char **list;
    uint32_t count, room;
};

int names_add(struct names *names, const char *name);
void names_free(struct names *names);
/* The directory that a group, or a note on one, lies in; "" for the root. */
void group_parent_of(char out[STORAGE_KEY_MAX + 1], const char *key);
int group_key_in(char out[STORAGE_KEY_MAX + 1], const char *folder, const char *name);
int note_key(char out[STORAGE_KEY_MAX + 1], const char *kind, const char *prefix);
/* Removes a note or a tombstone, durably. */
int note_remove(struct storage *storage, const char *kind, const char *prefix);
/* ERR_NOT_FOUND: there is none. */
int note_find(struct storage *storage, const char *kind, const char *prefix);
int note_publish(struct storage *storage, const char *kind, const char *prefix, const char *text);
/* 0 while there is no such note; `denial` when there is. */
int note_refuse(struct storage *storage, const char *kind, const char *prefix, int denial);
int lease_refuse(struct storage *storage, const char *prefix);
/* What a remover holds, "tombstones/<group>.<nonce>", where nobody has the store's lock: who leases
 * or pins the group meanwhile sees it, whoever else takes the tombstone away. Where this process
 * has the lock, that says so: hold NULL. */
struct removing {
    struct storage_hold *hold;
    const char *to; /* where the marker goes alone, as the tombstone will tell; NULL: nowhere */
    bool is_spent;  /* the tombstone was the reserve */
    bool is_again;  /* an earlier removal has left its tombstone */
    char key[STORAGE_KEY_MAX + 1];
};
int removing_begin(struct removing *removing, struct storage *storage, const char *prefix);
/* ERR_BUSY: another remover without the lock is at work on the group, or, for who has no lock, a
 * tool has it. */
int removing_alone(const struct removing *removing, struct storage *storage, const char *prefix);
/* ERR_STALE: it was lost meanwhile, so somebody may have leased the group. */
int removing_check(const struct removing *removing, struct storage *storage);
/* 0: a remover without the lock is at work on the group; ERR_NOT_FOUND: none is. */
int removing_find(struct storage *storage, const char *prefix);
/* Is this the name of such a hold, or its key without the folder? */
bool removing_is_name(const char *name);
/* Removes such a one whose holder has died. */
int removing_forget(struct storage *storage, const char *name);
/* The directory of notes on groups beside `prefix`. */
int group_folder_beside(char out[STORAGE_KEY_MAX + 1], const char *kind, const char *prefix);

#endif
