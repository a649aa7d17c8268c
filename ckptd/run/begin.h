/* begin.h - BeginSave, and the images that ranks are lent; see begin.c. */
#ifndef HOLDFAST_CKPTD_RUN_BEGIN_H
#define HOLDFAST_CKPTD_RUN_BEGIN_H

#include "ckptd/node/pool.h"
#include "proto/ckpt.pb-c.h"
#include "proto/rpc.h"

#include <stdint.h>

struct run;
struct service;
struct session;

void save_begin(struct service *service, struct rpc_call *call,
                const Holdfast__V1__BeginSaveRequest *request);
/* A rank of another node, which coordinates nothing, begins its part: the nonce of the save. */
int save_begin_remote(struct service *service, const Holdfast__V1__BeginPartRequest *request,
                      uint32_t node, char out_nonce[33]);
void save_begin_open(struct service *service);
void save_begin_close(struct service *service); /* answers those that wait */

#endif
