/* leak_watch.h - looks at ckptd's own memory; see leak_watch.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_STATUS_LEAK_WATCH_H
#define HOLDFAST_CKPTD_STATUS_LEAK_WATCH_H

#include "ckptd/machines/leak.h"

struct service;

/* ERR_INVALID: it takes more at its start than limits.exit_private_bytes. */
int leak_watch_open(struct service *service);
void leak_watch_close(struct service *service);
/* What it has seen, for alarms and status. */
const struct leak *leak_watch_seen(const struct service *service);

#endif
