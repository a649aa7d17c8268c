/* group.h - private to storage/: what removals of groups share, those for good (group.c) and those
 * that can be taken back (group_move.c). */
#ifndef HOLDFAST_STORAGE_GROUP_H
#define HOLDFAST_STORAGE_GROUP_H

#include "storage/notes.h"

struct members {
    const struct storage_group_kind *kind;
    struct names names; /* ours, without the marker */
    bool has_marker, has_mark, has_others;
};

/* What is in it now; free members->names. */
int group_list(struct members *members, struct storage *storage, const char *prefix);
/* 0 also where it is not there. */
int group_remove_member(struct storage *storage, const char *prefix, const char *name);
/* Of a group whose marker is gone. */
int group_remove_rest(struct storage *storage, const char *prefix, const struct members *members);

/* What every removal begins with: the tombstone, behind which nothing holds the group. Release
 * removing->hold behind the marker, also after an error. `is_told`: a person names the group. */
int group_begin_removal(struct removing *removing, struct storage *storage, const char *prefix,
                        bool is_told);
/* Where a removal goes no further: `error`, and the tombstone goes. */
int group_give_way(const struct removing *removing, struct storage *storage, const char *prefix,
                   int error);
int group_drop_tombstone(const struct removing *removing, struct storage *storage,
                         const char *prefix);
/* 0: a marker lies in the trash at another key than `besides`, and names the objects of the group.
 * ERR_NOT_FOUND: none does. */
int group_is_parted(struct storage *storage, const struct storage_group_kind *kind,
                    const char *prefix, const char *besides);

#endif
