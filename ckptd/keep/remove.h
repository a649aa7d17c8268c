/* remove.h - removes a checkpoint or run that an operator names; see remove.c. On the service
 * thread. */
#ifndef HOLDFAST_CKPTD_KEEP_REMOVE_H
#define HOLDFAST_CKPTD_KEEP_REMOVE_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;

void remove_call(struct service *service, struct rpc_call *call,
                 const Holdfast__V1__RemoveRequest *request);

#endif
