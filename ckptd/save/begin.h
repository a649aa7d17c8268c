/* begin.h - BeginSave, and images for ranks; see begin.c. */
#ifndef HOLDFAST_CKPTD_SAVE_BEGIN_H
#define HOLDFAST_CKPTD_SAVE_BEGIN_H

#include "ckptd/memory/pool.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdint.h>

struct service;

void save_begin(struct service *service, struct rpc_call *call,
                const Holdfast__V1__BeginSaveRequest *request);
void save_begin_open(struct service *service);
void save_begin_close(struct service *service); /* answers the calls that wait */

#endif
