/* give_up.h - AbortSave; see give_up.c. */
#ifndef HOLDFAST_CKPTD_SAVE_GIVE_UP_H
#define HOLDFAST_CKPTD_SAVE_GIVE_UP_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;

void save_abort(struct service *service, struct rpc_call *call,
                const Holdfast__V1__AbortSaveRequest *request);

#endif
