/* retain.h - removes checkpoints by rules; see retain.c. On the service thread; a handler answers
 * its call once. */
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
    struct timer timer;      /* to the start of retention */
    _Atomic uint64_t pruned; /* number of checkpoints since the start; counted at each removal */
};

void retain_prune(struct service *service, struct rpc_call *call,
                  const Holdfast__V1__PruneRequest *request);
/* Applies the rules of the configuration, if any. Does not change this thread's last error. */
void retain_apply(struct run *run);
/* Applies them to all runs, at the start, */
int retain_open(struct service *service);
/* and after a reload of the configuration. */
void retain_reloaded(struct service *service);
void retain_close(struct service *service);

#endif
