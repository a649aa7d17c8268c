/* space_check.h - disk space for a checkpoint that comes from another tier into the local one; see
 * space_check.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_TIERS_SPACE_CHECK_H
#define HOLDFAST_CKPTD_TIERS_SPACE_CHECK_H

#include "ckptd/core/ledger.h"

#include <stdint.h>

struct service;

/* ERR_SPACE: it does not fit beside the space promised to saves. */
int space_promise(struct ledger_promise *out, struct service *service, uint64_t bytes,
                  uint64_t shards);
/* A file of that many bytes was made from the promise. */
void space_use(struct ledger_promise *promise, struct service *service, uint64_t bytes);
/* Returns the rest of the promise, which may be empty. */
void space_end(struct ledger_promise *promise, struct service *service);

#endif
