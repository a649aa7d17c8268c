/* stream.c - the same bytes from one process's memory into another's, over TCP or TLS 1.3, and
 * nothing else: the reference for the bulk plane.
 *
 *     stream MIB CONNECTIONS [DIRECTORY]
 *
 * DIRECTORY has certificate.pem and key.pem: then every connection is TLS 1.3 with OpenSSL's first
 * cipher. The receiver is another process. No hash is computed and no client is identified.
 *
 * Command on stdin, answered with one JSON line:
 *
 *     send     all of MIB over all connections: {"seconds", "cpu": of the sender, "bytes"} */
#include "tests/bench/bench.h"

#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define WRITE_BYTES (1u << 20) /* a block of the bulk plane */
#define CONNECTIONS_MAX 64u

struct end {
    pthread_t thread;
    int socket;
    SSL *tls; /* NULL: plain */
    char *memory;
    size_t bytes;
};

static struct end ends[CONNECTIONS_MAX];
static uint32_t num_ends;

/* Moves up to `bytes` into `to`, or out of `from`; returns the number moved. */
static size_t move(struct end *end, void *to, const void *from, size_t bytes)
{
    int most = (int)(bytes < WRITE_BYTES ? bytes : WRITE_BYTES);
    ssize_t moved = end->tls ? (to ? SSL_read(end->tls, to, most) : SSL_write(end->tls, from, most))
                    : to     ? recv(end->socket, to, (size_t)most, 0)
                             : send(end->socket, from, (size_t)most, MSG_NOSIGNAL);
    BENCH_TRY(moved <= 0, "the other end has gone");
    return (size_t)moved;
}

static void *send_all(void *argument)
{
    struct end *end = argument;
    char answer;
    for (size_t at = 0; at < end->bytes;)
        at += move(end, NULL, end->memory + at, end->bytes - at);
    move(end, &answer, NULL, 1);
    return NULL;
}

static void *receive_for_ever(void *argument)
{
    struct end *end = argument;
    for (;;) {
        for (size_t at = 0; at < end->bytes;)
            at += move(end, end->memory + at, NULL, end->bytes - at);
        move(end, NULL, "", 1);
    }
    return NULL;
}

static SSL_CTX *new_context(const char *directory, bool is_server)
{
    char path[1024];
    SSL_CTX *context = SSL_CTX_new(is_server ? TLS_server_method() : TLS_client_method());
    BENCH_TRY(!context || !SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION), "OpenSSL");
    if (!is_server)
        return context;
    snprintf(path, sizeof path, "%s/certificate.pem", directory);
    BENCH_TRY(SSL_CTX_use_certificate_chain_file(context, path) != 1, path);
    snprintf(path, sizeof path, "%s/key.pem", directory);
    BENCH_TRY(SSL_CTX_use_PrivateKey_file(context, path, SSL_FILETYPE_PEM) != 1, path);
    return context;
}

/* One end of every connection: the receiver accepts at `listener`, the sender connects to it. */
static void connect_all(int listener, bool is_receiver, const char *directory, size_t bytes)
{
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    BENCH_TRY(getsockname(listener, (struct sockaddr *)&address, &size), "getsockname");
    SSL_CTX *context = directory ? new_context(directory, is_receiver) : NULL;
    for (uint32_t i = 0; i < num_ends; i++) {
        struct end *end = &ends[i];
        end->bytes = bytes / num_ends;
        end->memory = bench_allocate(end->bytes, 1);
        memset(end->memory, (int)i + 1, end->bytes); /* its pages are there before the clock runs */
        end->socket = is_receiver ? accept(listener, NULL, NULL) : socket(AF_INET, SOCK_STREAM, 0);
        BENCH_TRY(end->socket < 0, "socket");
        if (!is_receiver)
            BENCH_TRY(connect(end->socket, (struct sockaddr *)&address, size), "connect");
        if (context) {
            end->tls = SSL_new(context);
            BENCH_TRY(!end->tls || !SSL_set_fd(end->tls, end->socket), "OpenSSL");
            BENCH_TRY((is_receiver ? SSL_accept : SSL_connect)(end->tls) != 1, "the handshake");
        }
    }
}

static void on_all(void *(*body)(void *))
{
    for (uint32_t i = 0; i < num_ends; i++)
        BENCH_TRY(pthread_create(&ends[i].thread, NULL, body, &ends[i]), "pthread_create");
    for (uint32_t i = 0; i < num_ends; i++)
        pthread_join(ends[i].thread, NULL);
}

static void answer_commands(void)
{
    char command[64];
    while (fgets(command, sizeof command, stdin)) {
        BENCH_TRY(strcmp(command, "send\n"), "no such command");
        double began = bench_seconds(), cpu = bench_clock(CLOCK_PROCESS_CPUTIME_ID);
        on_all(send_all);
        printf("{\"seconds\": %.6f, \"cpu\": %.6f, \"bytes\": %zu}\n", bench_seconds() - began,
               bench_clock(CLOCK_PROCESS_CPUTIME_ID) - cpu, ends[0].bytes * num_ends);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: stream MIB CONNECTIONS [DIRECTORY]\n");
        return 2;
    }
    size_t bytes = strtoull(argv[1], NULL, 10) << 20;
    num_ends = (uint32_t)strtoul(argv[2], NULL, 10);
    BENCH_TRY(num_ends == 0 || num_ends > CONNECTIONS_MAX || bytes < num_ends,
              "1 to 64 connections");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    BENCH_TRY(bind(listener, (struct sockaddr *)&address, sizeof address), "bind");
    BENCH_TRY(listen(listener, (int)num_ends), "listen");
    pid_t child = fork();
    BENCH_TRY(child < 0, "fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        connect_all(listener, true, argc == 4 ? argv[3] : NULL, bytes);
        on_all(receive_for_ever);
        return 1;
    }
    connect_all(listener, false, argc == 4 ? argv[3] : NULL, bytes);
    answer_commands();
    kill(child, SIGKILL);
    return 0;
}
