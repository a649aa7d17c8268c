/* keep.h - what goes and what stays, and what tools ask of ckptd about checkpoints that are there,
 * or nearly: see retain.c, admit.c, gc.c. On the service thread; a handler answers its call once.
 */
#ifndef HOLDFAST_CKPTD_KEEP_H
#define HOLDFAST_CKPTD_KEEP_H

#include "ckptd/ckptd.h"

/* ---- retain.c ---- */

/* A checkpoint's directory as storage sees it. */
extern const struct storage_group_kind checkpoint_kind;

void retain_prune(struct service *service, struct rpc_call *call,
                  const Holdfast__V1__PruneRequest *request);
void retain_pin(struct service *service, struct rpc_call *call,
                const Holdfast__V1__PinRequest *request);
/* Which of its checkpoints are pinned, and with which notes. Blocks; before the service runs. */
int retain_read_pins(struct run *run);
/* Applies the rules of the configuration, if there are any. This thread's last error stays. */
void retain_apply(struct run *run);
/* To all runs, when the time has come after the start. */
void retain_open(struct service *service);

/* ---- admit.c ---- */

void admit_release(struct service *service, struct rpc_call *call,
                   const Holdfast__V1__ReleaseRequest *request);
void admit_adopt(struct service *service, struct rpc_call *call,
                 const Holdfast__V1__AdoptRequest *request);
/* ERR_BUSY: no attempt can be opened now. */
int admit_report_busy(const struct run *run);

/* ---- gc.c ---- */

void gc_collect(struct service *service, struct rpc_call *call,
                const Holdfast__V1__GcRequest *request);
/* Is a Gc removing what it found? Then no prune begins: both take tombstones away. */
bool gc_is_removing(const struct service *service);
/* Is what there is of this checkpoint among it? Then nobody may begin it. */
bool gc_removes(const struct service *service, const char *run, uint64_t step, uint64_t attempt);

#endif
