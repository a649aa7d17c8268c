/* rpc.h - the thin RPC layer over the gRPC C core; only proto/wire/rpc*.c include gRPC.
 *
 * All methods of a table are unary. Messages are protobuf-c structs, described by their descriptor.
 * Errors are codes of report.h and cross the wire as a gRPC status with a text (form in
 * rpc_text.h).
 *
 * Server: one table of methods. A call arrives on one of the server's threads with its request
 * unpacked; the handler answers at once, or keeps the call and answers later. It may answer from
 * any thread, even after the server was closed. Exactly one rpc_call_reply or rpc_call_fail per
 * call. Stock clients can call it; the server answers unknown methods with UNIMPLEMENTED. It also
 * serves grpc.health.v1.Health/Check. Client: calls block until the answer or the deadline;
 * thread-safe. */
#ifndef HOLDFAST_PROTO_WIRE_RPC_H
#define HOLDFAST_PROTO_WIRE_RPC_H

#include "proto/base/principal.h"

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define RPC_MESSAGE_BYTES_MAX (4u << 20)
#define RPC_PROTOCOL 2u
#define RPC_SKIPPED_MAX 64u /* of ShowReply */

struct rpc_call; /* one call on the server */

struct rpc_method {
    const char *name; /* "/holdfast.v1.Checkpoint/Hello" */
    const ProtobufCMessageDescriptor *request;
    const ProtobufCMessageDescriptor *reply;
    /* The layer frees `request` when the call is answered. */
    void (*handle)(void *user, struct rpc_call *call, const ProtobufCMessage *request);
};

struct rpc_server;
struct rpc_server_options {
    const struct rpc_method *methods; /* ended by name == NULL */
    void *user;
    uint32_t num_threads;     /* completion queue threads, >= 1 */
    uint32_t num_connections; /* maximum at the same time; >= 1 */
    uint32_t silent_ms; /* the server closes a connection without a request after this time; >= 1 */
    /* (optional) The server verifies TCP clients with the files there (proto/tls/tls.h); borrowed.
     * Default: no TCP clients. */
    const char *tls_directory;
    /* Memory for unpacked requests until they are answered: about 256 bytes a slice. Beyond,
     * ERR_BUSY. */
    uint64_t request_bytes;
    /* The budget of one user's calls (proto/wire/rpc_budget.h). The burst is as many times as large
     * as RPC_BUDGET_BURST is of RPC_BUDGET_PER_SECOND. 0: the default. */
    uint32_t budget_per_second;
};
#define RPC_BUDGET_PER_SECOND 5000
#define RPC_BUDGET_BURST 32768          /* 128 ranks that connect twice and make ten calls each */
#define RPC_REQUEST_BYTES (64ull << 20) /* a usual value */
/* ERR_INVALID, ERR_DENIED, ERR_NOT_FOUND: from the TLS files; ERR_MEMORY, ERR_IO. */
int rpc_server_open(struct rpc_server **out, const struct rpc_server_options *options);
/* Costs of requests that a peer can repeat without end, in units of about 10 microseconds of a
 * processor. */
#define RPC_COST_CONNECTION 32 /* to accept one */
#define RPC_COST_HANDSHAKE 200 /* of a TLS handshake, also an unfinished one */
#define RPC_COST_LITTLE 4      /* a request to the bulk plane that moves little data */
#define RPC_COST_REFUSED 12    /* in addition, when it is refused */
/* Charges the budget of the peer's user, or of its address (proto/wire/rpc_budget.h). ERR_BUSY: the
 * budget is spent: close the connection, or wait; ERR_MEMORY. Any thread. */
int rpc_server_charge(struct rpc_server *server, const struct principal *peer, uint32_t cost);
/* Takes over a connected, already checked socket, also when it fails. Some connections are reserved
 * for privileged peers, who may also use all the memory for requests. ERR_BUSY: too many. */
int rpc_server_adopt(struct rpc_server *server, int socket, const struct principal *peer);
/* The same for a non-blocking socket from that address, whose peer has yet to be verified. The
 * address pays for the handshake at its first byte, the verified user for the connection. Any
 * thread. */
int rpc_server_adopt_stranger(struct rpc_server *server, int socket, const char *from);
/* Until when the files of tls_directory are valid (proto/tls/stream.h). */
int64_t rpc_server_tls_end_s(const struct rpc_server *server);
/* Health: SERVING or NOT_SERVING, of the server (the service "") and of its services. Both are true
 * at first. A server that answers but cannot do the work of its services is serving and not able:
 * then its services are NOT_SERVING, and the server is SERVING. */
void rpc_server_set_serving(struct rpc_server *server, bool serving);
void rpc_server_set_able(struct rpc_server *server, bool able);
/* Refuses new calls, cancels those unanswered after `grace_ms`, joins the threads, frees. */
void rpc_server_close(struct rpc_server *server, uint32_t grace_ms);

#define RPC_WHO_MAX PRINCIPAL_TEXT_MAX
/* The caller's identity, and its text for the log. False: the identity is no longer known; *out
 * then has no rights. Call it before the answer. */
bool rpc_call_principal(struct rpc_call *call, struct principal *out, char out_who[RPC_WHO_MAX]);
/* ERR_INVALID: the reply is over RPC_MESSAGE_BYTES_MAX; rpc_call_reply() answers with this error
 * instead. A handler that must undo its work when the reply cannot be sent checks the reply
 * first. */
int rpc_call_check_reply(const struct rpc_call *call, const ProtobufCMessage *reply);
void rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *reply);
/* Answers with `error` and this thread's last error text. */
void rpc_call_fail(struct rpc_call *call, int error);

struct rpc_client;
/* `target`: an address (proto/base/address.h). For "host:port" the client authenticates with the
 * files of tls_client_directory() (proto/tls/), and the server's certificate must name the host.
 * Connects lazily; never fails for an absent server. ERR_INVALID; ERR_NOT_FOUND, ERR_DENIED: from
 * the files. */
int rpc_client_open(struct rpc_client **out, const char *target);
/* The same, with the identity in the files of this directory. */
int rpc_client_open_as(struct rpc_client **out, const char *target, const char *tls_directory);
/* The default address of this user's ckptd: unix:/tmp/holdfast-UID/ckptd.sock. Any user can create
 * that directory in /tmp first. ERR_DENIED: it belongs to another user. */
int rpc_default_address(char *out, size_t size);
void rpc_client_close(struct rpc_client *client);
/* When *stop becomes nonzero, calls under way and later ones end within RPC_STOP_MS, with
 * ERR_ABORTED. NULL: no stop flag. */
#define RPC_STOP_MS 50
void rpc_client_heed_stop(struct rpc_client *client, const volatile int *stop);
/* ERR_UNAVAILABLE: no connection; ERR_TIMEOUT; else the server's own error with its text. The
 * caller owns the reply: protobuf_c_message_free_unpacked(reply, NULL). */
int rpc_client_call(struct rpc_client *client, const char *method, const ProtobufCMessage *request,
                    const ProtobufCMessageDescriptor *reply_type, ProtobufCMessage **out_reply,
                    uint32_t timeout_ms);

#endif
