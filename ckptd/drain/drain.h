/* drain.h - committed checkpoints go into the far tier and to the peers, each one after the other,
 * in the background; see drain.c. On the service thread. All of it does nothing where there is no
 * other tier. */
#ifndef HOLDFAST_CKPTD_DRAIN_DRAIN_H
#define HOLDFAST_CKPTD_DRAIN_DRAIN_H

#include "ckptd/tier.h"

struct service;
struct json_t;

int drain_open(struct service *service);   /* behind far_open */
void drain_end(struct service *service);   /* behind tier_end: no image is read any more */
void drain_close(struct service *service); /* behind tier_close */
/* What the tiers hold has changed, or who waits for it: is there something to do? */
void drain_look(struct service *service);
/* A rank may have become quiet. */
void drain_phase_changed(struct service *service);
/* For Status. */
struct json_t *drain_describe(const struct service *service, enum tier_index tier);

#endif
