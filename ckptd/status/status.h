/* status.h - what Status answers; see status.c. */
#ifndef HOLDFAST_CKPTD_STATUS_STATUS_H
#define HOLDFAST_CKPTD_STATUS_STATUS_H

#include <stdbool.h>
#include <stdint.h>

struct service;

/* What Status answers, JSON to be freed; NULL without memory. `own`: what other nodes show of this
 * one (peers/peer_status.c), at most PEER_STATUS_BYTES_MAX. expected_bytes: not 0 and not `own`:
 * whether so much can be saved is told as well. */
char *service_status(const struct service *service, bool own, uint64_t expected_bytes);

#endif
