/* status.h - the reply of Status; see status.c. */
#ifndef HOLDFAST_CKPTD_STATUS_STATUS_H
#define HOLDFAST_CKPTD_STATUS_STATUS_H

#include <stdbool.h>
#include <stdint.h>

struct service;

/* The reply of Status, JSON that the caller frees; NULL without memory. `own`: only the fields that
 * other nodes show of this one (peers/peer_status.c), at most PEER_STATUS_BYTES_MAX.
 * expected_bytes: unless 0 or `own`, the reply also says whether that much can be saved. */
char *service_status(const struct service *service, bool own, uint64_t expected_bytes);

#endif
