/* server.c - see server.h. */
#include "proto/bulk/server.h"

#include "proto/base/checksum.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/tls/crowd.h"
#include "proto/tls/stream.h"
#include "proto/tls/tls.h"
#include "proto/wire/rpc.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define POLL_MS 500     /* how often an idle connection checks for the end */
#define PAUSE_US 100000 /* when the process is out of descriptors */
#define STACK_BYTES (512u << 10)
/* So many connections of an address without budget are closed at once; then all wait a little. */
#define REFUSED_AT_ONCE 16u
#define REFUSED_PAUSE_US 20000
#define COSTLY_PAUSE_US 50000 /* between two checks whether the budget allows a request */

struct connection {
    struct connection *next;
    struct bulk_server *server;
    struct tls_stream *stream; /* NULL: in the handshake */
    /* Also the connection's, until its ticket was accepted; then -1. Its shutdown ends a
     * handshake. */
    int socket;
    struct tls_newcomer newcomer;
    struct principal peer;
    struct bulk_entered *entered;
    bool is_over;     /* must end */
    bool has_left;    /* and logged: newcomers took its place before its handshake was finished */
    bool is_unhashed; /* BULK_UNHASHED was granted */
    void *room;
    struct bulk_server_counts counts; /* of its bytes and times, added to the server's at its end */
};

struct bulk_server {
    struct bulk_server_options options;
    struct tls_keys *keys;
    pthread_t thread;
    int wake;
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a connection has ended */
    struct connection *connections;
    struct tls_crowd crowd; /* of connections whose tickets were not accepted yet */
    struct bulk_server_counts counts;
    bool is_closing;
    struct log_limit refused;
};

/* Call it with the mutex. */
static void log_refused(struct bulk_server *server, const char *from, const char *why)
{
    server->counts.num_refused++;
    log_warn_limited(&server->refused, "bulk", "refused a connection from %s: %s", from, why);
}

/* ---- the budget of a peer ---- */

static bool address_may_cost(const struct bulk_server *server, const char *from, uint32_t cost)
{
    const struct principal stranger = principal_of_address(from);
    const struct bulk_ops *ops = server->options.ops;
    return !ops->may_cost || ops->may_cost(server->options.user, &stranger, cost);
}

static bool may_cost(const struct connection *connection, uint32_t cost)
{
    const struct bulk_server *server = connection->server;
    const struct bulk_ops *ops = server->options.ops;
    const struct principal payer =
        server->keys ? connection->peer : principal_of_address(connection->newcomer.from);
    return !ops->may_cost || ops->may_cost(server->options.user, &payer, cost);
}

/* ---- answers ---- */

static int send_answer(struct connection *connection, const struct bulk_answer *answer)
{
    return tls_stream_write(connection->stream, answer, sizeof *answer, BULK_STALL_MS);
}

/* Sends this thread's last error to the peer. */
static int send_error(struct connection *connection, int error)
{
    struct {
        struct bulk_answer answer;
        char text[BULK_TEXT_MAX];
    } out = {.answer = {.magic = BULK_MAGIC, .error = error}};
    snprintf(out.text, sizeof out.text, "%s", report_line());
    report_make_printable(out.text);
    out.answer.bytes = strlen(out.text);
    may_cost(connection, RPC_COST_REFUSED); /* charges it to the next request */
    return tls_stream_write(connection->stream, &out, sizeof out.answer + out.answer.bytes,
                            BULK_STALL_MS);
}

/* ---- requests; an error ends the connection ---- */

static int send_blocks(struct connection *connection, const struct bulk_request *request)
{
    const struct bulk_ops *ops = connection->server->options.ops;
    uint64_t end = request->offset + request->bytes;
    for (uint64_t at = request->offset, bytes; at < end; at += bytes) {
        const void *data = connection->room;
        bytes = end - at < BULK_BLOCK_BYTES ? end - at : BULK_BLOCK_BYTES;
        int error =
            ops->get_block(connection->entered, request, at, bytes, connection->room, &data);
        if (error != 0)
            return send_error(connection, error);
        int64_t begun = (int64_t)clock_ns();
        const struct bulk_answer answer = {
            .magic = BULK_MAGIC,
            .offset = at,
            .bytes = bytes,
            .hash = connection->is_unhashed ? 0 : checksum_bytes(data, bytes)};
        ERR_TRY(send_answer(connection, &answer));
        ERR_TRY(tls_stream_write(connection->stream, data, bytes, BULK_STALL_MS));
        connection->counts.bytes_out += bytes;
        connection->counts.ns_out += (uint64_t)((int64_t)clock_ns() - begun);
    }
    return 0;
}

static int serve_get(struct connection *connection, const struct bulk_request *request)
{
    const struct bulk_ops *ops = connection->server->options.ops;
    int error = ops->get_begin(connection->entered, request);
    if (error != 0)
        return send_error(connection, error);
    error = send_blocks(connection, request);
    ops->get_end(connection->entered);
    return error;
}

/* Reads the bytes of a refused PUT, which the peer has sent already. */
static int skip_block(struct connection *connection, uint64_t bytes)
{
    return tls_stream_read(connection->stream, connection->room, bytes, BULK_STALL_MS);
}

static int refuse_put(struct connection *connection, const struct bulk_request *request, int error)
{
    struct report_text text;
    report_keep(&text);
    ERR_TRY(skip_block(connection, request->bytes));
    return send_error(connection, report_restore(&text, error));
}

static int serve_put(struct connection *connection, const struct bulk_request *request)
{
    const struct bulk_ops *ops = connection->server->options.ops;
    const struct bulk_answer answer = {.magic = BULK_MAGIC};
    void *to = NULL;
    int error = ops->put_begin(connection->entered, request, &to, connection->stream);
    if (error != 0)
        return refuse_put(connection, request, error);
    int64_t begun = (int64_t)clock_ns();
    int cut = tls_stream_read(connection->stream, to, request->bytes, BULK_STALL_MS);
    error = cut;
    if (error == 0 && checksum_bytes(to, request->bytes) != request->hash)
        error = report_error(ERR_CORRUPT, NULL, "block %u came damaged over the bulk plane",
                             request->number);
    connection->counts.bytes_in += cut == 0 ? request->bytes : 0;
    connection->counts.ns_in += (uint64_t)((int64_t)clock_ns() - begun);
    error = ops->put_end(connection->entered, request, error);
    if (cut != 0)
        return cut;
    return error != 0 ? send_error(connection, error) : send_answer(connection, &answer);
}

static int serve_ask(struct connection *connection, const struct bulk_request *request)
{
    struct bulk_answer answer = {.magic = BULK_MAGIC};
    int error = connection->server->options.ops->ask(connection->entered, request, &answer);
    return error != 0 ? send_error(connection, error) : send_answer(connection, &answer);
}

static int (*const serve[NUM_BULK_VERBS])(struct connection *, const struct bulk_request *) = {
    [BULK_GET] = serve_get, [BULK_PUT] = serve_put,    [BULK_HAVE] = serve_ask,
    [BULK_END] = serve_ask, [BULK_WINDOW] = serve_ask, [BULK_LEAVE] = serve_ask,
};

static bool is_over(struct connection *connection)
{
    struct bulk_server *server = connection->server;
    pthread_mutex_lock(&server->mutex);
    bool answer = server->is_closing || connection->is_over;
    pthread_mutex_unlock(&server->mutex);
    return answer;
}

/* Large requests are bounded by their bytes; small ones are charged by their number. */
static void wait_for_budget(struct connection *connection, const struct bulk_request *request)
{
    while (request->bytes < BULK_LITTLE_BYTES && !may_cost(connection, RPC_COST_LITTLE) &&
           !is_over(connection))
        clock_sleep_ns(COSTLY_PAUSE_US * 1000u);
}

static int serve_one(struct connection *connection)
{
    struct bulk_request request;
    ERR_TRY(tls_stream_read(connection->stream, &request, sizeof request, BULK_STALL_MS));
    ERR_TRY(bulk_check_request(&request));
    wait_for_budget(connection, &request);
    return serve[request.verb](connection, &request);
}

/* ---- connections ---- */

static bool is_of_same_peer(const struct connection *a, const struct connection *b)
{
    return a->server->keys ? a->stream && principal_is_same(&a->peer, &b->peer)
                           : !a->newcomer.is_in && strcmp(a->newcomer.from, b->newcomer.from) == 0;
}

/* Its identity is known now, or that it has none: is there room for one more of it? */
static int check_crowd(struct connection *connection)
{
    struct bulk_server *server = connection->server;
    uint32_t count = 0;
    pthread_mutex_lock(&server->mutex);
    for (const struct connection *other = server->connections; other; other = other->next)
        count += other != connection && is_of_same_peer(other, connection);
    pthread_mutex_unlock(&server->mutex);
    if (count < BULK_CONNECTIONS_EACH)
        return 0;
    return report_error(ERR_BUSY, "open fewer", "%s has %u connections to the bulk plane already",
                        server->keys ? connection->peer.name : connection->newcomer.from,
                        BULK_CONNECTIONS_EACH);
}

/* A silent connection costs only its place. Else silent connections from the address of a client
 * shut that client out. */
static int wait_for_word(struct connection *connection)
{
    struct bulk_server *server = connection->server;
    struct pollfd state = {.fd = connection->socket, .events = POLLIN};
    char byte;
    if (poll(&state, 1, TLS_HANDSHAKE_MS) <= 0 ||
        recv(connection->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0)
        return report_error(ERR_UNAVAILABLE, NULL, "it said nothing");
    pthread_mutex_lock(&server->mutex);
    connection->newcomer.has_spoken = true;
    pthread_mutex_unlock(&server->mutex);
    return address_may_cost(server, connection->newcomer.from, RPC_COST_HANDSHAKE) ? 0 : ERR_BUSY;
}

static int shake_hands(struct connection *connection)
{
    struct bulk_server *server = connection->server;
    struct tls_stream *stream;
    ERR_TRY(wait_for_word(connection));
    int own = fcntl(connection->socket, F_DUPFD_CLOEXEC, 0); /* the stream closes it */
    if (own < 0)
        return report_errno(ERR_IO, "could not begin a handshake", "fcntl");
    ERR_TRY(tls_stream_open(&stream, server->keys, own, NULL, TLS_HANDSHAKE_MS, &connection->peer));
    pthread_mutex_lock(&server->mutex);
    connection->stream = stream;
    pthread_mutex_unlock(&server->mutex);
    return 0;
}

/* It is accepted, or ends: it no longer makes room for a newcomer. */
static void leave_crowd(struct connection *connection, bool is_verified)
{
    struct bulk_server *server = connection->server;
    pthread_mutex_lock(&server->mutex);
    tls_crowd_leave(&server->crowd, &connection->newcomer, is_verified);
    if (connection->socket >= 0)
        close(connection->socket);
    connection->socket = -1;
    pthread_mutex_unlock(&server->mutex);
}

static int enter(struct connection *connection)
{
    struct bulk_server *server = connection->server;
    struct bulk_hello hello;
    struct bulk_answer answer = {.magic = BULK_MAGIC};
    ERR_TRY(shake_hands(connection));
    ERR_TRY(tls_stream_read(connection->stream, &hello, sizeof hello, BULK_STALL_MS));
    if (hello.magic != BULK_MAGIC)
        return report_error(ERR_CORRUPT, NULL, "it does not speak as the bulk plane does");
    int error = check_crowd(connection);
    if (error == 0)
        error = server->options.ops->enter(server->options.user, &connection->entered, hello.ticket,
                                           server->keys ? &connection->peer : NULL);
    if (error != 0) {
        struct report_text text;
        report_keep(&text);
        send_error(connection, error);
        return report_restore(&text, error);
    }
    leave_crowd(connection, true);
    answer.grants = server->keys ? hello.wants & BULK_UNHASHED : 0;
    connection->is_unhashed = answer.grants != 0;
    return send_answer(connection, &answer);
}

static void remove_connection(struct connection *connection)
{
    struct bulk_server *server = connection->server;
    pthread_mutex_lock(&server->mutex);
    struct connection **at = &server->connections;
    while (*at != connection)
        at = &(*at)->next;
    *at = connection->next;
    server->counts.num_connections--;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->mutex);
}

/* Adds the traffic since the last call to the server's counts. */
static void add_counts(struct connection *connection)
{
    struct bulk_server *server = connection->server;
    pthread_mutex_lock(&server->mutex);
    server->counts.bytes_in += connection->counts.bytes_in;
    server->counts.bytes_out += connection->counts.bytes_out;
    server->counts.ns_in += connection->counts.ns_in;
    server->counts.ns_out += connection->counts.ns_out;
    pthread_mutex_unlock(&server->mutex);
    connection->counts = (struct bulk_server_counts){0};
}

static void serve_all(struct connection *connection)
{
    int error = 0;
    while (error == 0 && !is_over(connection)) {
        error = tls_stream_wait(connection->stream, POLL_MS);
        if (error == 0)
            error = serve_one(connection);
        else if (error == ERR_TIMEOUT)
            error = 0; /* idle */
        add_counts(connection);
    }
    if (error == ERR_CORRUPT)
        log_warn("bulk", "ended the connection from %s: %s", connection->newcomer.from,
                 report_line());
}

static void *run_connection(void *argument)
{
    struct connection *connection = argument;
    struct bulk_server *server = connection->server;
    int error = enter(connection);
    if (error == 0)
        serve_all(connection);
    else {
        pthread_mutex_lock(&server->mutex);
        if (!connection->has_left)
            log_refused(server, connection->newcomer.from, report_line());
        pthread_mutex_unlock(&server->mutex);
        leave_crowd(connection, false);
    }
    if (connection->entered)
        server->options.ops->leave(connection->entered);
    pthread_mutex_lock(&server->mutex);
    struct tls_stream *stream = connection->stream;
    connection->stream = NULL;
    pthread_mutex_unlock(&server->mutex);
    tls_stream_close(stream);
    free(connection->room);
    remove_connection(connection);
    free(connection);
    return NULL;
}

/* ---- newcomers ---- */

/* Connections that left the crowd end at once. But faster newcomers must not increase their
 * number. */
static bool make_room(struct bulk_server *server, struct connection *connection)
{
    struct tls_newcomer *leaves;
    uint32_t most = server->options.num_connections;
    bool is_full = server->counts.num_connections >= most;
    if (server->counts.num_connections >= most + BULK_CONNECTIONS_EACH ||
        !tls_crowd_enter(&server->crowd, &connection->newcomer, is_full, &leaves))
        return false;
    if (leaves) {
        struct connection *other =
            (struct connection *)((char *)leaves - offsetof(struct connection, newcomer));
        log_refused(server, leaves->from, "its handshake was not finished when others came");
        other->is_over = other->has_left = true;
        shutdown(other->socket, SHUT_RDWR);
    }
    return true;
}

/* False: there is no thread for it. Call it with the mutex. */
static bool start_connection(struct connection *connection)
{
    pthread_attr_t attributes;
    pthread_t thread;
    connection->room = aligned_alloc(4096, BULK_BLOCK_BYTES + BULK_ROOM_BESIDE);
    if (!connection->room)
        return false;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    bool started = pthread_create(&thread, &attributes, run_connection, connection) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

static void accept_connection(struct bulk_server *server, int fd, const char *from)
{
    struct connection *connection = calloc(1, sizeof *connection);
    pthread_mutex_lock(&server->mutex);
    const char *why = "no memory";
    if (connection) {
        *connection = (struct connection){.server = server, .socket = fd};
        tls_newcomer_init(&connection->newcomer, fd, from);
        why = make_room(server, connection) ? NULL : "too many connections are open";
    }
    if (!why) {
        connection->next = server->connections;
        server->connections = connection;
        server->counts.num_connections++;
        if (!start_connection(connection)) {
            server->connections = connection->next;
            server->counts.num_connections--;
            tls_crowd_leave(&server->crowd, &connection->newcomer, false);
            why = "no memory";
        }
    }
    if (why) {
        log_refused(server, from, why);
        close(fd);
        if (connection)
            free(connection->room);
        free(connection);
    }
    pthread_mutex_unlock(&server->mutex);
}

static void refuse_costly(struct bulk_server *server, int fd, const char *from)
{
    close(fd);
    pthread_mutex_lock(&server->mutex);
    log_refused(server, from, report_line());
    bool waits = server->counts.num_refused % REFUSED_AT_ONCE == 0;
    pthread_mutex_unlock(&server->mutex);
    if (waits)
        clock_sleep_ns(REFUSED_PAUSE_US * 1000u);
}

static void accept_one(struct bulk_server *server)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    char from[TLS_FROM_MAX] = "this machine";
    int fd = accept4(server->options.listener, (struct sockaddr *)&address, &size,
                     SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
        log_warn("bulk", "could not accept a connection: %s", strerror(errno));
        clock_sleep_ns(PAUSE_US * 1000u);
    }
    if (fd < 0)
        return;
    getnameinfo((struct sockaddr *)&address, size, from, sizeof from, NULL, 0, NI_NUMERICHOST);
    if (address_may_cost(server, from, RPC_COST_CONNECTION))
        accept_connection(server, fd, from);
    else
        refuse_costly(server, fd, from);
}

static void end_connections(struct bulk_server *server)
{
    pthread_mutex_lock(&server->mutex);
    for (struct connection *connection = server->connections; connection;
         connection = connection->next) {
        connection->is_over = true;
        if (connection->socket >= 0)
            shutdown(connection->socket, SHUT_RDWR);
        else if (connection->stream)
            tls_stream_cut(connection->stream);
    }
    pthread_mutex_unlock(&server->mutex);
}

static bool is_closing(struct bulk_server *server)
{
    pthread_mutex_lock(&server->mutex);
    bool answer = server->is_closing;
    pthread_mutex_unlock(&server->mutex);
    return answer;
}

static void *accept_all(void *argument)
{
    struct bulk_server *server = argument;
    struct pollfd states[] = {{.fd = server->options.listener, .events = POLLIN},
                              {.fd = server->wake, .events = POLLIN}};
    while (!is_closing(server)) {
        if (poll(states, 2, TLS_REFRESH_MS) > 0 && states[0].revents != 0)
            accept_one(server);
        if (server->keys && tls_keys_refresh(server->keys))
            end_connections(server);
    }
    return NULL;
}

/* ---- opening, closing ---- */

static void free_server(struct bulk_server *server)
{
    tls_keys_close(server->keys);
    close(server->options.listener);
    if (server->wake >= 0)
        close(server->wake);
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->mutex);
    free(server);
}

int bulk_server_open(struct bulk_server **out, const struct bulk_server_options *options)
{
    struct bulk_server *server = calloc(1, sizeof *server);
    int error = 0;
    if (!server) {
        close(options->listener);
        return report_error(ERR_MEMORY, NULL, "no memory for the bulk plane");
    }
    server->options = *options;
    server->crowd.most = options->num_connections;
    server->crowd.most_each = BULK_CONNECTIONS_EACH;
    pthread_mutex_init(&server->mutex, NULL);
    pthread_cond_init(&server->changed, NULL);
    server->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (options->directory)
        error = tls_keys_open_server(&server->keys, options->directory, BULK_PROTOCOL);
    if (error == 0 && server->wake < 0)
        error = report_errno(ERR_IO, "could not open the bulk plane", "eventfd");
    if (error == 0 && pthread_create(&server->thread, NULL, accept_all, server) != 0)
        error = report_error(ERR_MEMORY, NULL, "the thread of the bulk plane could not be started");
    if (error == 0)
        *out = server;
    else
        free_server(server);
    return error;
}

void bulk_server_close(struct bulk_server *server)
{
    if (!server)
        return;
    uint64_t one = 1;
    pthread_mutex_lock(&server->mutex);
    server->is_closing = true;
    pthread_mutex_unlock(&server->mutex);
    (void)!write(server->wake, &one, sizeof one);
    pthread_join(server->thread, NULL);
    end_connections(server);
    pthread_mutex_lock(&server->mutex);
    while (server->connections)
        pthread_cond_wait(&server->changed, &server->mutex);
    pthread_mutex_unlock(&server->mutex);
    free_server(server);
}

void bulk_server_count(struct bulk_server *server, struct bulk_server_counts *out)
{
    pthread_mutex_lock(&server->mutex);
    *out = server->counts;
    pthread_mutex_unlock(&server->mutex);
}
