/* rpc_calls.c - the calls of a server: from the request to the last event. The head of rpc.c
 * describes the stages and the limits. */
#include "proto/wire/rpc_private.h"

#include "proto/base/report.h"
#include "proto/wire/rpc_health.h"
#include "proto/wire/rpc_text.h"

#include <grpc/byte_buffer_reader.h>
#include <grpc/support/alloc.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALLS_MAX 1024u
#define CONNECTION_CALLS_SURE 4u /* a rank begins a save while it waits for another */
#define ANSWER_BYTES_MAX (32u << 20)
#define ANSWER_BYTES_FREE (4u << 10)
#define REQUESTED_CALLS 16u /* calls that gRPC may deliver without waiting */

/* ---- Hand-over ---- */

/* One for all calls: in a field of the call the first access is itself a race. */
static atomic_uint handover;

static void handover_out(void)
{
    atomic_fetch_add_explicit(&handover, 1, memory_order_release);
}

static void handover_in(void)
{
    atomic_fetch_add_explicit(&handover, 1, memory_order_acquire);
}

/* ---- Calls ---- */

/* Called with the mutex held; releases it. The call was unlinked or never linked. */
static void call_free_unlock(struct rpc_call *call)
{
    struct rpc_server *server = call->server;
    grpc_call_details_destroy(&call->details);
    grpc_metadata_array_destroy(&call->metadata);
    free(call);
    rpc_server_unref_unlock(server);
}

static void call_link(struct rpc_call *call)
{
    struct rpc_server *server = call->server;
    call->next = server->calls;
    if (call->next)
        call->next->prev = call;
    server->calls = call;
    server->num_calls++;
    server->num_open++;
}

static void call_unlink(struct rpc_call *call)
{
    struct rpc_server *server = call->server;
    if (call->prev)
        call->prev->next = call->next;
    else
        server->calls = call->next;
    if (call->next)
        call->next->prev = call->prev;
    server->num_calls--;
}

/* Requests one more call from gRPC. False: gRPC refused, or there is no memory. Mutex held. */
static bool request_call(struct rpc_server *server)
{
    struct rpc_call *call = calloc(1, sizeof *call);
    if (!call)
        return false;
    call->server = server;
    grpc_call_details_init(&call->details);
    grpc_metadata_array_init(&call->metadata);
    handover_out();
    if (grpc_server_request_call(server->grpc, &call->call, &call->details, &call->metadata,
                                 server->queue, server->queue, call) != GRPC_CALL_OK) {
        grpc_call_details_destroy(&call->details);
        grpc_metadata_array_destroy(&call->metadata);
        free(call);
        return false;
    }
    server->num_refs++;
    server->num_requested++;
    return true;
}

bool rpc_request_calls(struct rpc_server *server)
{
    bool enough = true;
    pthread_mutex_lock(&server->mutex);
    while (enough && !server->closing && server->num_requested < REQUESTED_CALLS)
        enough = request_call(server);
    if (!enough && !server->lacks_memory)
        log_warn("rpc", "out of memory: fewer calls than %u can be accepted at a time",
                 REQUESTED_CALLS);
    server->lacks_memory = !enough;
    pthread_mutex_unlock(&server->mutex);
    return enough;
}

/* After this the call belongs to the thread that receives its next event. */
static void call_start(struct rpc_call *call, const grpc_op *ops, size_t count)
{
    grpc_call *started = call->call;
    handover_out();
    grpc_call_error error = grpc_call_start_batch(started, ops, count, call, NULL);
    CHECK(error == GRPC_CALL_OK);
}

void rpc_call_send(struct rpc_call *call, grpc_byte_buffer *reply, grpc_status_code status,
                   const char *text)
{
    CHECK(call->stage != STAGE_REQUESTED && call->stage != STAGE_SENDING);
    call->stage = STAGE_SENDING;
    grpc_slice details = grpc_slice_from_copied_string(text ? text : "");
    grpc_op ops[4];
    memset(ops, 0, sizeof ops);
    size_t count = 0;
    ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
    if (reply) {
        ops[count].op = GRPC_OP_SEND_MESSAGE;
        ops[count++].data.send_message.send_message = reply;
    }
    ops[count].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    ops[count].data.send_status_from_server.status = status;
    ops[count++].data.send_status_from_server.status_details = text ? &details : NULL;
    ops[count].op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    ops[count++].data.recv_close_on_server.cancelled = &call->cancelled;
    call_start(call, ops, count);
    grpc_slice_unref(details);
    if (reply)
        grpc_byte_buffer_destroy(reply);
}

/* The layer itself answers a call that has no owner. */
static void call_refuse(struct rpc_call *call, grpc_status_code status, int error,
                        const char *message)
{
    char text[RPC_TEXT_MAX];
    report_set(error, message, "", "");
    rpc_text_write(text, error);
    pthread_mutex_lock(&call->server->mutex);
    rpc_call_send(call, NULL, status, text);
    pthread_mutex_unlock(&call->server->mutex);
}

static void free_request(struct rpc_call *call)
{
    if (!call->request)
        return;
    protobuf_c_message_free_unpacked(call->request, NULL);
    rpc_share_return(&call->share);
    rpc_peers_let_go(&call->server->peers, call->connection, RPC_HELD_REQUESTS, call->held_bytes);
    call->held_bytes = 0;
    call->request = NULL;
}

static void let_answer_go(struct rpc_call *call)
{
    rpc_peers_let_go(&call->server->peers, call->connection, RPC_HELD_ANSWERS, call->answer_bytes);
    call->answer_bytes = 0;
}

/* Reserves memory for an answer of `bytes` until its client has read it. False: it is not free. */
static bool hold_answer(struct rpc_call *call, size_t bytes)
{
    bool held =
        bytes > ANSWER_BYTES_FREE && rpc_peers_hold(&call->server->peers, call->connection,
                                                    RPC_HELD_ANSWERS, bytes, ANSWER_BYTES_MAX);
    call->answer_bytes = held ? bytes : 0;
    return held || bytes <= ANSWER_BYTES_FREE;
}

/* Sends the owner's answer; the owner's reference to the call ends here. */
static void call_answer(struct rpc_call *call, grpc_byte_buffer *reply, grpc_status_code status,
                        const char *text)
{
    struct rpc_server *server = call->server;
    free_request(call);
    pthread_mutex_lock(&server->mutex);
    CHECK(call->owned);
    call->owned = false;
    if (call->stage == STAGE_HANDLED) {
        rpc_call_send(call, reply, status, text);
        pthread_mutex_unlock(&server->mutex);
        return;
    }
    /* The server closed meanwhile and answered. `call` is NULL after the last event. */
    if (reply)
        grpc_byte_buffer_destroy(reply);
    let_answer_go(call);
    if (call->call) {
        pthread_mutex_unlock(&server->mutex);
        return;
    }
    call_unlink(call);
    call_free_unlock(call);
}

bool rpc_call_principal(struct rpc_call *call, struct principal *out, char out_who[RPC_WHO_MAX])
{
    struct rpc_server *server = call->server;
    struct rpc_peer found = {.peer = {.uid = (uid_t)-1}};
    bool is_known = rpc_peers_find(&server->peers, &found, call->connection) == 0;
    if (is_known)
        principal_text(out_who, &found.peer);
    else
        snprintf(out_who, RPC_WHO_MAX, "somebody who has gone");
    *out = found.peer;
    return is_known;
}

void rpc_call_fail(struct rpc_call *call, int error)
{
    char text[RPC_TEXT_MAX];
    CHECK(error < 0);
    rpc_text_write(text, error);
    call_answer(call, NULL, (grpc_status_code)err_grpc_status(error), text);
}

int rpc_call_check_reply(const struct rpc_call *call, const ProtobufCMessage *reply)
{
    CHECK(reply->descriptor == call->method->reply);
    if (protobuf_c_message_get_packed_size(reply) <= RPC_MESSAGE_BYTES_MAX)
        return 0;
    return report_error(ERR_INVALID, "ask for less at once",
                        "the reply of %s was larger than %u bytes", call->method->name,
                        RPC_MESSAGE_BYTES_MAX);
}

void rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *reply)
{
    int error = rpc_call_check_reply(call, reply);
    if (error == 0 && !hold_answer(call, protobuf_c_message_get_packed_size(reply)))
        error = report_error(ERR_BUSY, "read the answers that came, then ask again",
                             "answers that clients have not read took all memory that is for them");
    if (error != 0)
        rpc_call_fail(call, error);
    else
        call_answer(call, rpc_pack(reply), GRPC_STATUS_OK, NULL);
}

static void call_health(struct rpc_call *call, enum rpc_health asked)
{
    struct rpc_server *server = call->server;
    if (asked == RPC_HEALTH_UNKNOWN) {
        call_refuse(call, GRPC_STATUS_NOT_FOUND, ERR_NOT_FOUND, "the service is not known");
        return;
    }
    bool good =
        atomic_load(&server->serving) && (asked == RPC_HEALTH_SERVER || atomic_load(&server->able));
    pthread_mutex_lock(&server->mutex);
    rpc_call_send(call, rpc_health_answer(good), GRPC_STATUS_OK, NULL);
    pthread_mutex_unlock(&server->mutex);
}

static int connection_of(grpc_call *call)
{
    char *name = grpc_call_get_peer(call);
    int number = rpc_peers_number(name);
    gpr_free(name);
    return number;
}

/* May a call of that connection begin? A peer that uses all calls, with endless requests or reset
 * streams, does not shut out other peers. Mutex held. */
static bool has_room(const struct rpc_server *server, int connection)
{
    if (server->num_calls < CALLS_MAX)
        return true;
    uint32_t count = 0;
    for (const struct rpc_call *call = server->calls; call; call = call->next)
        if (call->connection == connection && ++count == CONNECTION_CALLS_SURE)
            return false;
    return true;
}

/* A new call arrived: finds its method, then receives its request. */
static void call_arrived(struct rpc_call *call)
{
    struct rpc_server *server = call->server;
    call->connection = connection_of(call->call);
    pthread_mutex_lock(&server->mutex);
    call->stage = STAGE_RECEIVING;
    bool full = !has_room(server, call->connection);
    call_link(call);
    pthread_mutex_unlock(&server->mutex);
    if (full) {
        call_refuse(call, GRPC_STATUS_RESOURCE_EXHAUSTED, ERR_BUSY,
                    "too many calls were in work at once");
        return;
    }
    bool health = grpc_slice_str_cmp(call->details.method, RPC_HEALTH_METHOD) == 0;
    for (const struct rpc_method *m = server->methods; m->name && !call->method && !health; m++)
        if (grpc_slice_str_cmp(call->details.method, m->name) == 0)
            call->method = m;
    if (!health && !call->method) {
        call_refuse(call, GRPC_STATUS_UNIMPLEMENTED, ERR_VERSION, "the method is not known");
        return;
    }
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &call->payload;
    call_start(call, &op, 1);
}

/* Errors as of rpc_unpack(). */
static int unpack_request(struct rpc_call *call)
{
    struct rpc_server *server = call->server;
    int error = rpc_unpack(&call->request, &call->share, call->payload, call->method->request);
    if (error != 0 || call->share.bytes <= RPC_SHARE_BYTES_SURE)
        return error;
    if (rpc_peers_hold(&server->peers, call->connection, RPC_HELD_REQUESTS, call->share.bytes,
                       server->request_bytes))
        call->held_bytes = call->share.bytes;
    else
        free_request(call);
    return call->request ? 0 : ERR_BUSY;
}

static void call_received(struct rpc_call *call)
{
    struct rpc_server *server = call->server;
    if (!call->payload) {
        rpc_peers_blame(&server->peers, call->connection);
        call_refuse(call, GRPC_STATUS_INVALID_ARGUMENT, ERR_INVALID, "the request did not arrive");
        return;
    }
    /* Read the payload before the answer: after it another thread may free the call. */
    enum rpc_health asked =
        call->method ? RPC_HEALTH_UNKNOWN : rpc_health_asked(call->payload, server->methods);
    int error = 0;
    call->share = (struct rpc_share){.held = &server->held, .max = server->request_bytes};
    if (call->method)
        error = unpack_request(call);
    grpc_byte_buffer_destroy(call->payload);
    call->payload = NULL;
    if (!call->method) {
        call_health(call, asked);
        return;
    }
    if (error == ERR_MEMORY || error == ERR_BUSY) {
        call_refuse(call, GRPC_STATUS_RESOURCE_EXHAUSTED, error,
                    error == ERR_MEMORY ? "no memory for the request"
                                        : "the requests in work took all memory that is for them");
        return;
    }
    if (error != 0) {
        call_refuse(call, GRPC_STATUS_INVALID_ARGUMENT, ERR_INVALID,
                    "the request could not be unpacked");
        return;
    }
    pthread_mutex_lock(&server->mutex);
    bool closing = server->closing;
    if (!closing) {
        call->stage = STAGE_HANDLED;
        call->owned = true;
    }
    pthread_mutex_unlock(&server->mutex);
    if (!closing) {
        call->method->handle(server->user, call, call->request);
        return;
    }
    free_request(call);
    call_refuse(call, GRPC_STATUS_UNAVAILABLE, ERR_UNAVAILABLE, "the server is closing");
}

static void call_sent(struct rpc_call *call)
{
    pthread_mutex_lock(&call->server->mutex);
    let_answer_go(call);
    grpc_call_unref(call->call);
    call->call = NULL;
    if (--call->server->num_open == 0)
        pthread_cond_broadcast(&call->server->changed);
    if (call->owned) { /* the owner frees the rest */
        pthread_mutex_unlock(&call->server->mutex);
        return;
    }
    call_unlink(call);
    call_free_unlock(call);
}

void rpc_call_step(struct rpc_call *call, bool success)
{
    handover_in();
    pthread_mutex_lock(&call->server->mutex);
    enum stage stage = call->stage;
    if (stage == STAGE_REQUESTED)
        call->server->num_requested--;
    if (stage == STAGE_REQUESTED && !success) { /* the server is closing */
        call_free_unlock(call);
        return;
    }
    pthread_mutex_unlock(&call->server->mutex);
    if (stage == STAGE_REQUESTED)
        call_arrived(call);
    else if (stage == STAGE_RECEIVING)
        call_received(call);
    else
        call_sent(call);
}
