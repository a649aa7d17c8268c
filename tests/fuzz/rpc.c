/* rpc.c - fuzz target: a message from the wire. The first byte says which; what comes out goes
 * where ckptd would take it: slices of a description, a manifest's summary, reflection, the status
 * text of an error. */
#include "tests/fuzz/fuzz.h"

#include "ckptd/ckptd.h"
#include "proto/rpc_reflection.h"
#include "proto/rpc_text.h"
#include "proto/rpc_wire.h"

static const ProtobufCMessageDescriptor *const types[] = {
    &holdfast__v1__hello_request__descriptor,      &holdfast__v1__open_attempt_request__descriptor,
    &holdfast__v1__describe_request__descriptor,   &holdfast__v1__begin_save_request__descriptor,
    &holdfast__v1__wait_save_request__descriptor,  &holdfast__v1__open_load_request__descriptor,
    &holdfast__v1__load_shard_request__descriptor, &holdfast__v1__list_request__descriptor,
    &holdfast__v1__prune_request__descriptor,      &holdfast__v1__pin_request__descriptor,
    &holdfast__v1__open_load_reply__descriptor,    &holdfast__v1__describe_reply__descriptor,
    &holdfast__v1__release_request__descriptor,    &holdfast__v1__adopt_request__descriptor,
    &holdfast__v1__gc_request__descriptor,         &holdfast__v1__gc_reply__descriptor,
};
#define NUM_TYPES (sizeof types / sizeof types[0])

static const struct rpc_method methods[] = {{"/holdfast.v1.Checkpoint/Hello",
                                             &holdfast__v1__hello_request__descriptor,
                                             &holdfast__v1__hello_reply__descriptor, NULL},
                                            {NULL, NULL, NULL, NULL}};

static void take_slices(Holdfast__V1__Slice *const *slices, size_t count)
{
    struct slice *taken = NULL;
    if (session_take_slices(&taken, slices, count) == 0)
        free(taken);
}

static void try_message(size_t kind, const uint8_t *data, size_t bytes)
{
    grpc_byte_buffer *buffer = rpc_buffer(data, bytes);
    ProtobufCMessage *message;
    int error = rpc_unpack(&message, buffer, types[kind]);
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
        size_t room = MANIFEST_SUMMARY_BYTES;
        struct manifest_summary summary;
        manifest_read_summary(&summary, manifest.data, manifest.len < room ? manifest.len : room);
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
    if (data[0] % (NUM_TYPES + 1) < NUM_TYPES)
        try_message(data[0] % (NUM_TYPES + 1), data + 1, bytes - 1);
    else
        try_reflection(data + 1, bytes - 1);
    return 0;
}
