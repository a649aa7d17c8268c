/* room.h - is there memory for what a start is going to allocate? */
#ifndef HOLDFAST_TRAINER_ROOM_H
#define HOLDFAST_TRAINER_ROOM_H

#include "trainer/run/memory.h"

/* Bytes that this process may still take: MemAvailable and free swap, bounded by the limits of its
 * control groups (versions 1 and 2). `root`: "", or a folder with proc and sys for tests.
 * UINT64_MAX: the system does not say. */
uint64_t room_available(const char *root);

/* ERR_INVALID when so many ranks of this plan, all on this machine or device (`what`), need more
 * than is available; the message has the plan's largest parts. Nothing is allocated. */
int room_check(const struct memory *plan, const char *what, uint32_t num_ranks, uint64_t available);
/* Likewise of a device's own memory, before any is taken. Ranks that are threads of this process
 * take the devices in turn; a process has one to itself: num_threads is 1. ERR_UNAVAILABLE. */
int room_check_device(const struct memory *plan, struct device *device, uint32_t num_threads);

#endif
