/* list.h - List and Show; see list.c. On the service thread; each answers its call once. */
#ifndef HOLDFAST_CKPTD_FRONT_LIST_H
#define HOLDFAST_CKPTD_FRONT_LIST_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;

void list_call(struct service *service, struct rpc_call *call,
               const Holdfast__V1__ListRequest *request);
void list_show(struct service *service, struct rpc_call *call,
               const Holdfast__V1__ShowRequest *request);

#endif
