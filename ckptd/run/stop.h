/* stop.h - Stop and AskSave: an operator ends a run, or requests a save of it; see stop.c. */
#ifndef HOLDFAST_CKPTD_RUN_STOP_H
#define HOLDFAST_CKPTD_RUN_STOP_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;

void stop_call(struct service *service, struct rpc_call *call,
               const Holdfast__V1__StopRequest *request);
void ask_save_call(struct service *service, struct rpc_call *call,
                   const Holdfast__V1__AskSaveRequest *request);

#endif
