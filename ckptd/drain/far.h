/* far.h - what the far tier and the peers hold, read into the catalog; see far.c. On the service
 * thread. */
#ifndef HOLDFAST_CKPTD_DRAIN_FAR_H
#define HOLDFAST_CKPTD_DRAIN_FAR_H

#include "ckptd/loop.h"
#include "ckptd/tier.h"
#include "proto/rpc.h"

#include <stdbool.h>
#include <stdint.h>

struct service;

/* Who waits for a look; embedded in what goes on behind it. `fault`: why the look came to nothing,
 * code 0: the catalog knows what was there. */
struct far_waiter {
    struct far_waiter *next;
    struct service *service;
    enum tier_index tier;
    struct fault fault;
    struct timer timer;
    void (*go_on)(struct far_waiter *waiter);
};

int far_open(struct service *service);   /* behind scan_store: the first look begins */
void far_end(struct service *service);   /* ckptd ends: who waits hears of it */
void far_close(struct service *service); /* behind tier_end */
/* Has a look come to its end within the last max_age_ms? Without such a tier: always. */
bool far_is_fresh(const struct service *service, enum tier_index tier, int64_t max_age_ms);
/* A look that begins from now on, at most `ms`; then ERR_TIMEOUT. One at a time: who comes
 * meanwhile waits for the next. */
void far_look(struct service *service, enum tier_index tier, struct far_waiter *waiter, int64_t ms);
/* ckptd has removed something in the far tier: a look that is under way is made again. */
void far_changed(struct service *service);
/* Handles the call behind a look at every tier whose last one is older than tier.look_ms. What
 * comes of the look does not matter: what is known is answered. */
void far_first(struct service *service, struct rpc_call *call, const ProtobufCMessage *request,
               void (*handle)(struct service *service, struct rpc_call *call,
                              const ProtobufCMessage *request));

#endif
