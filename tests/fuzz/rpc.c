/* rpc.c - fuzz target: a message from the wire, of a hostile peer or ckptd. The first byte selects
 * which; the parsed message goes to its consumer: slices of a description, the summary of a
 * manifest, places, keys. Every message of every method of ckptd is there, or the target fails. The
 * order must not change, as inputs are kept. */
#include "tests/fuzz/fuzz.h"

#include "ckptd/attempt/describe.h"
#include "ckptd/core/store_key.h"
#include "ckptd/front/calls.h"
#include "ckptd/peers/peer_status.h"
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "proto/format/places.h"
#include "proto/wire/rpc_text.h"
#include "proto/wire/rpc_wire.h"

#include <jansson.h>

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
    NULL, /* of messages that no longer exist */
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
    &holdfast__v1__open_bulk_request__descriptor,
    &holdfast__v1__open_bulk_reply__descriptor,
    &holdfast__v1__peer_request__descriptor,
    &holdfast__v1__peer_reply__descriptor,
    &holdfast__v1__join_request__descriptor,
    &holdfast__v1__join_reply__descriptor,
    &holdfast__v1__begin_part_request__descriptor,
    &holdfast__v1__begin_part_reply__descriptor,
    &holdfast__v1__report_part_request__descriptor,
    &holdfast__v1__report_part_reply__descriptor,
    &holdfast__v1__scrub_request__descriptor,
    &holdfast__v1__scrub_reply__descriptor,
    &holdfast__v1__history_request__descriptor,
    &holdfast__v1__history_reply__descriptor,
    &holdfast__v1__rescan_request__descriptor,
    &holdfast__v1__rescan_reply__descriptor,
    &holdfast__v1__remove_request__descriptor,
    &holdfast__v1__remove_reply__descriptor,
    &holdfast__v1__undelete_request__descriptor,
    &holdfast__v1__undelete_reply__descriptor,
    &holdfast__v1__reload_request__descriptor,
    &holdfast__v1__reload_reply__descriptor,
    &holdfast__v1__stop_request__descriptor,
    &holdfast__v1__stop_reply__descriptor,
    &holdfast__v1__force_attempt_request__descriptor,
    &holdfast__v1__force_attempt_reply__descriptor,
    &holdfast__v1__tell_replicas_request__descriptor,
    &holdfast__v1__tell_replicas_reply__descriptor,
    &holdfast__v1__keep_verified_request__descriptor,
    &holdfast__v1__keep_verified_reply__descriptor,
    &holdfast__v1__ask_save_request__descriptor,
    &holdfast__v1__ask_save_reply__descriptor,
    &holdfast__v1__attend_request__descriptor,
    &holdfast__v1__attend_reply__descriptor,
};
#define NUM_TYPES (sizeof types / sizeof types[0])

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

static void take_places(const void *text, size_t bytes)
{
    struct places places;
    const struct manifest_summary summary = {.nonce = "0123456789abcdef0123456789abcdef",
                                             .shards = 2};
    if (places_read(&places, text, bytes, &summary) != 0)
        return;
    for (uint32_t i = 0; i < places.num_shards; i++)
        places_is_here(&places, i);
    places_free(&places);
}

/* A refused key is no key of a store; an accepted one stays inside the store. */
static void take_key(const char *key)
{
    struct manifest_summary place;
    const char *name;
    char run[RUN_NAME_MAX + 1];
    uint64_t number;
    for (int kind = STORE_KEY_NONE; kind <= STORE_KEY_LEASE; kind++)
        store_key_check((enum store_key_kind)kind, key);
    store_key_parse(&place, &name, key);
    store_key_parse_attempt(run, &number, key);
}

static void take_status(const char *text)
{
    json_t *told;
    if (peer_status_read(&told, text) == 0)
        json_decref(told);
}

static void take_node(const ProtobufCMessage *message)
{
    if (message->descriptor == &holdfast__v1__report_part_reply__descriptor) {
        const Holdfast__V1__ReportPartReply *reply = (const Holdfast__V1__ReportPartReply *)message;
        take_summary(reply->manifest.data, reply->manifest.len);
        take_places(reply->places.data, reply->places.len);
    }
    if (message->descriptor == &holdfast__v1__peer_request__descriptor)
        take_key(((const Holdfast__V1__PeerRequest *)message)->key);
    if (message->descriptor == &holdfast__v1__status_reply__descriptor)
        take_status(((const Holdfast__V1__StatusReply *)message)->json);
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
    take_node(message);
    protobuf_c_message_free_unpacked(message, NULL);
}

static bool has_type(const ProtobufCMessageDescriptor *type)
{
    for (size_t i = 0; i < NUM_TYPES; i++)
        if (types[i] == type)
            return true;
    return false;
}

static void check_types(void)
{
    static bool is_checked;
    for (const struct rpc_method *method = service_calls; method->name && !is_checked; method++)
        CHECK(has_type(method->request) && has_type(method->reply));
    is_checked = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    rpc_start();
    check_types();
    if (bytes == 0)
        return 0;
    size_t kind = data[0] % NUM_TYPES;
    if (types[kind] != NULL)
        try_message(kind, data + 1, bytes - 1);
    return 0;
}
