/* admit.h - Adopt and Release; see admit.c. On the service thread; a handler answers its call once.
 */
#ifndef HOLDFAST_CKPTD_KEEP_ADMIT_H
#define HOLDFAST_CKPTD_KEEP_ADMIT_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;

void admit_release(struct service *service, struct rpc_call *call,
                   const Holdfast__V1__ReleaseRequest *request);
void admit_adopt(struct service *service, struct rpc_call *call,
                 const Holdfast__V1__AdoptRequest *request);

#endif
