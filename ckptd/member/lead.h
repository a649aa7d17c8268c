/* lead.h - what the coordinator of an attempt answers to the nodes of its ranks; see lead.c. On the
 * service thread. */
#ifndef HOLDFAST_CKPTD_MEMBER_LEAD_H
#define HOLDFAST_CKPTD_MEMBER_LEAD_H

#include "proto/ckpt.pb-c.h"
#include "proto/rpc.h"

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
