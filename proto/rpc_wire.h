/* rpc_wire.h - what both ends of the RPC layer need of gRPC: messages in and out of its buffers.
 * Private to proto/rpc*.c, the only files that know gRPC.
 *
 * Limits: RPC_MESSAGE_BYTES_MAX per message, RPC_UNPACKED_BYTES_MAX of memory for one unpacked
 * message (so that a small one with millions of empty fields cannot eat the host); what is larger
 * is refused. */
#ifndef HOLDFAST_RPC_WIRE_H
#define HOLDFAST_RPC_WIRE_H

#include "proto/rpc.h"

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#define RPC_UNPACKED_BYTES_MAX (256u << 20)

void rpc_start(void); /* once per process; cheap afterwards */
grpc_arg rpc_arg(const char *key, int value);
/* ERR_CORRUPT: the bytes are no such message, or one over the limits; ERR_MEMORY. After both *out
 * is NULL, and no text is set. */
int rpc_unpack(ProtobufCMessage **out, grpc_byte_buffer *buffer,
               const ProtobufCMessageDescriptor *type);
/* NULL when the message is over the limit. */
grpc_byte_buffer *rpc_pack(const ProtobufCMessage *message);
grpc_byte_buffer *rpc_buffer(const void *data, size_t bytes);

#endif
