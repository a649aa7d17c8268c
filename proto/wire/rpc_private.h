/* rpc_private.h - a server and its calls, for rpc.c (opening, threads, closing) and rpc_calls.c
 * (the stages of a call). Each field names its lock. */
#ifndef HOLDFAST_PROTO_WIRE_RPC_PRIVATE_H
#define HOLDFAST_PROTO_WIRE_RPC_PRIVATE_H

#include "proto/wire/rpc.h"
#include "proto/wire/rpc_guard.h"
#include "proto/wire/rpc_peers.h"
#include "proto/wire/rpc_wire.h"

#include <grpc/status.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define THREADS_MAX 64u

enum stage {
    STAGE_REQUESTED, /* gRPC will fill in a new call */
    STAGE_RECEIVING, /* receiving its request */
    STAGE_HANDLED,   /* owned by the handler */
    STAGE_SENDING    /* sending the answer; the last event */
};

struct rpc_call {
    struct rpc_server *server;
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    grpc_byte_buffer *payload;
    const struct rpc_method *method; /* NULL for the health check */
    ProtobufCMessage *request;
    struct rpc_share share; /* of server->held, for the request */
    size_t held_bytes;      /* of the request, as counted in server->peers */
    size_t answer_bytes;    /* likewise, of the answer */
    int connection;         /* its number in rpc_peers.h */
    int cancelled;
    /* Guarded by server->mutex. */
    struct rpc_call *prev, *next; /* every call past STAGE_REQUESTED */
    enum stage stage;
    bool owned; /* the handler has yet to answer */
};

struct rpc_server {
    const struct rpc_method *methods;
    void *user;
    grpc_server *grpc;
    grpc_completion_queue *queue;
    pthread_t threads[THREADS_MAX];
    uint32_t num_threads;
    atomic_bool serving, able;
    atomic_size_t held;   /* bytes of requests */
    size_t request_bytes; /* the maximum of `held` */
    struct rpc_peers peers;
    struct rpc_guard *guard;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* Guarded by mutex. */
    bool closing, shut_down;
    bool lacks_memory;      /* memory for the next call is short, and that is logged */
    uint32_t num_requested; /* calls that gRPC has yet to deliver */
    struct rpc_call *calls;
    uint32_t num_calls;
    uint32_t num_open; /* calls that gRPC still works on */
    uint32_t num_refs; /* one for the opener, and one per call; freed at 0 */
};

/* Called with the mutex held; releases it, and frees the server with its last reference. */
void rpc_server_unref_unlock(struct rpc_server *server);
/* Requests calls from gRPC until there are enough. False: there are fewer. */
bool rpc_request_calls(struct rpc_server *server);
/* Handles the next event of a call. */
void rpc_call_step(struct rpc_call *call, bool success);
/* Starts the last batch of a call. Takes over `reply` (NULL unless the status is OK). Mutex
 * held. */
void rpc_call_send(struct rpc_call *call, grpc_byte_buffer *reply, grpc_status_code status,
                   const char *text);

#endif
