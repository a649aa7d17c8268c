/* rpc_wire.h - packs messages into gRPC's buffers and unpacks them, for both ends of the RPC layer.
 * Private to rpc*.c, the only files that include gRPC.
 *
 * Limits: RPC_MESSAGE_BYTES_MAX per message. RPC_UNPACKED_BYTES_MAX of memory for one unpacked
 * message, so that a small one with millions of empty fields cannot exhaust the host.
 * rpc_server_options.request_bytes for all unpacked messages of a server, so that many of them
 * cannot. Larger ones are refused. */
#ifndef HOLDFAST_PROTO_WIRE_RPC_WIRE_H
#define HOLDFAST_PROTO_WIRE_RPC_WIRE_H

#include "proto/wire/rpc.h"

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <stdatomic.h>

#define RPC_UNPACKED_BYTES_MAX (256u << 20)
#define RPC_SHARE_BYTES_SURE (16u << 10) /* always granted to each message */

/* The memory of one unpacked message, with malloc's overhead, as a share of the common limit. */
struct rpc_share {
    atomic_size_t *held; /* of all messages */
    size_t max;          /* for all messages */
    size_t bytes;        /* of this message */
};
/* Returns the share after the message was freed. */
void rpc_share_return(struct rpc_share *share);

void rpc_start(void); /* once per process; cheap afterwards */
grpc_arg rpc_arg(const char *key, int value);
/* Unpacks a message and counts its share, unless `share` is NULL. ERR_CORRUPT: the bytes are no
 * such message, or one over the limits of a message; ERR_BUSY: too much is held; ERR_MEMORY. After
 * all three *out is NULL, the share is empty, and no text is set. */
int rpc_unpack(ProtobufCMessage **out, struct rpc_share *share, grpc_byte_buffer *buffer,
               const ProtobufCMessageDescriptor *type);
/* NULL when the message is over the limit. */
grpc_byte_buffer *rpc_pack(const ProtobufCMessage *message);
grpc_byte_buffer *rpc_buffer(const void *data, size_t bytes);

#endif
