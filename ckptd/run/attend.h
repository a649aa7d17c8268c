/* attend.h - Attend: a rank of another node tells what it does, and learns what it is asked. */
#ifndef HOLDFAST_CKPTD_RUN_ATTEND_H
#define HOLDFAST_CKPTD_RUN_ATTEND_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;

void attend_call(struct service *service, struct rpc_call *call,
                 const Holdfast__V1__AttendRequest *request);

#endif
