/* force.h - ForceAttempt: a start without most of the nodes; see force.c. */
#ifndef HOLDFAST_CKPTD_RUN_FORCE_H
#define HOLDFAST_CKPTD_RUN_FORCE_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;

void force_call(struct service *service, struct rpc_call *call,
                const Holdfast__V1__ForceAttemptRequest *request);

#endif
