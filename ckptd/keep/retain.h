/* retain.h - which checkpoints go; see retain.c. On the service thread; a
 * handler answers its call once. */
#ifndef HOLDFAST_CKPTD_KEEP_RETAIN_H
#define HOLDFAST_CKPTD_KEEP_RETAIN_H

#include "ckptd/core/loop.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "storage/storage.h"

#include <stdint.h>

struct service;
struct run;

struct retention {
    struct service *service;
    struct timer timer;      /* until retention may begin */
    _Atomic uint64_t pruned; /* checkpoints, since the start; counted as each is removed */
};

void retain_prune(struct service *service, struct rpc_call *call,
                  const Holdfast__V1__PruneRequest *request);
/* Applies the rules of the configuration, if there are any. This thread's last error stays. */
void retain_apply(struct run *run);
/* To all runs, at the start, */
int retain_open(struct service *service);
/* and when the rules may have changed. */
void retain_reloaded(struct service *service);
void retain_close(struct service *service);

#endif
