/* refresh.h - reads the contents of a tier, including the local one, into the catalog while ckptd
 * serves; see refresh.c. One scan of a tier at a time; later callers wait for the next. On the
 * service thread. */
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

/* Embedded in the waiting object; it must not move until go_on, which is called once. `fault`: why
 * the scan failed; code 0: the catalog has the tier's contents. */
struct refresh_waiter {
    struct refresh_waiter *next;
    struct service *service;
    enum tier_index tier;
    struct fault fault;
    struct timer timer;
    void (*go_on)(struct refresh_waiter *waiter);
};

/* Call after scan_store(): scans of other tiers begin. */
int refresh_open(struct service *service);
void refresh_end(struct service *service);   /* at shutdown: answers the waiters */
void refresh_close(struct service *service); /* call after tier_end() */
/* Calls go_on when a scan that begins from now on has ended, or after `ms` with ERR_TIMEOUT. */
void refresh_tier(struct service *service, enum tier_index tier, struct refresh_waiter *waiter,
                  int64_t ms);
#define REFRESH_STORE_MS 1000 /* for the local tier */
/* ckptd has removed a checkpoint in the far tier: a scan in progress is repeated. */
void refresh_changed(struct service *service);
/* Scans the local tier, and each other one without a scan within max_age_ms (-1: ever). Then has
 * the call handled, even after an error. */
void refresh_first(struct service *service, int64_t max_age_ms, struct rpc_call *call,
                   const ProtobufCMessage *request,
                   void (*handle)(struct service *service, struct rpc_call *call,
                                  const ProtobufCMessage *request));
/* Rescan: a scan of the local tier that reads all names; replies with the result. */
void refresh_call(struct service *service, struct rpc_call *call,
                  const Holdfast__V1__RescanRequest *request);

#endif
