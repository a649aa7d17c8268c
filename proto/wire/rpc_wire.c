/* rpc_wire.c - messages in and out of gRPC's buffers, and its start. The caller frees a message of
 * rpc_unpack() by protobuf_c_message_free_unpacked(message, NULL). */
#include "proto/wire/rpc_wire.h"

#include "proto/base/report.h"

#include <grpc/byte_buffer_reader.h>

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>

#if defined(__SANITIZE_THREAD__)
/* The thread sanitizer sees gRPC's mallocs and frees but not its locks. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:libgrpc.so\nrace:libgpr.so\nrace:libabsl_\n"
           "mutex:libgrpc.so\nmutex:libabsl_\ncalled_from_lib:libgrpc.so\n";
}
#endif

/* A protobuf-c allocator with a limit of bytes. free() frees its allocations. */
struct bounded {
    size_t left;
    struct rpc_share *share; /* or NULL */
    bool lacked_memory, found_full;
};

/* The heap bytes of an allocation. */
static size_t heap_bytes(void *memory)
{
    return malloc_usable_size(memory) + sizeof(size_t);
}

static bool share_take(struct rpc_share *share, size_t bytes)
{
    size_t held = atomic_fetch_add(share->held, bytes) + bytes;
    if (held > share->max && share->bytes + bytes > RPC_SHARE_BYTES_SURE) {
        atomic_fetch_sub(share->held, bytes);
        return false;
    }
    share->bytes += bytes;
    return true;
}

void rpc_share_return(struct rpc_share *share)
{
    atomic_fetch_sub(share->held, share->bytes);
    share->bytes = 0;
}

static void *bounded_alloc(void *user, size_t size)
{
    struct bounded *bounded = user;
    if (size > bounded->left)
        return NULL;
    bounded->left -= size;
    void *memory = malloc(size);
    bounded->lacked_memory = bounded->lacked_memory || memory == NULL;
    if (!memory || !bounded->share || share_take(bounded->share, heap_bytes(memory)))
        return memory;
    bounded->found_full = true;
    free(memory);
    return NULL;
}

static void bounded_free(void *user, void *pointer)
{
    struct bounded *bounded = user;
    if (pointer && bounded->share) {
        size_t bytes = heap_bytes(pointer);
        bounded->share->bytes -= bytes;
        atomic_fetch_sub(bounded->share->held, bytes);
    }
    free(pointer);
}

int rpc_unpack(ProtobufCMessage **out, struct rpc_share *share, grpc_byte_buffer *buffer,
               const ProtobufCMessageDescriptor *type)
{
    grpc_byte_buffer_reader reader;
    *out = NULL;
    if (!grpc_byte_buffer_reader_init(&reader, buffer))
        return ERR_CORRUPT;
    grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    struct bounded bounded = {.left = RPC_UNPACKED_BYTES_MAX, .share = share};
    ProtobufCAllocator allocator = {bounded_alloc, bounded_free, &bounded};
    if (GRPC_SLICE_LENGTH(all) <= RPC_MESSAGE_BYTES_MAX)
        *out = protobuf_c_message_unpack(type, &allocator, GRPC_SLICE_LENGTH(all),
                                         GRPC_SLICE_START_PTR(all));
    grpc_slice_unref(all);
    if (*out != NULL)
        return 0;
    return bounded.lacked_memory ? ERR_MEMORY : bounded.found_full ? ERR_BUSY : ERR_CORRUPT;
}

grpc_byte_buffer *rpc_buffer(const void *data, size_t bytes)
{
    grpc_slice slice = grpc_slice_from_copied_buffer(data, bytes);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

/* NULL when the message is larger than the limit. */
grpc_byte_buffer *rpc_pack(const ProtobufCMessage *message)
{
    size_t bytes = protobuf_c_message_get_packed_size(message);
    if (bytes > RPC_MESSAGE_BYTES_MAX)
        return NULL;
    grpc_slice slice = grpc_slice_malloc(bytes);
    size_t packed = protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    CHECK(packed == bytes);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

grpc_arg rpc_arg(const char *key, int value)
{
    grpc_arg arg = {.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key};
    arg.value.integer = value;
    return arg;
}

void rpc_start(void)
{
    /* Never shut down: a process opens and closes clients for as long as it lives, and the
     * asynchronous shutdown of the last one would race with the next open. */
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, grpc_init);
}
