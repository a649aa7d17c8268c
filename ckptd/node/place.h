/* place.h - the directory of the store: is it still where it was? See place.c. */
#ifndef HOLDFAST_CKPTD_NODE_PLACE_H
#define HOLDFAST_CKPTD_NODE_PLACE_H

#include "ckptd/loop.h"
#include "ckptd/node/directory.h"

struct service;

struct place {
    struct service *service;
    struct directory directory;
    struct timer timer;
    struct job job;
    struct fault fault; /* of the last look */
};

/* Notes what was opened. */
int place_note(struct service *service, const char *where);
/* From now on it is looked at every PLACE_LOOK_MS. */
int place_watch(struct service *service);
/* ERR_IO: the store was moved away, or another disk is mounted there. Any thread. */
int place_check(const struct place *place);
void place_close(struct service *service);

#endif
