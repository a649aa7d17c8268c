/* wait_durability.h - WaitSave for a better level than local; see wait_durability.c. On the service
 * thread. */
#ifndef HOLDFAST_CKPTD_TIERS_WAIT_DURABILITY_H
#define HOLDFAST_CKPTD_TIERS_WAIT_DURABILITY_H

#include "proto/format/durability.h"
#include "proto/wire/rpc.h"

#include <stdint.h>

struct service;
struct checkpoint;

/* For a committed checkpoint that has not reached the level yet: it goes first, at full speed. The
 * call is answered when it has it, when it never will, or after `timeout_ms`. */
void wait_durability(struct service *service, struct rpc_call *call, struct checkpoint *checkpoint,
                     enum durability level, uint32_t timeout_ms);
/* What the tiers hold has changed: who waits for that? */
void durability_check_waiters(struct service *service);
void durability_end(struct service *service); /* ckptd ends: calls that wait are answered */

#endif
