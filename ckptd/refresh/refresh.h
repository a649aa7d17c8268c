/* refresh.h - what a tier holds, the local one like the others, read into the catalog while ckptd
 * serves; see refresh.c. One look at a tier at a time; who comes meanwhile waits for the next. On
 * the service thread. */
#ifndef HOLDFAST_CKPTD_REFRESH_REFRESH_H
#define HOLDFAST_CKPTD_REFRESH_REFRESH_H

#include "ckptd/core/loop.h"
#include "ckptd/core/tier.h"
#include "proto/base/report.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdbool.h>
#include <stdint.h>

struct service;

/* Embedded in what goes on behind a look; lies still until go_on, which is called once. `fault`:
 * why the look came to nothing; code 0: the catalog knows what was there. */
struct refresh_waiter {
    struct refresh_waiter *next;
    struct service *service;
    enum tier_index tier;
    struct fault fault;
    struct timer timer;
    void (*go_on)(struct refresh_waiter *waiter);
};

int refresh_open(struct service *service);   /* behind scan_store: looks at other tiers begin */
void refresh_end(struct service *service);   /* ckptd ends: whoever waits hears of it */
void refresh_close(struct service *service); /* behind tier_end */
/* Calls go_on when a look that begins from now on has ended, or after `ms` with ERR_TIMEOUT. */
void refresh_tier(struct service *service, enum tier_index tier, struct refresh_waiter *waiter,
                  int64_t ms);
#define REFRESH_STORE_MS 1000 /* for the local tier */
/* ckptd has removed something in the far tier: a look that is under way is made again. */
void refresh_changed(struct service *service);
/* Looks at the local tier, and at each other one that was not looked at for max_age_ms, -1: at all,
 * and then has the call handled, whatever came of the looks. */
void refresh_first(struct service *service, int64_t max_age_ms, struct rpc_call *call,
                   const ProtobufCMessage *request,
                   void (*handle)(struct service *service, struct rpc_call *call,
                                  const ProtobufCMessage *request));
/* Rescan: a look at the local tier that reads all names, and what came of it. */
void refresh_call(struct service *service, struct rpc_call *call,
                  const Holdfast__V1__RescanRequest *request);

#endif
