/* rescan.h - looks whether checkpoints came into the store, or left it, without ckptd; see
 * rescan.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_KEEP_RESCAN_H
#define HOLDFAST_CKPTD_KEEP_RESCAN_H

#include "ckptd/tiers/refresh.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;

void rescan_call(struct service *service, struct rpc_call *call,
                 const Holdfast__V1__RescanRequest *request);
int rescan_open(struct service *service);
/* Behind loop_run: calls that still wait go on. */
void rescan_end(struct service *service);
void rescan_close(struct service *service); /* behind loop_close */

#endif
