/* give_up.h - AbortSave; see give_up.c. */
#ifndef HOLDFAST_CKPTD_RUN_GIVE_UP_H
#define HOLDFAST_CKPTD_RUN_GIVE_UP_H

#include "proto/ckpt.pb-c.h"
#include "proto/rpc.h"

struct service;

void save_abort(struct service *service, struct rpc_call *call,
                const Holdfast__V1__AbortSaveRequest *request);

#endif
