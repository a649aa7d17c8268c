/* undelete.h - restores removed checkpoints from the trash; see undelete.c. On the service thread;
 * a handler answers its call once. */
#ifndef HOLDFAST_CKPTD_KEEP_UNDELETE_H
#define HOLDFAST_CKPTD_KEEP_UNDELETE_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;

void undelete_call(struct service *service, struct rpc_call *call,
                   const Holdfast__V1__UndeleteRequest *request);

#endif
