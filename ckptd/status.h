/* status.h - what Status answers; see status.c. */
#ifndef HOLDFAST_CKPTD_STATUS_H
#define HOLDFAST_CKPTD_STATUS_H

#include <stdbool.h>

struct service;

/* What Status answers, JSON to be freed; NULL without memory. `own`: what other nodes show of this
 * one (nodes/told.c), at most TOLD_BYTES_MAX. */
char *service_status(const struct service *service, bool own);

#endif
