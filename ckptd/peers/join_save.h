/* join_save.h - the ranks of this node in an attempt that another node coordinates; see
 * join_save.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_PEERS_JOIN_SAVE_H
#define HOLDFAST_CKPTD_PEERS_JOIN_SAVE_H

#include "ckptd/attempt/coordinator.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;
struct run;
struct save;
struct session;

int join_open(struct service *service);
void join_end(struct service *service); /* call when none of its calls is in progress */
void join_close(struct service *service);
/* Describe, for an attempt of this node or of another node. */
void join_describe(struct service *service, struct rpc_call *call,
                   const Holdfast__V1__DescribeRequest *request);
/* For struct hooks, which describes them. */
void join_attempt(struct run *run);
void join_leave(struct run *run);
void join_part_changed(struct save *save);
int join_ask(struct session *session, const Holdfast__V1__BeginSaveRequest *request,
             uint64_t number, struct part_asking *asking);

#endif
