/* leak_watch.h - watches ckptd's own memory; see leak_watch.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_STATUS_LEAK_WATCH_H
#define HOLDFAST_CKPTD_STATUS_LEAK_WATCH_H

#include "proto/base/leak.h"

struct service;

/* ERR_INVALID: ckptd uses more than limits.exit_private_bytes at its start. */
int leak_watch_open(struct service *service);
void leak_watch_close(struct service *service);
/* The result, for alarms and status. */
const struct leak *leak_watch_seen(const struct service *service);

#endif
