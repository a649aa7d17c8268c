/* listen.c - accepts clients on unix sockets, and hands out descriptors.
 *
 * Two unix sockets: the configured one speaks gRPC, "<path>.arena" speaks struct arena_request.
 * ckptd accepts on both: it checks the peer's uid with SO_PEERCRED (gRPC's own local credentials
 * check nothing), and only then passes the gRPC connection on. Allowed are ckptd's own user, root,
 * and the users of access.uids and access.operators; with such users the sockets are writable by
 * all, and this check alone decides. rights.c says what each role may do.
 *
 * An arena connection names its session with its first request; when the connection ends, the rank
 * is gone (session.c). ckptd sends descriptors and accepts none: it receives without room for them,
 * so the kernel closes those that a peer passes.
 *
 * Every limits.look_ms ckptd checks that the files of its sockets exist. It makes a removed one
 * again: without it no client can connect. Open connections continue.
 *
 * A socket that a dead ckptd left is replaced; one on which a process listens is ERR_BUSY. Limits:
 * limits.sessions arena connections, and RPC_CONNECTIONS_BESIDE more of gRPC (further ones are
 * closed), limits.connect_ms until an arena connection has named its session. Without free
 * descriptors a listener pauses for PAUSE_MS; clients wait. A user who has used up the budget of
 * proto/wire/rpc_budget.h is refused, and cannot connect for a second (shut_out.h). */
#include "ckptd/front/listen.h"
#include "ckptd/core/config.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/front/shut_out.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/pool.h"
#include "ckptd/memory/session.h"
#include "proto/base/array.h"
#include "proto/base/report.h"
#include "proto/wire/arena.h"
#include "proto/wire/rpc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 2048      /* a flood does not fill it before its user is blocked */
#define PAUSE_MS 500      /* of a listener when the process is out of descriptors */
#define COSTLY_PAUSE_MS 5 /* after a user without budget */

struct listener {
    struct service *service;
    int fd; /* -1: not open */
    struct watch watch;
    const char *path;   /* the service's */
    struct timer pause; /* end of the pause */
    void (*adopt)(struct service *service, int fd, const struct ucred *peer);
};

struct listeners {
    struct service *service;
    struct timer check_timer; /* checks that the sockets have their names */
    struct connection *connections;
    struct listener rpc, arena;
    struct shut_out shut_out;
    uint32_t num_connections;
    struct log_limit refused;
};

/* ---- access ---- */

static void log_refused(struct service *service, const char *why)
{
    log_warn_limited(&service->listeners->refused, "door", "refused a connection: %s", why);
}

static bool is_own(uid_t uid)
{
    return uid == geteuid() || uid == 0;
}

static bool is_operator(const struct service *service, uid_t uid)
{
    return is_own(uid) || config_is_operator(service->config, uid);
}

static bool peer_allowed(struct service *service, struct ucred *out, int fd)
{
    socklen_t size = sizeof *out;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, out, &size) != 0)
        return false;
    if (is_own(out->uid) || config_allows_uid(service->config, out->uid))
        return true;
    char who[64];
    snprintf(who, sizeof who, "user %u, process %d may not connect", (unsigned)out->uid,
             (int)out->pid);
    log_refused(service, who);
    return false;
}

static void pause_ended(struct timer *timer)
{
    struct listener *listener = CONTAINER_OF(timer, struct listener, pause);
    if (loop_watch(listener->service->loop, &listener->watch, listener->fd) != 0)
        loop_timer(listener->service->loop, &listener->pause, PAUSE_MS);
}

/* A waiting client keeps the socket readable: without a pause the loop spins. */
static void pause_listener(struct listener *listener)
{
    log_warn("door", "could not accept a connection on %s: %s", listener->path, strerror(errno));
    loop_unwatch(listener->service->loop, &listener->watch);
    loop_timer(listener->service->loop, &listener->pause, PAUSE_MS);
}

static struct principal principal_of(const struct service *service, const struct ucred *peer)
{
    return principal_of_user(is_operator(service, peer->uid) ? ROLE_OPERATOR : ROLE_USER, peer->uid,
                             peer->pid);
}

/* If the kernel cannot block the user, all clients wait a little. */
static void refuse_costly(struct listener *listener, int fd, const struct ucred *peer)
{
    struct service *service = listener->service;
    log_refused(service, report_line());
    close(fd);
    if (shut_out_user(&service->listeners->shut_out, peer->uid))
        return;
    loop_unwatch(service->loop, &listener->watch);
    loop_timer(service->loop, &listener->pause, COSTLY_PAUSE_MS);
}

static void accept_one(struct watch *watch)
{
    struct listener *listener = CONTAINER_OF(watch, struct listener, watch);
    int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
            pause_listener(listener);
        return;
    }
    struct ucred peer;
    if (!peer_allowed(listener->service, &peer, fd)) {
        close(fd);
        return;
    }
    struct principal who = principal_of(listener->service, &peer);
    if (rpc_server_charge(listener->service->rpc, &who, RPC_COST_CONNECTION) == 0)
        listener->adopt(listener->service, fd, &peer);
    else
        refuse_costly(listener, fd, &peer);
}

static void adopt_rpc(struct service *service, int fd, const struct ucred *peer)
{
    struct principal who = principal_of(service, peer);
    if (rpc_server_adopt(service->rpc, fd, &who) != 0)
        log_refused(service, report_line());
}

/* ---- arena connections ---- */

static void drop_connection(struct connection *connection)
{
    struct service *service = connection->service;
    struct session *session = connection->session;
    loop_unwatch(service->loop, &connection->watch);
    loop_timer_cancel(service->loop, &connection->timer);
    struct connection **at = &service->listeners->connections;
    while (*at != connection)
        at = &(*at)->next;
    *at = connection->next;
    service->listeners->num_connections--;
    close(connection->fd);
    for (uint32_t i = 0; i < SLOTS_PER_RANK; i++)
        if (connection->left[i])
            image_let_go(connection->left[i]);
    free(connection);
    if (session) {
        session->connection = NULL;
        session_lost(session);
    }
}

void listen_part(struct connection *connection, struct image *const *left)
{
    bool holds = false;
    for (uint32_t i = 0; i < SLOTS_PER_RANK; i++) {
        connection->left[i] = left[i];
        holds |= left[i] != NULL;
    }
    connection->session = NULL;
    connection->parted = true;
    if (!holds) {
        drop_connection(connection);
        return;
    }
    shutdown(connection->fd, SHUT_WR); /* the peer sees an end; ckptd then sees the peer's */
}

static void no_hello(struct timer *timer)
{
    drop_connection(CONTAINER_OF(timer, struct connection, timer));
}

/* Finds the session in the request and binds it to this connection. */
static int bind_session(struct session **out, struct connection *connection)
{
    struct service *service = connection->service;
    ERR_TRY(session_find(out, service, connection->request.session));
    if (connection->session == *out)
        return 0;
    if (connection->session || (*out)->connection)
        return report_error(ERR_EXISTS, NULL, "the session or the connection is bound already");
    connection->session = *out;
    (*out)->connection = connection;
    loop_timer_cancel(service->loop, &(*out)->timer);
    loop_timer_cancel(service->loop, &connection->timer);
    return 0;
}

static int collect_fds(int *fds, uint32_t *count, struct connection *connection)
{
    const struct arena_request *request = &connection->request;
    struct service *service = connection->service;
    struct session *session;
    ERR_TRY(bind_session(&session, connection));
    if (request->kind == ARENA_REQUEST_BIND)
        return 0;
    if (request->kind == ARENA_REQUEST_CONTROL) {
        if (!session->is_rank)
            return report_error(ERR_INVALID, NULL, "a session that only loads has no ring");
        fds[0] = session->control_fd;
        fds[1] = session->event_fd;
        *count = 2;
        return 0;
    }
    if (request->kind != ARENA_REQUEST_SEGMENTS || request->num_segments == 0 ||
        request->num_segments > ARENA_FDS_MAX)
        return report_error(ERR_INVALID, NULL, "received an invalid arena request");
    for (uint32_t i = 0; i < request->num_segments; i++) {
        uint32_t segment = request->segments[i];
        if (segment >= pool_size(service->pool) ||
            !session_may_map(session, segment, request->writable != 0))
            return report_error(ERR_DENIED, NULL, "segment %u is not lent to the session", segment);
        fds[i] = request->writable ? pool_fd(service->pool, segment)
                                   : pool_fd_read_only(service->pool, segment);
    }
    *count = request->num_segments;
    return 0;
}

/* False: the connection is useless now. */
static bool answer_request(struct connection *connection)
{
    const struct arena_request *request = &connection->request;
    struct arena_reply reply = {.magic = ARENA_MAGIC,
                                .version = ARENA_VERSION,
                                .segment_bytes = pool_segment_bytes(connection->service->pool)};
    int fds[ARENA_FDS_MAX];
    if (request->magic != ARENA_MAGIC)
        return false;
    if (request->version != ARENA_VERSION)
        reply.error = ERR_VERSION;
    else
        reply.error = collect_fds(fds, &reply.num_fds, connection);
    if (reply.error != 0) {
        log_debug("door", "an arena request was refused: %s", report_line());
        reply.num_fds = 0;
    }
    /* With a full socket the peer does not read its answers: drops it. */
    return arena_send_reply(connection->fd, &reply, fds) == 0;
}

static void arena_readable(struct watch *watch)
{
    struct connection *connection = CONTAINER_OF(watch, struct connection, watch);
    uint8_t *to = (uint8_t *)&connection->request + connection->received;
    ssize_t count = recv(watch->fd, to, sizeof connection->request - connection->received, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (count <= 0) {
        drop_connection(connection);
        return;
    }
    if (connection->parted)
        return; /* its requests are not answered any more */
    connection->received += (size_t)count;
    if (connection->received < sizeof connection->request)
        return;
    connection->received = 0;
    if (!answer_request(connection))
        drop_connection(connection);
}

static void adopt_arena(struct service *service, int fd, const struct ucred *peer)
{
    (void)peer;
    struct connection *connection = NULL;
    if (service->listeners->num_connections < service->config->limit_sessions)
        connection = calloc(1, sizeof *connection);
    if (!connection) {
        log_refused(service, "limits.sessions is reached");
        close(fd);
        return;
    }
    connection->service = service;
    connection->fd = fd;
    connection->watch.run = arena_readable;
    connection->timer.run = no_hello;
    if (loop_watch(service->loop, &connection->watch, fd) != 0) {
        log_warn("door", "refused an arena connection: %s", report_line());
        close(fd);
        free(connection);
        return;
    }
    connection->next = service->listeners->connections;
    service->listeners->connections = connection;
    service->listeners->num_connections++;
    loop_timer(service->loop, &connection->timer, service->config->limit_connect_ms);
}

/* ---- listeners ---- */

/* Makes the directory of the sockets. In a directory that other users can change they can replace
 * the socket. */
static int make_parent(const char *path)
{
    char parent[sizeof((struct service *)0)->arena_path];
    struct stat info;
    int length = (int)(strrchr(path, '/') - path);
    snprintf(parent, sizeof parent, "%.*s", length > 0 ? length : 1, path);
    mkdir(parent, 0700);
    if (stat(parent, &info) != 0)
        return 0; /* bind() reports the reason */
    if (info.st_uid != geteuid() && info.st_uid != 0)
        return report_error(ERR_DENIED, "listen in a directory of your own",
                            "the directory %s belongs to user %u", parent, (unsigned)info.st_uid);
    if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (info.st_mode & S_ISVTX) == 0)
        return report_error(ERR_DENIED, "chmod go-w, or listen in another directory",
                            "the directory %s can be changed by other users: its mode is %04o",
                            parent, (unsigned)info.st_mode & 07777);
    return 0;
}

/* Removes a socket without a listener. ERR_BUSY: a process listens. */
static int remove_stale(const struct sockaddr_un *address)
{
    struct stat info;
    if (lstat(address->sun_path, &info) != 0)
        return 0;
    if (!S_ISSOCK(info.st_mode))
        return report_error(ERR_EXISTS, "choose another listen path", "%s exists and is no socket",
                            address->sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return report_errno(ERR_IO, "could not make a socket", "socket");
    bool answered = connect(fd, (const struct sockaddr *)address, sizeof *address) == 0;
    close(fd);
    if (answered)
        return report_error(ERR_BUSY, "stop it first, or listen elsewhere",
                            "another ckptd answers on %s", address->sun_path);
    unlink(address->sun_path);
    return 0;
}

static int open_listener(struct listener *listener, struct service *service)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    CHECK(strlen(listener->path) < sizeof address.sun_path); /* checked by config.c */
    memcpy(address.sun_path, listener->path, strlen(listener->path));
    ERR_TRY(make_parent(listener->path));
    ERR_TRY(remove_stale(&address));
    listener->service = service;
    listener->watch.run = accept_one;
    listener->watch.fd = -1;
    listener->pause.run = pause_ended;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return report_errno(ERR_IO, "could not make a socket", "socket");
    bool for_others = service->config->access_uids[0] || service->config->access_operators[0];
    mode_t mode = for_others ? 0666 : 0600;
    mode_t old = umask(0777 & ~mode);
    int error = 0, bound = bind(fd, (const struct sockaddr *)&address, sizeof address);
    umask(old);
    if (bound != 0 || listen(fd, BACKLOG) != 0)
        error = report_errno(ERR_IO, "could not listen on the socket", listener->path);
    if (error == 0)
        error = loop_watch(service->loop, &listener->watch, fd);
    if (error != 0)
        close(fd);
    else
        listener->fd = fd;
    return error;
}

static void close_listener(struct listener *listener)
{
    if (listener->fd < 0)
        return;
    loop_unwatch(listener->service->loop, &listener->watch);
    loop_timer_cancel(listener->service->loop, &listener->pause);
    close(listener->fd);
    unlink(listener->path);
}

/* The file of the socket was removed: makes a new one. After an error it tries again. */
static void restore_listener(struct listener *listener, struct service *service)
{
    struct stat info;
    if (lstat(listener->path, &info) == 0 || errno != ENOENT)
        return; /* also if another process made it: remove_stale() refuses that */
    if (listener->fd >= 0) {
        loop_unwatch(service->loop, &listener->watch);
        loop_timer_cancel(service->loop, &listener->pause);
        close(listener->fd);
        listener->fd = -1;
    }
    if (open_listener(listener, service) == 0)
        log_warn("door", "%s was removed, and ckptd created it again", listener->path);
    else
        log_error("door", "%s was removed, and ckptd could not create it again: %s", listener->path,
                  report_line());
}

static void check_listeners(struct timer *timer)
{
    struct listeners *door = CONTAINER_OF(timer, struct listeners, check_timer);
    struct service *service = door->service;
    if (!service->draining) {
        restore_listener(&door->arena, service);
        restore_listener(&door->rpc, service);
    }
    loop_timer(service->loop, timer, service->config->limit_look_ms);
}

int listen_open(struct service *service)
{
    struct listeners *door = calloc(1, sizeof *door);
    if (!door)
        return report_error(ERR_MEMORY, NULL, "no memory for the listeners");
    service->listeners = door;
    shut_out_init(&door->shut_out, service->loop, service->socket_path, service->arena_path);
    door->rpc.fd = door->arena.fd = -1;
    door->rpc.path = service->socket_path;
    door->arena.path = service->arena_path;
    door->rpc.adopt = adopt_rpc;
    door->arena.adopt = adopt_arena;
    /* The arena first: a client that finds the gRPC socket may use both. */
    int error = open_listener(&door->arena, service);
    if (error == 0)
        error = open_listener(&door->rpc, service);
    door->service = service;
    door->check_timer.run = check_listeners;
    if (error == 0)
        loop_timer(service->loop, &door->check_timer, service->config->limit_look_ms);
    return error;
}

void listen_close(struct service *service)
{
    if (!service->listeners)
        return;
    loop_timer_cancel(service->loop, &service->listeners->check_timer);
    shut_out_end(&service->listeners->shut_out);
    close_listener(&service->listeners->rpc);
    close_listener(&service->listeners->arena);
    while (service->listeners->connections)
        drop_connection(service->listeners->connections);
    free(service->listeners);
    service->listeners = NULL;
}
