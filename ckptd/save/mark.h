/* mark.h - a save's mark in the directory of its step; see mark.c. On workers; all of it blocks. */
#ifndef HOLDFAST_CKPTD_SAVE_MARK_H
#define HOLDFAST_CKPTD_SAVE_MARK_H

struct save;

/* Before the first file of a save: the directory has the mark, durably, and the store is where it
 * was. Any number of the save's workers at once; only the first has work. */
int mark_make(struct save *save);
/* The save was given up: the mark, when no shard is left that needs it, and the directory. */
void mark_give_up(const struct save *save);

#endif
