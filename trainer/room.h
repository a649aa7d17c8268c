/* room.h - is there memory for what a start is going to allocate? */
#ifndef HOLDFAST_TRAINER_ROOM_H
#define HOLDFAST_TRAINER_ROOM_H

#include "trainer/run/memory.h"

/* Bytes that this process may still take: MemAvailable and free swap, bounded by the limits of its
 * control groups (versions 1 and 2). `root`: "", or a folder with proc and sys for tests.
 * UINT64_MAX: the system does not say. */
uint64_t room_available(const char *root);

/* ERR_INVALID when so many ranks of this plan, all on this machine, need more than is available;
 * the message has the plan's largest parts. Nothing is allocated. */
int room_check(const struct memory *plan, uint32_t num_ranks, uint64_t available);

#endif
