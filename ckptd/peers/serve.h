/* serve.h - what other nodes and tools may do with this ckptd's store; see serve.c. On the service
 * thread. */
#ifndef HOLDFAST_CKPTD_PEERS_SERVE_H
#define HOLDFAST_CKPTD_PEERS_SERVE_H

#include "ckptd/core/rights.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;
struct handles;

int serve_open(struct service *service);   /* behind open_storage */
void serve_end(struct service *service);   /* nothing of it is under way any more */
void serve_close(struct service *service); /* before the storage is closed */
/* What the operation takes: reading less than the rest. */
enum right serve_right(const Holdfast__V1__PeerRequest *request);
void serve_peer(struct service *service, struct rpc_call *call,
                const Holdfast__V1__PeerRequest *request);

/* Ends what those have open who are silent. Now and then. */
void serve_sweep(struct service *service);

/* What others have open, for the bulk plane. From serve_open on. */
struct handles *serve_handles(struct service *service);

#endif
