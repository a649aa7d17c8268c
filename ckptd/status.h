/* status.h - what Status answers; see status.c. */
#ifndef HOLDFAST_CKPTD_STATUS_H
#define HOLDFAST_CKPTD_STATUS_H

struct service;

/* What Status answers, JSON to be freed; NULL without memory. */
char *service_status(const struct service *service);

#endif
