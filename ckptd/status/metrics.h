/* metrics.h - the numbers of Status as a file; see metrics.c. */
#ifndef HOLDFAST_CKPTD_STATUS_METRICS_H
#define HOLDFAST_CKPTD_STATUS_METRICS_H

struct service;

int metrics_open(struct service *service);
void metrics_close(struct service *service); /* call after loop_close() */

#endif
