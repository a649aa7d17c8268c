/* reload.h - reloads the configuration while ckptd serves; see reload.c. */
#ifndef HOLDFAST_CKPTD_FRONT_RELOAD_H
#define HOLDFAST_CKPTD_FRONT_RELOAD_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;

int reload_open(struct service *service);
void reload_close(struct service *service); /* call after loop_close() */
void reload_call(struct service *service, struct rpc_call *call,
                 const Holdfast__V1__ReloadRequest *request);
/* The same for a signal; logs the result. Any thread. */
void reload_ask(struct service *service);

#endif
