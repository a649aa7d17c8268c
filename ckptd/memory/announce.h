/* announce.h - what a rank announces of its part of a save; see announce.c. Of stage.c, on the
 * service thread. */
#ifndef HOLDFAST_CKPTD_MEMORY_ANNOUNCE_H
#define HOLDFAST_CKPTD_MEMORY_ANNOUNCE_H

#include <stddef.h>
#include <stdint.h>

struct arena_entry;
struct stage;

/* ERR_MEMORY. What it takes is freed with the stage. */
int announce_open(struct stage *stage, uint32_t num_items);
/* The stage has its image: the first chunks come into it, and the rank hears how far it may go. */
void announce_start(struct stage *stage);
/* A private copy of an entry of the ring. ERR_INVALID: a breach; ERR_MEMORY. */
int announce_take(struct stage *stage, const struct arena_entry *entry);
/* So many words more of the digests of its replicas. ERR_INVALID: it has ended, or has not so many;
 * ERR_MEMORY. */
int announce_replicas(struct stage *stage, const uint64_t *words, size_t count);
/* Moves the window past its leading chunks that are in the file. The last ones stay: they wait for
 * the table, and all of them fit (session.c). */
void announce_move_window(struct stage *stage);
/* The save was given up: no rank needs to wait for room any more. */
void announce_give_up(struct stage *stage);

#endif
