/* rpc.c - fuzz target: a message from the wire, of a peer or of a ckptd that lies. The first byte
 * says which; what comes out goes to what takes it: slices of a description, the summary of
 * a manifest, reflection. The order stays: inputs are kept. */
#include "tests/fuzz/fuzz.h"

#include "ckptd/run/describe.h"
#include "proto/manifest.h"
#include "proto/rpc_reflection.h"
#include "proto/rpc_text.h"
#include "proto/rpc_wire.h"

#define REFLECTION 16 /* whose messages have a function of their own */

static const ProtobufCMessageDescriptor *const types[] = {
    &holdfast__v1__hello_request__descriptor,
    &holdfast__v1__open_attempt_request__descriptor,
    &holdfast__v1__describe_request__descriptor,
    &holdfast__v1__begin_save_request__descriptor,
    &holdfast__v1__wait_save_request__descriptor,
    &holdfast__v1__open_load_request__descriptor,
    &holdfast__v1__load_shard_request__descriptor,
    &holdfast__v1__list_request__descriptor,
    &holdfast__v1__prune_request__descriptor,
    &holdfast__v1__pin_request__descriptor,
    &holdfast__v1__open_load_reply__descriptor,
    &holdfast__v1__describe_reply__descriptor,
    &holdfast__v1__release_request__descriptor,
    &holdfast__v1__adopt_request__descriptor,
    &holdfast__v1__gc_request__descriptor,
    &holdfast__v1__gc_reply__descriptor,
    [REFLECTION] = NULL,
    &holdfast__v1__abort_save_request__descriptor,
    &holdfast__v1__release_shard_request__descriptor,
    &holdfast__v1__close_load_request__descriptor,
    &holdfast__v1__show_request__descriptor,
    &holdfast__v1__status_request__descriptor,
    &holdfast__v1__hello_reply__descriptor,
    &holdfast__v1__open_attempt_reply__descriptor,
    &holdfast__v1__begin_save_reply__descriptor,
    &holdfast__v1__wait_save_reply__descriptor,
    &holdfast__v1__abort_save_reply__descriptor,
    &holdfast__v1__load_shard_reply__descriptor,
    &holdfast__v1__release_shard_reply__descriptor,
    &holdfast__v1__close_load_reply__descriptor,
    &holdfast__v1__list_reply__descriptor,
    &holdfast__v1__show_reply__descriptor,
    &holdfast__v1__prune_reply__descriptor,
    &holdfast__v1__pin_reply__descriptor,
    &holdfast__v1__release_reply__descriptor,
    &holdfast__v1__adopt_reply__descriptor,
    &holdfast__v1__status_reply__descriptor,
};
#define NUM_TYPES (sizeof types / sizeof types[0])

static const struct rpc_method methods[] = {{"/holdfast.v1.Checkpoint/Hello",
                                             &holdfast__v1__hello_request__descriptor,
                                             &holdfast__v1__hello_reply__descriptor, NULL},
                                            {NULL, NULL, NULL, NULL}};

static void take_slices(Holdfast__V1__Slice *const *slices, size_t count)
{
    struct slice *taken = NULL;
    if (describe_take_slices(&taken, slices, count) == 0)
        free(taken);
}

static void take_summary(const void *manifest, size_t bytes)
{
    struct manifest_summary summary;
    manifest_read_summary(&summary, manifest,
                          bytes < MANIFEST_SUMMARY_BYTES ? bytes : MANIFEST_SUMMARY_BYTES);
}

static void try_message(size_t kind, const uint8_t *data, size_t bytes)
{
    grpc_byte_buffer *buffer = rpc_buffer(data, bytes);
    ProtobufCMessage *message;
    int error = rpc_unpack(&message, NULL, buffer, types[kind]);
    grpc_byte_buffer_destroy(buffer);
    if (error != 0)
        return;
    fuzz_taken = true;
    if (message->descriptor == &holdfast__v1__describe_request__descriptor) {
        Holdfast__V1__DescribeRequest *request = (Holdfast__V1__DescribeRequest *)message;
        take_slices(request->slices, request->n_slices);
    }
    if (message->descriptor == &holdfast__v1__open_load_request__descriptor) {
        Holdfast__V1__OpenLoadRequest *request = (Holdfast__V1__OpenLoadRequest *)message;
        take_slices(request->slices, request->n_slices);
    }
    if (message->descriptor == &holdfast__v1__adopt_request__descriptor) {
        ProtobufCBinaryData manifest = ((Holdfast__V1__AdoptRequest *)message)->manifest;
        take_summary(manifest.data, manifest.len);
    }
    if (message->descriptor == &holdfast__v1__show_reply__descriptor) {
        const char *manifest = ((Holdfast__V1__ShowReply *)message)->manifest_json;
        take_summary(manifest, strlen(manifest));
    }
    protobuf_c_message_free_unpacked(message, NULL);
}

static void try_reflection(const uint8_t *data, size_t bytes)
{
    grpc_byte_buffer *request = rpc_buffer(data, bytes);
    grpc_byte_buffer *reply = rpc_reflection_answer(request, methods);
    grpc_byte_buffer_destroy(request);
    fuzz_taken = reply != NULL;
    if (reply != NULL)
        grpc_byte_buffer_destroy(reply);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    rpc_start();
    if (bytes == 0)
        return 0;
    size_t kind = data[0] % NUM_TYPES;
    if (kind == REFLECTION)
        try_reflection(data + 1, bytes - 1);
    else
        try_message(kind, data + 1, bytes - 1);
    return 0;
}
