/* gc.h - removes rubbish while the store is served; see gc.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_KEEP_GC_H
#define HOLDFAST_CKPTD_KEEP_GC_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdbool.h>
#include <stdint.h>

struct service;

void gc_collect(struct service *service, struct rpc_call *call,
                const Holdfast__V1__GcRequest *request);
/* Is a Gc removing files? Then no prune begins: both remove tombstones. */
bool gc_is_removing(const struct service *service);
/* Does it remove files of this checkpoint? Then no save of it may begin. */
bool gc_removes(const struct service *service, const char *run, uint64_t step, uint64_t attempt);

#endif
