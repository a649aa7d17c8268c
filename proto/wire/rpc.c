/* rpc.c - the server's side of unary calls over the gRPC C core; rpc_client.c is the other.
 *
 * One completion queue, a few threads that take events from it. A call is a struct, which is also
 * the tag of each of its events, and passes through the stages of enum stage. The server requests
 * calls generically, so it answers an unknown method itself (UNIMPLEMENTED). A call has two
 * holders: its owner (the handler, until it answers) and the layer (until the last event came).
 * When the server closes before the owner answers, the layer answers instead, and the owner's later
 * answer only frees the call. So an answer is safe at any time, even after close.
 *
 * Limits: CALLS_MAX calls in work per server (answered ERR_BUSY; but every connection may have
 * CONNECTION_CALLS_SURE, whatever the others do), and CONNECTION_CALLS_MAX of one connection
 * (gRPC's clients wait; another's connection is closed); METADATA_BYTES_MAX of a call (it is
 * cancelled); BUFFER_BYTES_MAX in gRPC (it resets streams; the guard lets far less in);
 * request_bytes of unanswered requests (ERR_BUSY; each may have RPC_SHARE_BYTES_SURE);
 * ANSWER_BYTES_MAX of answers that are not read (ERR_BUSY; those up to ANSWER_BYTES_FREE do not
 * count); more in rpc_guard.h, rpc_peers.h and rpc_wire.h.
 *
 * gRPC is not built for thread sanitizers. So every hand-over between threads also uses an atomic
 * in rpc_calls.c, which shows them the order of our memory accesses. */
#include "proto/wire/rpc_frames.h"

#include "proto/base/clock.h"
#include "proto/wire/rpc_private.h"

#include "proto/base/report.h"

#include <grpc/grpc_posix.h>
#include <grpc/support/time.h>

#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define CONNECTION_CALLS_MAX 128u
#define METADATA_BYTES_MAX 8192 /* a stock client sends some hundred bytes */
#define BUFFER_BYTES_MAX (256u << 20)
/* Bytes of a request that gRPC buffers before a call exists for it. */
#define STREAM_AHEAD_BYTES (16 << 10)
#define REQUEST_AGAIN_MS 500u /* retry after memory for a requested call was short */
#define CLOSE_FLUSH_MS 200u   /* for the last answers to reach slow clients */
#define ALIVE_MS_MIN 2000     /* minimum interval of clients' pings while a call is under way */

void rpc_server_unref_unlock(struct rpc_server *server)
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

/* The next event. First requests new calls for those that arrived. If that fails, events may stop,
 * so the wait is short. */
static grpc_event next_event(struct rpc_server *server)
{
    gpr_timespec until = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    if (!rpc_request_calls(server))
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
            rpc_call_step(event.tag, event.success);
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

/* Waits for server_quiet(), at most `ms`. Mutex held. */
static bool server_wait_quiet(struct rpc_server *server, uint32_t ms)
{
    const struct timespec until = clock_after_ns(CLOCK_MONOTONIC, (uint64_t)ms * 1000000);
    while (!server_quiet(server))
        if (pthread_cond_timedwait(&server->changed, &server->mutex, &until) == ETIMEDOUT)
            break;
    return server_quiet(server);
}

/* Joins the threads and drops the opener's reference. */
static void server_end(struct rpc_server *server)
{
    for (uint32_t i = 0; i < server->num_threads; i++)
        pthread_join(server->threads[i], NULL);
    grpc_server_destroy(server->grpc);
    grpc_completion_queue_destroy(server->queue);
    rpc_guard_close(server->guard);
    pthread_mutex_lock(&server->mutex);
    rpc_server_unref_unlock(server);
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
    if (!server_wait_quiet(server, grace_ms)) {
        for (struct rpc_call *call = server->calls; call; call = call->next)
            if (call->stage == STAGE_HANDLED)
                rpc_call_send(call, NULL, GRPC_STATUS_UNAVAILABLE, text);
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

/* Creates gRPC's server with our limits. It buffers whole messages before it checks their length,
 * so the buffers of all connections together have a separate limit. */
static grpc_server *create_grpc(void)
{
    grpc_resource_quota *quota = grpc_resource_quota_create("holdfast");
    grpc_resource_quota_resize(quota, BUFFER_BYTES_MAX);
    grpc_arg args[] = {
        rpc_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, RPC_MESSAGE_BYTES_MAX),
        rpc_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, RPC_MESSAGE_BYTES_MAX),
        rpc_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, CONNECTION_CALLS_MAX),
        rpc_arg(GRPC_ARG_MAX_METADATA_SIZE, METADATA_BYTES_MAX),
        rpc_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, ALIVE_MS_MIN),
        /* With windows that grow with the rate a client can fill all buffers at once. */
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

/* A callback of the guard. */
static int connect_grpc(void *user, int *out, const struct principal *peer)
{
    struct rpc_server *server = user;
    int of_grpc = -1, of_guard = -1;
    ERR_TRY(rpc_peers_connect(&server->peers, &of_grpc, &of_guard, peer));
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    pthread_mutex_lock(&server->mutex);
    bool closing = server->closing;
    if (!closing)
        grpc_server_add_channel_from_fd(server->grpc, of_grpc, credentials);
    pthread_mutex_unlock(&server->mutex);
    grpc_server_credentials_release(credentials);
    *out = of_guard;
    if (!closing)
        return 0;
    close(of_grpc);
    close(of_guard);
    return report_error(ERR_UNAVAILABLE, NULL, "the server is closing");
}

int rpc_server_open(struct rpc_server **out, const struct rpc_server_options *options)
{
    CHECK(options->num_threads >= 1 && options->num_threads <= THREADS_MAX);
    CHECK(options->silent_ms >= 1 && options->request_bytes >= 1);
    struct rpc_server *server = calloc(1, sizeof *server);
    if (!server)
        return report_error(ERR_MEMORY, NULL, "no memory for the RPC server");
    uint32_t per_second =
        options->budget_per_second ? options->budget_per_second : RPC_BUDGET_PER_SECOND;
    uint64_t burst = (uint64_t)per_second * RPC_BUDGET_BURST / RPC_BUDGET_PER_SECOND;
    const struct rpc_guard_options guard = {.num_places = options->num_connections,
                                            .silent_ms = options->silent_ms,
                                            .tls_directory = options->tls_directory,
                                            .user = server,
                                            .connect = connect_grpc,
                                            .budget_per_second = per_second,
                                            .budget_burst =
                                                burst < UINT32_MAX ? (uint32_t)burst : UINT32_MAX};
    /* Connections that the guard has closed stay in the list until gRPC has closed them, too. */
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
        server_thread(server); /* drains the queue on this thread */
        server_end(server);
        return report_error(ERR_MEMORY, NULL, "no thread of the RPC server could be started");
    }
    *out = server;
    return 0;
}

int rpc_server_adopt(struct rpc_server *server, int socket, const struct principal *peer)
{
    return rpc_guard_adopt(server->guard, socket, peer);
}

int rpc_server_adopt_stranger(struct rpc_server *server, int socket, const char *from)
{
    return rpc_guard_adopt_stranger(server->guard, socket, from);
}

int64_t rpc_server_tls_end_s(const struct rpc_server *server)
{
    return rpc_guard_tls_end_s(server->guard);
}

int rpc_server_charge(struct rpc_server *server, const struct principal *peer, uint32_t cost)
{
    return rpc_guard_charge(server->guard, peer, cost);
}

void rpc_server_set_serving(struct rpc_server *server, bool serving)
{
    atomic_store(&server->serving, serving);
}

void rpc_server_set_able(struct rpc_server *server, bool able)
{
    atomic_store(&server->able, able);
}
