/* follow.h - the ranks of this node in an attempt that another node coordinates; see follow.c. On
 * the service thread. */
#ifndef HOLDFAST_CKPTD_MEMBER_FOLLOW_H
#define HOLDFAST_CKPTD_MEMBER_FOLLOW_H

#include "ckptd/run/coordinator.h"
#include "proto/ckpt.pb-c.h"
#include "proto/rpc.h"

struct service;
struct run;
struct save;
struct session;

int follow_open(struct service *service);
void follow_end(struct service *service); /* nothing of it is under way any more */
void follow_close(struct service *service);
/* Describe: of an attempt of this node, or of another's. */
void follow_describe(struct service *service, struct rpc_call *call,
                     const Holdfast__V1__DescribeRequest *request);
/* As struct hooks has them. */
void follow_join(struct run *run);
void follow_leave(struct run *run);
void follow_part_changed(struct save *save);
int follow_ask(struct session *session, const Holdfast__V1__BeginSaveRequest *request,
               uint64_t number, struct part_asking *asking);

#endif
