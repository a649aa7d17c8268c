/* verified.h - KeepVerified; see verified.c. On the service thread; the handler answers its call
 * once. */
#ifndef HOLDFAST_CKPTD_SCRUB_VERIFIED_H
#define HOLDFAST_CKPTD_SCRUB_VERIFIED_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;

void verified_call(struct service *service, struct rpc_call *call,
                   const Holdfast__V1__KeepVerifiedRequest *request);

#endif
