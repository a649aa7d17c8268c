/* announce.h - a rank's announcements of its part of a save; see announce.c. For stage.c, on the
 * service thread. */
#ifndef HOLDFAST_CKPTD_MEMORY_ANNOUNCE_H
#define HOLDFAST_CKPTD_MEMORY_ANNOUNCE_H

#include <stddef.h>
#include <stdint.h>

struct arena_entry;
struct stage;

/* ERR_MEMORY. Its allocations are freed with the stage. */
int announce_open(struct stage *stage, uint32_t num_items);
/* The stage has its image: places the first chunks in it, and tells the rank how far it may
 * write. */
void announce_start(struct stage *stage);
/* Takes a private copy of a ring entry. ERR_INVALID: a breach; ERR_MEMORY. */
int announce_take(struct stage *stage, const struct arena_entry *entry);
/* Takes `count` more words of the digests of its replicas. ERR_INVALID: the rank has ended, or has
 * no such replicas; ERR_MEMORY. */
int announce_replicas(struct stage *stage, const uint64_t *words, size_t count);
/* Moves the window past its leading chunks that were written. The last ones stay: they wait for the
 * table, and all of them fit (session.c). */
void announce_move_window(struct stage *stage);
/* The save was given up: ranks stop waiting for room. */
void announce_give_up(struct stage *stage);

#endif
