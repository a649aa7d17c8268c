/* compare.h - the replicas of a save: what their ranks tell, compared; see compare.c. */
#ifndef HOLDFAST_CKPTD_SAVE_COMPARE_H
#define HOLDFAST_CKPTD_SAVE_COMPARE_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;
struct save;

/* TellReplicas: a rank tells digests of its copies. */
void compare_call(struct service *service, struct rpc_call *call,
                  const Holdfast__V1__TellReplicasRequest *request);
/* Compares what was told, before the manifest is written; on a worker. ERR_ABORTED: copies differ,
 * and saves.replicas refuses that; ERR_MEMORY. */
int compare_replicas(struct save *save);

#endif
