/* renew.h - prepares memory of the pool in the background; see renew.c. */
#ifndef HOLDFAST_CKPTD_MEMORY_RENEW_H
#define HOLDFAST_CKPTD_MEMORY_RENEW_H

#include "ckptd/memory/pool.h"

struct service;

int renew_open(struct service *service);
void renew_close(struct service *service);
/* Prepares memory before a save or load waits for it: the whole pool at the start; free memory of
 * an attempt when its ranks are gone. */
void renew_start(struct service *service);
void renew_disown(struct service *service, struct pool_owner owner);

#endif
