/* rpc.h - the thin RPC layer over the gRPC C core; only proto/rpc*.c know gRPC.
 *
 * All methods of a table are unary. Messages are protobuf-c structs, described by their descriptor.
 * Errors are codes of report.h and cross the wire as a gRPC status with a text (form in
 * rpc_text.h).
 *
 * Server: one table of methods. A call arrives on one of the server's threads with its request
 * unpacked; the handler answers at once, or keeps the call and answers later, from any thread, even
 * after the server was closed. Exactly one rpc_call_reply or rpc_call_fail per call. A stock client
 * can call it; unknown methods are answered UNIMPLEMENTED. Served beside the table:
 * grpc.health.v1.Health/Check.
 * Client: calls block until the answer or the deadline; thread-safe. */
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
    /* `request` is freed by the layer when the call is answered. */
    void (*handle)(void *user, struct rpc_call *call, const ProtobufCMessage *request);
};

struct rpc_server;
struct rpc_server_options {
    const struct rpc_method *methods; /* ended by name == NULL */
    void *user;
    uint32_t num_threads;     /* completion queue threads, >= 1 */
    uint32_t num_connections; /* at once, at most; >= 1 */
    uint32_t silent_ms;       /* a connection without a request for so long is closed; >= 1 */
    /* (optional) Strangers who come by TCP are verified with the files there (proto/tls/tls.h);
     * borrowed. Default: none comes. */
    const char *tls_directory;
    /* For requests until they are answered, unpacked: about 256 bytes a slice. Beyond, ERR_BUSY. */
    uint64_t request_bytes;
    /* What one user's calls may cost (proto/wire/rpc_budget.h), and at once as many times as much
     * as RPC_BUDGET_BURST is of RPC_BUDGET_PER_SECOND; 0: these. */
    uint32_t budget_per_second;
};
#define RPC_BUDGET_PER_SECOND 5000
#define RPC_BUDGET_BURST 32768          /* 128 ranks that connect twice and make ten calls each */
#define RPC_REQUEST_BYTES (64ull << 20) /* a usual value */
/* ERR_INVALID, ERR_DENIED, ERR_NOT_FOUND: of the files; ERR_MEMORY, ERR_IO. */
int rpc_server_open(struct rpc_server **out, const struct rpc_server_options *options);
/* Costs of what a peer can do without end, in about 10 microseconds of a processor. */
#define RPC_COST_CONNECTION 32 /* to accept one */
#define RPC_COST_HANDSHAKE 200 /* of TLS, or what a stranger may begin of one */
#define RPC_COST_LITTLE 4      /* a request to the bulk plane that moves little */
#define RPC_COST_REFUSED 12    /* besides, when it is refused */
/* Takes it from what the peer's user, or its address, may cost (proto/wire/rpc_budget.h). ERR_BUSY:
 * nothing is left now, close it, or wait; ERR_MEMORY. Any thread. */
int rpc_server_charge(struct rpc_server *server, const struct principal *peer, uint32_t cost);
/* Takes over a connected, already checked socket, also when it fails. Some connections are kept for
 * privileged peers, who also may hold all the memory for requests. ERR_BUSY: too many. */
int rpc_server_adopt(struct rpc_server *server, int socket, const struct principal *peer);
/* Likewise a connection from that address, whose peer is to be verified. It does not block. The
 * handshake is charged at its first byte, the connection of its identity when that is known. Any
 * thread. */
int rpc_server_adopt_stranger(struct rpc_server *server, int socket, const char *from);
/* Until when the files of tls_directory are good (proto/tls/stream.h). */
int64_t rpc_server_tls_end_s(const struct rpc_server *server);
/* health: SERVING or NOT_SERVING, of the server (the service "") and of its services. Both are true
 * at first. A server that answers, but cannot do what its services are for, is serving and not
 * able: then its services are NOT_SERVING, and it is not. */
void rpc_server_set_serving(struct rpc_server *server, bool serving);
void rpc_server_set_able(struct rpc_server *server, bool able);
/* Refuses new calls, cancels those unanswered after `grace_ms`, joins the threads, frees. */
void rpc_server_close(struct rpc_server *server, uint32_t grace_ms);

#define RPC_WHO_MAX PRINCIPAL_TEXT_MAX
/* Who asks, and in a log's words. False: nobody knows any more, and *out is nobody who may do
 * anything. To be called before the answer. */
bool rpc_call_principal(struct rpc_call *call, struct principal *out, char out_who[RPC_WHO_MAX]);
/* ERR_INVALID: the reply is over RPC_MESSAGE_BYTES_MAX, and rpc_call_reply answers with this error
 * instead. A handler that undoes its work when the client is not told of it asks here first. */
int rpc_call_check_reply(const struct rpc_call *call, const ProtobufCMessage *reply);
void rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *reply);
/* Answers with `error` and this thread's last error text. */
void rpc_call_fail(struct rpc_call *call, int error);

struct rpc_client;
/* `target`: as proto/base/address.h has it; with a host, the files of tls_client_directory()
 * (proto/tls/) say who the client is, and the server's certificate must name the host. Connects
 * lazily; never fails for an absent server. ERR_INVALID; ERR_NOT_FOUND, ERR_DENIED: of those files.
 */
int rpc_client_open(struct rpc_client **out, const char *target);
/* Likewise, as whom the files of this directory say. */
int rpc_client_open_as(struct rpc_client **out, const char *target, const char *tls_directory);
/* Where this user's ckptd listens unless it is told otherwise: unix:/tmp/holdfast-UID/ckptd.sock.
 * In /tmp anybody may have made that directory first. ERR_DENIED: somebody else did. */
int rpc_default_address(char *out, size_t size);
void rpc_client_close(struct rpc_client *client);
/* When *stop turns from 0, calls under way and later ones end within RPC_STOP_MS, with ERR_ABORTED.
 * NULL: none do. */
#define RPC_STOP_MS 50
void rpc_client_heed_stop(struct rpc_client *client, const volatile int *stop);
/* ERR_UNAVAILABLE: no connection; ERR_TIMEOUT; else the server's own error with its text. The reply
 * is owned by the caller: protobuf_c_message_free_unpacked(reply, NULL). */
int rpc_client_call(struct rpc_client *client, const char *method, const ProtobufCMessage *request,
                    const ProtobufCMessageDescriptor *reply_type, ProtobufCMessage **out_reply,
                    uint32_t timeout_ms);

#endif
