/* rpc_bed.h - a server of rpc.h and a client of it in one process. The client connects to a unix
 * socket of the test; a thread accepts and hands the sockets to the server, as ckptd's listener
 * does. */
#ifndef HOLDFAST_TESTS_RPC_BED_H
#define HOLDFAST_TESTS_RPC_BED_H

#include "proto/wire/rpc.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#define CALL_MS 10000u
#define CONNECTIONS 24

struct rpc_bed {
    const struct rpc_method *methods;
    void *user; /* of their handlers */
    struct rpc_server *server;
    struct rpc_client *client;
    char path[64];
    char target[80];
    int listener;
    pthread_t acceptor;
    atomic_bool stop;
};

static inline void *rpc_bed_accept(void *argument)
{
    struct rpc_bed *bed = argument;
    const struct principal operator= principal_of_user(ROLE_OPERATOR, geteuid(), getpid());
    while (!atomic_load(&bed->stop)) {
        struct pollfd poll_fd = {bed->listener, POLLIN, 0};
        if (poll(&poll_fd, 1, 20) <= 0)
            continue;
        int fd = accept(bed->listener, NULL, NULL);
        if (fd >= 0)
            rpc_server_adopt(bed->server, fd, &operator);
    }
    return NULL;
}

static inline void rpc_bed_start(struct rpc_bed *bed)
{
    struct rpc_server_options options = {.methods = bed->methods,
                                         .user = bed->user,
                                         .num_threads = 2,
                                         .num_connections = CONNECTIONS,
                                         .silent_ms = 60000,
                                         .request_bytes = RPC_REQUEST_BYTES};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", bed->path);
    unlink(bed->path);
    bed->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(bed->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(bed->listener, 16), 0);
    assert_int_equal(rpc_server_open(&bed->server, &options), 0);
    atomic_store(&bed->stop, false);
    assert_int_equal(pthread_create(&bed->acceptor, NULL, rpc_bed_accept, bed), 0);
}

static inline void rpc_bed_stop(struct rpc_bed *bed, uint32_t grace_ms)
{
    atomic_store(&bed->stop, true);
    pthread_join(bed->acceptor, NULL);
    close(bed->listener);
    unlink(bed->path);
    rpc_server_close(bed->server, grace_ms);
    bed->server = NULL;
}

static inline void rpc_bed_open(struct rpc_bed *bed, const struct rpc_method *methods, void *user)
{
    const char *folder = getenv("TMPDIR");
    bed->methods = methods;
    bed->user = user;
    snprintf(bed->path, sizeof bed->path, "%s/rpc", folder ? folder : "/var/tmp");
    snprintf(bed->target, sizeof bed->target, "unix:%s", bed->path);
    rpc_bed_start(bed);
    assert_int_equal(rpc_client_open(&bed->client, bed->target), 0);
}

static inline void rpc_bed_close(struct rpc_bed *bed)
{
    rpc_client_close(bed->client);
    if (bed->server)
        rpc_bed_stop(bed, 0);
}

#endif
