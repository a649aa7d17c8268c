/* rpc_health.h - the two messages of grpc.health.v1. Private to rpc*.c. */
#ifndef HOLDFAST_PROTO_WIRE_RPC_HEALTH_H
#define HOLDFAST_PROTO_WIRE_RPC_HEALTH_H

#include "proto/wire/rpc.h"

#include <grpc/byte_buffer.h>

#define RPC_HEALTH_METHOD "/grpc.health.v1.Health/Check"

enum rpc_health { RPC_HEALTH_UNKNOWN, RPC_HEALTH_SERVER, RPC_HEALTH_SERVICE };
/* The subject of a health check: the server, or the service of one of its methods. */
enum rpc_health rpc_health_asked(grpc_byte_buffer *request, const struct rpc_method *methods);
/* SERVING or NOT_SERVING; owned by the caller. */
grpc_byte_buffer *rpc_health_answer(bool is_good);

#endif
