/* rescan.h - looks whether checkpoints came into the store, or left it, without ckptd; see
 * rescan.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_RESCAN_H
#define HOLDFAST_CKPTD_RESCAN_H

#include "ckptd/loop.h"
#include "proto/ckpt.pb-c.h"
#include "proto/rpc.h"

struct service;

/* A call that waits for a look. Lies still until go_on, which is called once. */
struct rescan_waiter {
    struct rescan_waiter *next;
    struct service *service;
    struct timer timer; /* a look that takes too long is not waited for */
    void (*go_on)(struct rescan_waiter *waiter);
};

/* Calls go_on when a look that begins from now on has ended, or after RESCAN_WAIT_MS. */
#define RESCAN_WAIT_MS 1000
void rescan_wait(struct service *service, struct rescan_waiter *waiter);
/* Before a handler that tells of checkpoints: `handle` is called when a look has ended. */
void rescan_first(struct service *service, struct rpc_call *call, const ProtobufCMessage *request,
                  void (*handle)(struct service *service, struct rpc_call *call,
                                 const ProtobufCMessage *request));
void rescan_call(struct service *service, struct rpc_call *call,
                 const Holdfast__V1__RescanRequest *request);
int rescan_open(struct service *service);
/* Behind loop_run: calls that still wait go on. */
void rescan_end(struct service *service);
void rescan_close(struct service *service); /* behind loop_close */

#endif
