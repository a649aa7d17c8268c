/* pins.h - Pin; see pins.c. On the service thread; the handler answers its call once. */
#ifndef HOLDFAST_CKPTD_KEEP_PINS_H
#define HOLDFAST_CKPTD_KEEP_PINS_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;

void pins_call(struct service *service, struct rpc_call *call,
               const Holdfast__V1__PinRequest *request);

#endif
