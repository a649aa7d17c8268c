/* begin.h - BeginSave, and the images that ranks are lent; see begin.c. */
#ifndef HOLDFAST_CKPTD_RUN_BEGIN_H
#define HOLDFAST_CKPTD_RUN_BEGIN_H

#include "ckptd/node/pool.h"
#include "proto/ckpt.pb-c.h"
#include "proto/rpc.h"

#include <stdint.h>

struct service;
struct session;

/* Gives a new session the images of its first saves while memory is free and ready; appends their
 * segments to `out`, which has room for SLOTS_PER_RANK images, and returns how many. */
uint32_t save_lend_ahead(uint32_t *out, struct session *session);
/* Memory that is not ready is made so, before somebody waits for it: of the pool at the start; free
 * memory that the ranks of an attempt had, when they have gone. */
void save_renew(struct service *service);
void save_disown(struct service *service, struct pool_owner owner);
void save_begin(struct service *service, struct rpc_call *call,
                const Holdfast__V1__BeginSaveRequest *request);
/* Memory came back, a save or a session ended: BeginSave calls that wait may go on. */
void save_begin_wake(struct service *service);
void save_begin_close(struct service *service); /* answers those that wait */

#endif
