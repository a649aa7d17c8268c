/* errand.h - a call to another node's ckptd, made by a crew, and what lies around it; see errand.c.
 *
 *     struct my_errand { struct errand errand; Holdfast__V1__JoinRequest request; ... };
 *
 * The errand is the caller's until `done`, which frees it; the request is only read. */
#ifndef HOLDFAST_CKPTD_MEMBER_ERRAND_H
#define HOLDFAST_CKPTD_MEMBER_ERRAND_H

#include "ckptd/loop.h"
#include "ckptd/nodes/members.h"
#include "proto/rpc.h"

#include <stdint.h>

struct service;

/* Who makes the calls of member/ to peers. */
struct followers {
    struct crew *crew;
    struct lane lanes[MEMBERS_PEERS_MAX]; /* its jobs, by peer */
    struct service *service;
    struct timer timer; /* returned.c */
    uint64_t turn;      /* likewise */
};

struct errand {
    struct service *service;
    uint32_t peer; /* index of members.peers */
    const char *method;
    const ProtobufCMessage *request;
    const ProtobufCMessageDescriptor *reply_type;
    /* On the crew, or NULL: before the call, an error leaves it out; behind it, when it went well.
     */
    int (*before)(struct errand *errand);
    int (*behind)(struct errand *errand);
    void (*done)(struct errand *errand); /* on the service thread */
    ProtobufCMessage *reply;             /* NULL after an error */
    struct fault fault;
    struct job job;
};

void errand_send(struct errand *errand);
/* Frees the reply. */
void errand_end(struct errand *errand);

#endif
