/* drain.h - committed checkpoints go into the far tier, one after the other, in the background; see
 * drain.c. On the service thread. All of it does nothing where there is no far tier. */
#ifndef HOLDFAST_CKPTD_DRAIN_DRAIN_H
#define HOLDFAST_CKPTD_DRAIN_DRAIN_H

#include "proto/rpc.h"

#include <stdint.h>

struct service;
struct checkpoint;
struct json_t;

int drain_open(struct service *service);   /* behind far_open */
void drain_end(struct service *service);   /* ckptd ends: calls that wait are answered */
void drain_close(struct service *service); /* behind tier_close */
/* What the tiers hold has changed, or who waits for it: is there something to do? */
void drain_look(struct service *service);
/* A rank may have become quiet. */
void drain_phase_changed(struct service *service);
/* WaitSave for a committed checkpoint that the far tier lacks: it drains first, at full speed. The
 * call is answered when it is there, when it never will be, or after `timeout_ms`. */
void drain_wait(struct service *service, struct rpc_call *call, struct checkpoint *checkpoint,
                uint32_t timeout_ms);
/* For Status. */
struct json_t *drain_describe(const struct service *service);

#endif
