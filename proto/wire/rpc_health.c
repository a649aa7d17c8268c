/* rpc_health.c - see rpc_health.h. */
#include "proto/wire/rpc_health.h"

#include "proto/wire/rpc_wire.h"

#include <grpc/byte_buffer_reader.h>

#include <string.h>

enum { SERVING = 1, NOT_SERVING = 2 }; /* grpc.health.v1.HealthCheckResponse */

/* Is `name` of `bytes` the service of one of the methods ("/service/Method")? */
static bool service_known(const struct rpc_method *methods, const uint8_t *name, size_t bytes)
{
    for (const struct rpc_method *method = methods; method->name; method++) {
        const char *end = strrchr(method->name, '/');
        if ((size_t)(end - method->name - 1) == bytes && memcmp(method->name + 1, name, bytes) == 0)
            return true;
    }
    return false;
}

/* HealthCheckRequest {string service = 1}, HealthCheckResponse {enum status = 1}; two messages of
 * one short field each, so they are read and written by hand. */
enum rpc_health rpc_health_asked(grpc_byte_buffer *request, const struct rpc_method *methods)
{
    grpc_byte_buffer_reader reader;
    enum rpc_health asked = RPC_HEALTH_UNKNOWN;
    if (!grpc_byte_buffer_reader_init(&reader, request))
        return asked;
    grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
    const uint8_t *data = GRPC_SLICE_START_PTR(all);
    size_t bytes = GRPC_SLICE_LENGTH(all);
    bool has_name = bytes >= 2 && bytes < 128 && data[0] == 0x0a && data[1] == bytes - 2;
    if (bytes == 0 || (has_name && bytes == 2))
        asked = RPC_HEALTH_SERVER;
    else if (has_name && service_known(methods, data + 2, bytes - 2))
        asked = RPC_HEALTH_SERVICE;
    grpc_slice_unref(all);
    grpc_byte_buffer_reader_destroy(&reader);
    return asked;
}

grpc_byte_buffer *rpc_health_answer(bool is_good)
{
    const uint8_t reply[2] = {0x08, is_good ? SERVING : NOT_SERVING};
    return rpc_buffer(reply, sizeof reply);
}
