/* renew.h - memory of the pool is made ready in the background; see renew.c. */
#ifndef HOLDFAST_CKPTD_MEMORY_RENEW_H
#define HOLDFAST_CKPTD_MEMORY_RENEW_H

#include "ckptd/memory/pool.h"

struct service;

int renew_open(struct service *service);
void renew_close(struct service *service);
/* Memory that is not ready is made so, before somebody waits for it: of the pool at the start; free
 * memory that the ranks of an attempt had, when they have gone. */
void renew_start(struct service *service);
void renew_disown(struct service *service, struct pool_owner owner);

#endif
