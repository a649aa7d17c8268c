/* rpc.c - the server's side of unary calls over the gRPC C core; rpc_client.c is the other.
 *
 * One completion queue, a few threads that take events from it. A call is a struct that is
 * at the same time the tag of each of its events, and walks through the stages of enum stage. Calls
 * are requested generically, so an unknown method is answered by us (UNIMPLEMENTED) and not left
 * hanging. A call has two holders: its owner (the handler, until it answers) and the layer (until
 * the last event came). When the server closes under an owner, the layer answers in its place and
 * the owner's later answer only frees the husk; so an answer is safe at any time, even after close.
 *
 * The one exception to unary calls is reflection (rpc_reflection.c): a stream has no owner and one
 * event at a time, which says that its last answer went out and its next request came, or that no
 * more will come. When the server closes, streams are cancelled at once, whatever the grace.
 *
 * Limits: CALLS_MAX calls in work per server (answered ERR_BUSY; but every connection may have
 * CONNECTION_CALLS_SURE, whatever the others do), of them STREAMS_MAX streams, and
 * CONNECTION_CALLS_MAX of one connection (gRPC's clients wait; another's connection is closed);
 * METADATA_BYTES_MAX of a call (it is cancelled); BUFFER_BYTES_MAX in gRPC (it resets streams; the
 * guard lets far less in); request_bytes of unanswered requests (ERR_BUSY; each may have
 * RPC_SHARE_BYTES_SURE); ANSWER_BYTES_MAX of answers that are not read (ERR_BUSY; those up to
 * ANSWER_BYTES_FREE do not count); more in rpc_guard.h, rpc_peers.h and rpc_wire.h.
 *
 * gRPC is not built for thread sanitizers, so every hand-over between threads also goes through an
 * atomic of ours (handover_out, handover_in), which orders our own memory in their eyes. */
#include "proto/rpc.h"

#include "proto/report.h"
#include "proto/rpc_guard.h"
#include "proto/rpc_health.h"
#include "proto/rpc_peers.h"
#include "proto/rpc_reflection.h"
#include "proto/rpc_text.h"
#include "proto/rpc_wire.h"

#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc_posix.h>
#include <grpc/status.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CALLS_MAX 1024u
#define CONNECTION_CALLS_MAX 128u
#define CONNECTION_CALLS_SURE 4u /* a rank begins a save while it waits for another */
#define METADATA_BYTES_MAX 8192  /* a stock client sends some hundred bytes */
#define BUFFER_BYTES_MAX (256u << 20)
#define STREAM_AHEAD_BYTES (16 << 10) /* taken of a request before a call is there for it */
#define ANSWER_BYTES_MAX (32u << 20)
#define ANSWER_BYTES_FREE (4u << 10)
#define STREAMS_MAX 16u
#define REQUESTED_CALLS 16u   /* calls that gRPC may hand us without waiting */
#define REQUEST_AGAIN_MS 500u /* where there was no memory to ask for as many */
#define THREADS_MAX 64u
#define CLOSE_FLUSH_MS 200u /* for the last answers to reach slow clients */

/* ---- Hand-over ---- */

/* One for all calls: were it a field of the call, the first look at it would be a race itself. */
static atomic_uint handover;

static void handover_out(void)
{
    atomic_fetch_add_explicit(&handover, 1, memory_order_release);
}

static void handover_in(void)
{
    atomic_fetch_add_explicit(&handover, 1, memory_order_acquire);
}

/* ---- Server ---- */

enum stage {
    STAGE_REQUESTED, /* gRPC will fill in a new call */
    STAGE_RECEIVING, /* its request is on the way */
    STAGE_HANDLED,   /* with its owner */
    STAGE_STREAMING, /* the stream's next event is on the way */
    STAGE_SENDING    /* the answer is on the way; the last event */
};

struct rpc_call {
    struct rpc_server *server;
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    grpc_byte_buffer *payload;
    const struct rpc_method *method; /* NULL for the health check */
    ProtobufCMessage *request;
    struct rpc_share share; /* the request's, of server->held */
    size_t held_bytes;      /* of the request, as server->peers has them */
    size_t answer_bytes;    /* likewise of the answer */
    int connection;         /* its number, see rpc_peers.h */
    int cancelled;
    bool stream;  /* of reflection, and counted */
    bool greeted; /* a stream's initial metadata was sent */
    /* Guarded by server->mutex. */
    struct rpc_call *prev, *next; /* every call past STAGE_REQUESTED */
    enum stage stage;
    bool owned; /* the handler has yet to answer */
};

struct rpc_server {
    const struct rpc_method *methods;
    void *user;
    grpc_server *grpc;
    grpc_completion_queue *queue;
    pthread_t threads[THREADS_MAX];
    uint32_t num_threads;
    atomic_bool serving, able;
    atomic_size_t held;   /* bytes of requests */
    size_t request_bytes; /* the most of it */
    struct rpc_peers peers;
    struct rpc_guard *guard;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* Guarded by mutex. */
    bool closing, shut_down;
    bool lacks_memory;      /* for the next call, as the log was told */
    uint32_t num_requested; /* calls that gRPC has yet to hand us */
    struct rpc_call *calls;
    uint32_t num_calls;
    uint32_t num_open;    /* of the calls, those that gRPC still works on */
    uint32_t num_streams; /* of the open ones */
    uint32_t num_refs;    /* the opener, and every call; freed at 0 */
};

static void server_unref_unlock(struct rpc_server *server)
{
    bool last = --server->num_refs == 0;
    pthread_mutex_unlock(&server->mutex);
    if (!last)
        return;
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->mutex);
    rpc_peers_deinit(&server->peers);
    free(server);
}

/* Called with the mutex held; releases it. The call was unlinked or never linked. */
static void call_free_unlock(struct rpc_call *call)
{
    struct rpc_server *server = call->server;
    grpc_call_details_destroy(&call->details);
    grpc_metadata_array_destroy(&call->metadata);
    free(call);
    server_unref_unlock(server);
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

/* Asks gRPC for one more call. False: it is refused, or there is no memory. Mutex held. */
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

/* Asks gRPC for calls until REQUESTED_CALLS are asked for. False: there are fewer. */
static bool request_calls(struct rpc_server *server)
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

/* From here on the call belongs to the thread that takes its next event. */
static void call_start(struct rpc_call *call, const grpc_op *ops, size_t count)
{
    grpc_call *started = call->call;
    handover_out();
    grpc_call_error error = grpc_call_start_batch(started, ops, count, call, NULL);
    CHECK(error == GRPC_CALL_OK);
}

/* Starts the last batch of a call. Takes `reply` (NULL when the status is not OK). Mutex held. */
static void call_send(struct rpc_call *call, grpc_byte_buffer *reply, grpc_status_code status,
                      const char *text)
{
    CHECK(call->stage != STAGE_REQUESTED && call->stage != STAGE_SENDING);
    call->stage = STAGE_SENDING;
    grpc_slice details = grpc_slice_from_copied_string(text ? text : "");
    grpc_op ops[4];
    memset(ops, 0, sizeof ops);
    size_t count = 0;
    if (!call->greeted)
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

/* The layer's own answer to a call that has no owner. */
static void call_refuse(struct rpc_call *call, grpc_status_code status, int error,
                        const char *message)
{
    char text[RPC_TEXT_MAX];
    report_set(error, message, "", "");
    rpc_text_write(text, error);
    pthread_mutex_lock(&call->server->mutex);
    call_send(call, NULL, status, text);
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

/* Is there memory for an answer of so many bytes until its client has read it? */
static bool hold_answer(struct rpc_call *call, size_t bytes)
{
    bool held =
        bytes > ANSWER_BYTES_FREE && rpc_peers_hold(&call->server->peers, call->connection,
                                                    RPC_HELD_ANSWERS, bytes, ANSWER_BYTES_MAX);
    call->answer_bytes = held ? bytes : 0;
    return held || bytes <= ANSWER_BYTES_FREE;
}

/* The owner's answer; its share of the call ends here. */
static void call_answer(struct rpc_call *call, grpc_byte_buffer *reply, grpc_status_code status,
                        const char *text)
{
    struct rpc_server *server = call->server;
    free_request(call);
    pthread_mutex_lock(&server->mutex);
    CHECK(call->owned);
    call->owned = false;
    if (call->stage == STAGE_HANDLED) {
        call_send(call, reply, status, text);
        pthread_mutex_unlock(&server->mutex);
        return;
    }
    /* The server closed meanwhile and answered. `call` is NULL once the last event came. */
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
    call_send(call, rpc_health_answer(good), GRPC_STATUS_OK, NULL);
    pthread_mutex_unlock(&server->mutex);
}

/* Sends `answer` (NULL on a new stream) and receives the next request. Mutex held. */
static void stream_next(struct rpc_call *call, grpc_byte_buffer *answer)
{
    grpc_op ops[3];
    memset(ops, 0, sizeof ops);
    size_t count = 0;
    call->stage = STAGE_STREAMING;
    if (answer && !call->greeted) {
        ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
        call->greeted = true;
    }
    if (answer) {
        ops[count].op = GRPC_OP_SEND_MESSAGE;
        ops[count++].data.send_message.send_message = answer;
    }
    ops[count].op = GRPC_OP_RECV_MESSAGE;
    ops[count++].data.recv_message.recv_message = &call->payload;
    call_start(call, ops, count);
}

static void stream_open(struct rpc_call *call)
{
    struct rpc_server *server = call->server;
    pthread_mutex_lock(&server->mutex);
    bool closing = server->closing, full = server->num_streams >= STREAMS_MAX;
    if (!closing && !full) {
        call->stream = true;
        server->num_streams++;
        stream_next(call, NULL);
    }
    pthread_mutex_unlock(&server->mutex);
    if (closing)
        call_refuse(call, GRPC_STATUS_UNAVAILABLE, ERR_UNAVAILABLE, "the server is closing");
    else if (full)
        call_refuse(call, GRPC_STATUS_RESOURCE_EXHAUSTED, ERR_BUSY,
                    "too many streams were open at once");
}

static void stream_step(struct rpc_call *call)
{
    struct rpc_server *server = call->server;
    if (!call->payload) { /* the client half-closed, or the stream was cancelled */
        pthread_mutex_lock(&server->mutex);
        call_send(call, NULL, GRPC_STATUS_OK, NULL);
        pthread_mutex_unlock(&server->mutex);
        return;
    }
    grpc_byte_buffer *answer = rpc_reflection_answer(call->payload, server->methods);
    grpc_byte_buffer_destroy(call->payload);
    call->payload = NULL;
    if (!answer) {
        call_refuse(call, GRPC_STATUS_INVALID_ARGUMENT, ERR_INVALID,
                    "the request could not be unpacked, or its answer was too large");
        return;
    }
    pthread_mutex_lock(&server->mutex);
    bool closing = server->closing;
    if (!closing)
        stream_next(call, answer);
    pthread_mutex_unlock(&server->mutex);
    grpc_byte_buffer_destroy(answer);
    if (closing)
        call_refuse(call, GRPC_STATUS_UNAVAILABLE, ERR_UNAVAILABLE, "the server is closing");
}

static int connection_of(grpc_call *call)
{
    char *name = grpc_call_get_peer(call);
    int number = rpc_peers_number(name);
    gpr_free(name);
    return number;
}

/* May a call of that connection be worked on? One peer that holds all there is, say with requests
 * whose end never comes or streams that it resets, keeps nobody else out. Mutex held. */
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

/* A new call came: find its method, then receive its request. */
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
    if (rpc_reflection_serves(call->details.method)) {
        stream_open(call);
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

/* As rpc_unpack. */
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
    /* Once it is answered, another thread may free the call: the payload goes before. */
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
    if (call->stream)
        call->server->num_streams--;
    if (--call->server->num_open == 0)
        pthread_cond_broadcast(&call->server->changed);
    if (call->owned) { /* the owner frees what is left */
        pthread_mutex_unlock(&call->server->mutex);
        return;
    }
    call_unlink(call);
    call_free_unlock(call);
}

static void call_step(struct rpc_call *call, bool success)
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
    else if (stage == STAGE_STREAMING)
        stream_step(call);
    else
        call_sent(call);
}

/* The next event. Calls are asked for first, in the place of those that came; where that fails, an
 * event may never come, so that the wait is short. */
static grpc_event next_event(struct rpc_server *server)
{
    gpr_timespec until = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    if (!request_calls(server))
        until = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                             gpr_time_from_millis(REQUEST_AGAIN_MS, GPR_TIMESPAN));
    return grpc_completion_queue_next(server->queue, until, NULL);
}

static void *server_thread(void *argument)
{
    struct rpc_server *server = argument;
    for (;;) {
        grpc_event event = next_event(server);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        if (event.type != GRPC_OP_COMPLETE)
            continue;
        if (event.tag != server) {
            call_step(event.tag, event.success);
            continue;
        }
        pthread_mutex_lock(&server->mutex);
        server->shut_down = true;
        pthread_cond_broadcast(&server->changed);
        pthread_mutex_unlock(&server->mutex);
    }
}

/* Has gRPC closed every connection and given back every call? Mutex held. */
static bool server_quiet(const struct rpc_server *server)
{
    return server->shut_down && server->num_open == 0;
}

/* Waits for that, at most `ms`. Mutex held. */
static bool server_wait_quiet(struct rpc_server *server, uint32_t ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    while (!server_quiet(server))
        if (pthread_cond_timedwait(&server->changed, &server->mutex, &until) == ETIMEDOUT)
            break;
    return server_quiet(server);
}

/* Ends the threads and drops the opener's reference. */
static void server_end(struct rpc_server *server)
{
    for (uint32_t i = 0; i < server->num_threads; i++)
        pthread_join(server->threads[i], NULL);
    grpc_server_destroy(server->grpc);
    grpc_completion_queue_destroy(server->queue);
    rpc_guard_close(server->guard);
    pthread_mutex_lock(&server->mutex);
    server_unref_unlock(server);
}

void rpc_server_close(struct rpc_server *server, uint32_t grace_ms)
{
    static const char text[] = "ERR_UNAVAILABLE|the server closed before it answered||";
    if (!server)
        return;
    atomic_store(&server->serving, false);
    pthread_mutex_lock(&server->mutex);
    server->closing = true;
    grpc_server_shutdown_and_notify(server->grpc, server->queue, server);
    for (struct rpc_call *call = server->calls; call; call = call->next)
        if (call->stage == STAGE_STREAMING) /* its next event then says that there is no request */
            grpc_call_cancel_with_status(call->call, GRPC_STATUS_UNAVAILABLE, text, NULL);
    if (!server_wait_quiet(server, grace_ms)) {
        for (struct rpc_call *call = server->calls; call; call = call->next)
            if (call->stage == STAGE_HANDLED)
                call_send(call, NULL, GRPC_STATUS_UNAVAILABLE, text);
        if (!server_wait_quiet(server, CLOSE_FLUSH_MS)) {
            pthread_mutex_unlock(&server->mutex);
            grpc_server_cancel_all_calls(server->grpc);
            pthread_mutex_lock(&server->mutex);
        }
    }
    while (!server_quiet(server))
        pthread_cond_wait(&server->changed, &server->mutex);
    pthread_mutex_unlock(&server->mutex);
    grpc_completion_queue_shutdown(server->queue);
    server_end(server);
}

/* gRPC's server with our limits. It takes whole messages before it looks how long they are, so that
 * what all connections may buffer has a limit of its own. */
static grpc_server *create_grpc(void)
{
    grpc_resource_quota *quota = grpc_resource_quota_create("holdfast");
    grpc_resource_quota_resize(quota, BUFFER_BYTES_MAX);
    grpc_arg args[] = {
        rpc_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, RPC_MESSAGE_BYTES_MAX),
        rpc_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, RPC_MESSAGE_BYTES_MAX),
        rpc_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, CONNECTION_CALLS_MAX),
        rpc_arg(GRPC_ARG_MAX_METADATA_SIZE, METADATA_BYTES_MAX),
        /* Windows that grow with the rate would let a client fill all buffers at once. */
        rpc_arg(GRPC_ARG_HTTP2_BDP_PROBE, 0),
        rpc_arg(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, STREAM_AHEAD_BYTES),
        {.type = GRPC_ARG_POINTER,
         .key = GRPC_ARG_RESOURCE_QUOTA,
         .value.pointer = {quota, grpc_resource_quota_arg_vtable()}},
    };
    const grpc_channel_args channel_args = {sizeof args / sizeof args[0], args};
    grpc_server *created = grpc_server_create(&channel_args, NULL);
    grpc_resource_quota_unref(quota);
    return created;
}

int rpc_server_open(struct rpc_server **out, const struct rpc_server_options *options)
{
    CHECK(options->num_threads >= 1 && options->num_threads <= THREADS_MAX);
    CHECK(options->silent_ms >= 1 && options->request_bytes >= 1);
    struct rpc_server *server = calloc(1, sizeof *server);
    if (!server)
        return report_error(ERR_MEMORY, NULL, "no memory for the RPC server");
    const struct rpc_guard_options guard = {.num_places = options->num_connections,
                                            .silent_ms = options->silent_ms};
    /* Those that the guard has closed are in the list until gRPC has closed them, too. */
    int error = rpc_peers_init(&server->peers, 2 * options->num_connections);
    if (error == 0 && (error = rpc_guard_open(&server->guard, &guard)) != 0)
        rpc_peers_deinit(&server->peers);
    if (error != 0) {
        free(server);
        return error;
    }
    server->request_bytes = options->request_bytes;
    rpc_start();
    server->methods = options->methods;
    server->user = options->user;
    server->num_refs = 1;
    atomic_store(&server->serving, true);
    atomic_store(&server->able, true);
    pthread_mutex_init(&server->mutex, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&server->changed, &attr);
    pthread_condattr_destroy(&attr);
    server->grpc = create_grpc();
    server->queue = grpc_completion_queue_create_for_next(NULL);
    grpc_server_register_completion_queue(server->grpc, server->queue, NULL);
    grpc_server_start(server->grpc);
    for (uint32_t i = 0; i < options->num_threads; i++) {
        if (pthread_create(&server->threads[i], NULL, server_thread, server) != 0)
            break;
        server->num_threads++;
    }
    if (server->num_threads == 0) {
        server->closing = true;
        grpc_server_shutdown_and_notify(server->grpc, server->queue, server);
        grpc_completion_queue_shutdown(server->queue);
        server_thread(server); /* drains the queue, here */
        server_end(server);
        return report_error(ERR_MEMORY, NULL, "no thread of the RPC server could be started");
    }
    *out = server;
    return 0;
}

int rpc_server_adopt(struct rpc_server *server, int socket, const struct principal *peer)
{
    int of_grpc = -1, of_guard = -1;
    int error = rpc_guard_make_room(server->guard, peer);
    if (error == 0)
        error = rpc_peers_connect(&server->peers, &of_grpc, &of_guard, peer);
    if (error != 0) {
        close(socket);
        return error;
    }
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    pthread_mutex_lock(&server->mutex);
    bool closing = server->closing;
    if (!closing)
        grpc_server_add_channel_from_fd(server->grpc, of_grpc, credentials);
    pthread_mutex_unlock(&server->mutex);
    grpc_server_credentials_release(credentials);
    if (!closing)
        return rpc_guard_add(server->guard, socket, of_guard, peer);
    close(of_grpc);
    close(of_guard);
    close(socket);
    return report_error(ERR_UNAVAILABLE, NULL, "the server is closing");
}

void rpc_server_set_serving(struct rpc_server *server, bool serving)
{
    atomic_store(&server->serving, serving);
}

void rpc_server_set_able(struct rpc_server *server, bool able)
{
    atomic_store(&server->able, able);
}
