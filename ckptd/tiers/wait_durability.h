/* wait_durability.h - WaitSave for a better level than local; see wait_durability.c. On the service
 * thread. */
#ifndef HOLDFAST_CKPTD_TIERS_WAIT_DURABILITY_H
#define HOLDFAST_CKPTD_TIERS_WAIT_DURABILITY_H

#include "proto/format/durability.h"
#include "proto/wire/rpc.h"

#include <stdint.h>

struct service;
struct checkpoint;

/* For a committed checkpoint that has not reached the level yet: it is copied first, unthrottled.
 * ckptd answers the call when the checkpoint has the level, when it can never have it, or after
 * `timeout_ms`. */
void wait_durability(struct service *service, struct rpc_call *call, struct checkpoint *checkpoint,
                     enum durability level, uint32_t timeout_ms);
/* The contents of a tier have changed: answers the calls that waited for it. */
void durability_check_waiters(struct service *service);
/* At the shutdown of ckptd: answers the waiting calls. */
void durability_end(struct service *service);

#endif
