/* open.h - OpenLoad; see open.c. */
#ifndef HOLDFAST_CKPTD_RESTORE_OPEN_H
#define HOLDFAST_CKPTD_RESTORE_OPEN_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;

void restore_open_load(struct service *service, struct rpc_call *call,
                       const Holdfast__V1__OpenLoadRequest *request);

#endif
