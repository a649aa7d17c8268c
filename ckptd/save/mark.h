/* mark.h - a save's mark in the directory of its step; see mark.c. On workers; the functions
 * block. */
#ifndef HOLDFAST_CKPTD_SAVE_MARK_H
#define HOLDFAST_CKPTD_SAVE_MARK_H

struct save;

/* Before the first file of a save: makes the mark in the directory durable, and checks that the
 * store is in its place. Any number of the save's workers may call it at once; only the first one
 * works. */
int mark_make(struct save *save);
/* The save was given up: removes the mark, once no shard is left, and the directory. */
void mark_give_up(const struct save *save);

#endif
