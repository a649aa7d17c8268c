/* store_watch.h - watches whether the directory of the store is still in its place. See
 * store_watch.c. */
#ifndef HOLDFAST_CKPTD_MEMORY_STORE_WATCH_H
#define HOLDFAST_CKPTD_MEMORY_STORE_WATCH_H

#include "ckptd/core/directory.h"
#include "ckptd/core/loop.h"

struct service;

struct store_watch {
    struct service *service;
    struct directory directory;
    struct timer timer;
    struct job job;
    struct fault fault; /* of the last check */
};

/* Notes the directory that was opened. */
int store_watch_note(struct service *service, const char *where);
/* Begins to check it every PLACE_CHECK_MS. */
int store_watch_start(struct service *service);
/* ERR_IO: the store was moved away, or another disk is mounted there. Any thread. */
int store_watch_check(const struct store_watch *place);
void store_watch_close(struct service *service);

#endif
