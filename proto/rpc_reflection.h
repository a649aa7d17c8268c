/* rpc_reflection.h - what gRPC server reflection answers; rpc.c keeps the streams.
 * Private to proto/rpc*.c, the only files that know gRPC. */
#ifndef HOLDFAST_RPC_REFLECTION_H
#define HOLDFAST_RPC_REFLECTION_H

#include "proto/rpc.h"

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>

/* A packed FileDescriptorSet of every .proto file of the tree, made by the build. */
extern const uint8_t rpc_descriptors[];
extern const size_t rpc_descriptors_bytes;

/* Is `method` reflection's, of either version? */
bool rpc_reflection_serves(grpc_slice method);
/* The answer to one request of a stream, the caller's; `methods` is the server's table. NULL when
 * the request is none, or when it or the answer is over the limits of messages. */
grpc_byte_buffer *rpc_reflection_answer(grpc_byte_buffer *request,
                                        const struct rpc_method *methods);

#endif
