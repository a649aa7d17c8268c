/* ahead.h - what is read next; see ahead.c. */
#ifndef HOLDFAST_CKPTD_RESTORE_AHEAD_H
#define HOLDFAST_CKPTD_RESTORE_AHEAD_H

#include <stdint.h>

struct service;

/* Starts what is to be read next, as far as the queue and the memory allow. */
void ahead_run(struct service *service);

#endif
