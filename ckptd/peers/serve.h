/* serve.h - serves this ckptd's store to other nodes and tools; see serve.c. On the service
 * thread. */
#ifndef HOLDFAST_CKPTD_PEERS_SERVE_H
#define HOLDFAST_CKPTD_PEERS_SERVE_H

#include "ckptd/core/rights.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;
struct handles;

int serve_open(struct service *service);   /* call after open_storage() */
void serve_end(struct service *service);   /* call when no request is in progress */
void serve_close(struct service *service); /* call before the storage is closed */
/* The right that the operation needs: a weaker one for reading. */
enum right serve_right(const Holdfast__V1__PeerRequest *request);
void serve_peer(struct service *service, struct rpc_call *call,
                const Holdfast__V1__PeerRequest *request);

/* Ends the handles of silent clients. Called periodically. */
void serve_sweep(struct service *service);

/* The handles of other clients, for the bulk plane. Call after serve_open(). */
struct handles *serve_handles(struct service *service);

#endif
