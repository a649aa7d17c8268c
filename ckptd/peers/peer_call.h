/* peer_call.h - a call to another node's ckptd, which a crew makes, with steps before and after it;
 * see peer_call.c.
 *
 *     struct my_call { struct peer_call peer_call; Holdfast__V1__JoinRequest request; ... };
 *
 * The caller keeps the peer_call until `done`, which frees it; the request is only read. */
#ifndef HOLDFAST_CKPTD_PEERS_PEER_CALL_H
#define HOLDFAST_CKPTD_PEERS_PEER_CALL_H

#include "ckptd/core/loop.h"
#include "ckptd/machines/members.h"
#include "proto/wire/rpc.h"

#include <stdint.h>

struct service;

/* The crew that calls peers for peers/. */
struct followers {
    struct crew *crew;
    struct lane lanes[MEMBERS_PEERS_MAX]; /* lanes of its jobs, by peer */
    struct service *service;
    struct timer timer; /* recover_parts.c */
    uint64_t turn;      /* of recover_parts.c as well */
};

struct peer_call {
    struct service *service;
    uint32_t peer; /* index of members.peers */
    const char *method;
    const ProtobufCMessage *request;
    const ProtobufCMessageDescriptor *reply_type;
    /* Run by the crew, or NULL. An error of `before` skips the call; `then` runs after a call that
     * succeeded. */
    int (*before)(struct peer_call *peer_call);
    int (*then)(struct peer_call *peer_call);
    void (*done)(struct peer_call *peer_call); /* on the service thread */
    ProtobufCMessage *reply;                   /* NULL after an error */
    struct fault fault;
    struct job job;
};

void peer_call_send(struct peer_call *peer_call);
/* Frees the reply. */
void peer_call_end(struct peer_call *peer_call);

#endif
