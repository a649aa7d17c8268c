/* compare.h - compares the replicas of a save by the digests that ranks report; see compare.c. */
#ifndef HOLDFAST_CKPTD_SAVE_COMPARE_H
#define HOLDFAST_CKPTD_SAVE_COMPARE_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;
struct save;

/* TellReplicas: a rank reports digests of its copies. */
void compare_call(struct service *service, struct rpc_call *call,
                  const Holdfast__V1__TellReplicasRequest *request);
/* Compares the reported digests before the manifest is written; on a worker. ERR_ABORTED: copies
 * differ, and saves.replicas refuses that; ERR_MEMORY. */
int compare_replicas(struct save *save);

#endif
