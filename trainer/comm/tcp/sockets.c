/* sockets.c - sockets of TCP whose calls have a deadline (see private.h). */
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/comm/tcp/private.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECT_MS 5000
#define BACKLOG 4096
#define IDLE_SECONDS 30 /* after this time TCP probes whether the other machine is alive */

struct timespec tcp_deadline(int64_t seconds)
{
    return seconds <= 0 ? (struct timespec){0}
                        : clock_after_ns(CLOCK_MONOTONIC, (uint64_t)seconds * CLOCK_SECOND_NS);
}

/* -1: no limit. */
static int ms_until(const struct timespec *deadline)
{
    if (deadline->tv_sec == 0)
        return -1;
    int64_t ms = (int64_t)deadline->tv_sec * 1000 + deadline->tv_nsec / 1000000 - clock_ms();
    return ms < 0 ? 0 : ms > 1000000 ? 1000000 : (int)ms;
}

bool tcp_is_over(const struct timespec *deadline)
{
    return ms_until(deadline) == 0;
}

void tcp_set(int fd)
{
    int on = 1, idle = IDLE_SECONDS;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
}

/* ---- Listening ---- */

static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
           strcmp(host, "::1") == 0;
}

/* An IPv6 address accepts IPv4 connections, too. */
static int listen_at(const struct addrinfo *at)
{
    int on = 1, off = 0;
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (at->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int reason = errno;
    close(fd);
    errno = reason;
    return -1;
}

int tcp_listen(int *out, const char *host, const char *port)
{
    const struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    const struct addrinfo *best = NULL;
    int rc = getaddrinfo(is_loopback(host) ? host : NULL, port, &hints, &found);
    if (rc != 0)
        return report_error(ERR_INVALID, "give a port of 1 to 65535", "MASTER_PORT %s: %s", port,
                            gai_strerror(rc));
    for (const struct addrinfo *at = found; at != NULL; at = at->ai_next)
        if (best == NULL || (at->ai_family == AF_INET6 && !is_loopback(host)))
            best = at;
    int fd = listen_at(best);
    if (fd < 0 && best != found && errno != EADDRINUSE) /* a machine without IPv6 */
        fd = listen_at(found);
    freeaddrinfo(found);
    *out = fd;
    if (fd >= 0)
        return 0;
    if (errno == EADDRINUSE)
        return report_error(ERR_BUSY, "give another MASTER_PORT, and RANK 0 to one process",
                            "rank 0 could not listen at port %s: another process uses it", port);
    return report_errno(ERR_IO, "rank 0 could not listen", port);
}

int tcp_port_of(int listener, char out[8])
{
    struct sockaddr_storage own;
    socklen_t size = sizeof(own);
    if (getsockname(listener, (struct sockaddr *)&own, &size) != 0)
        return report_errno(ERR_IO, "could not read the port of a socket", NULL);
    unsigned port = own.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&own)->sin6_port
                                              : ((struct sockaddr_in *)&own)->sin_port;
    snprintf(out, 8, "%u", ntohs((uint16_t)port));
    return 0;
}

/* ---- Connecting ---- */

static int connect_at(const struct addrinfo *at)
{
    int reason = 0, fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t size = sizeof(reason);
    if (fd < 0)
        return -1;
    struct pollfd state = {.fd = fd, .events = POLLOUT};
    if (connect(fd, at->ai_addr, at->ai_addrlen) != 0 && errno != EINPROGRESS)
        reason = errno;
    else if (poll(&state, 1, CONNECT_MS) != 1)
        reason = ETIMEDOUT;
    else
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &size);
    if (reason == 0)
        return fd;
    close(fd);
    errno = reason;
    return -1;
}

int tcp_connect(int *out, const char *host, const char *port)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int rc = getaddrinfo(host, port, &hints, &found), fd = -1;
    if (rc != 0)
        return report_error(rc == EAI_SERVICE ? ERR_INVALID : ERR_UNAVAILABLE,
                            "check MASTER_ADDR and MASTER_PORT", "%s:%s cannot be resolved: %s",
                            host, port, gai_strerror(rc));
    for (const struct addrinfo *at = found; at != NULL && fd < 0; at = at->ai_next)
        fd = connect_at(at);
    int reason = errno;
    freeaddrinfo(found);
    *out = fd;
    if (fd < 0)
        return report_error(ERR_UNAVAILABLE,
                            "check MASTER_ADDR and MASTER_PORT, and that rank 0 has started",
                            "could not connect to %s:%s: %s", host, port, strerror(reason));
    tcp_set(fd);
    return 0;
}

/* ---- Bytes ---- */

/* 0: the socket is ready, or has an error. */
static int wait_for(int fd, short events, const struct timespec *deadline)
{
    struct pollfd state = {.fd = fd, .events = events};
    int ready;
    while ((ready = poll(&state, 1, ms_until(deadline))) == 0 && !tcp_is_over(deadline)) {
    }
    return ready != 0 ? 0 : ERR_TIMEOUT;
}

static bool comes_again(void)
{
    return errno == EAGAIN || errno == EINTR;
}

int tcp_send(int fd, const void *data, size_t bytes, const struct timespec *deadline)
{
    for (const char *at = data; bytes > 0;) {
        ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && !comes_again())
            return ERR_UNAVAILABLE;
        if (sent < 0)
            ERR_TRY(wait_for(fd, POLLOUT, deadline));
        at += sent > 0 ? sent : 0;
        bytes -= sent > 0 ? (size_t)sent : 0;
    }
    return 0;
}

int tcp_receive(int fd, void *data, size_t bytes, const struct timespec *deadline)
{
    for (char *at = data; bytes > 0;) {
        ssize_t got = recv(fd, at, bytes, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && !comes_again()))
            return ERR_UNAVAILABLE;
        if (got < 0)
            ERR_TRY(wait_for(fd, POLLIN, deadline));
        at += got > 0 ? got : 0;
        bytes -= got > 0 ? (size_t)got : 0;
    }
    return 0;
}
