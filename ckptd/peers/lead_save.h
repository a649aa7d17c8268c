/* lead_save.h - what the coordinator of an attempt answers to the nodes of its ranks; see
 * lead_save.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_PEERS_LEAD_SAVE_H
#define HOLDFAST_CKPTD_PEERS_LEAD_SAVE_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;

int lead_save_open(struct service *service);
void lead_save_close(struct service *service); /* NULL of a part is fine */
void lead_save_join(struct service *service, struct rpc_call *call,
                    const Holdfast__V1__JoinRequest *request);
void lead_save_begin(struct service *service, struct rpc_call *call,
                     const Holdfast__V1__BeginPartRequest *request);
void lead_save_report(struct service *service, struct rpc_call *call,
                      const Holdfast__V1__ReportPartRequest *request);

#endif
