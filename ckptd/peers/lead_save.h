/* lead_save.h - answers the nodes of an attempt's ranks, at its coordinator; see lead_save.c. On
 * the service thread. */
#ifndef HOLDFAST_CKPTD_PEERS_LEAD_SAVE_H
#define HOLDFAST_CKPTD_PEERS_LEAD_SAVE_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;

int lead_save_open(struct service *service);
void lead_save_close(struct service *service); /* parts that are NULL are allowed */
void lead_save_join(struct service *service, struct rpc_call *call,
                    const Holdfast__V1__JoinRequest *request);
void lead_save_begin(struct service *service, struct rpc_call *call,
                     const Holdfast__V1__BeginPartRequest *request);
void lead_save_report(struct service *service, struct rpc_call *call,
                      const Holdfast__V1__ReportPartRequest *request);

#endif
