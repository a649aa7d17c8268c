/* stream.c - see stream.h.
 *
 * The socket is non-blocking. A blocking call tries, and sleeps in poll() when it cannot continue,
 * until its deadline, which moves with the transferred bytes. Vanished peers are detected by
 * keep-alives, and while bytes are under way by TCP_USER_TIMEOUT. */
#include "proto/tls/stream.h"

#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/tls/context.h"
#include "proto/tls/tls.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_BYTES (64u << 10) /* records that one recv() may return */

struct tls_keys {
    pthread_mutex_t mutex; /* of `context` */
    SSL_CTX *context;
    struct tls_stamp stamp;
    enum tls_side side;
    const char *directory, *protocol;
    _Atomic int64_t end_s; /* expiry of the context's files */
};

struct tls_stream {
    int socket;
    SSL *ssl; /* NULL: plain */
};

/* ---- keys ---- */

static int open_keys(struct tls_keys **out, const char *directory, enum tls_side side,
                     const char *protocol)
{
    struct tls_keys *keys = calloc(1, sizeof *keys);
    if (!keys)
        return report_error(ERR_MEMORY, NULL, "no memory for TLS");
    keys->side = side;
    keys->directory = directory;
    keys->protocol = protocol;
    pthread_mutex_init(&keys->mutex, NULL);
    tls_stamp(&keys->stamp, directory);
    int error = tls_context_open(&keys->context, directory, side, protocol);
    if (error != 0) {
        tls_keys_close(keys);
        return error;
    }
    keys->end_s = tls_context_end_s(keys->context);
    *out = keys;
    return 0;
}

int tls_keys_open_server(struct tls_keys **out, const char *directory, const char *protocol)
{
    return open_keys(out, directory, TLS_SERVER, protocol);
}

int tls_keys_open_client(struct tls_keys **out, const char *directory, const char *protocol)
{
    return open_keys(out, directory, TLS_CLIENT, protocol);
}

void tls_keys_close(struct tls_keys *keys)
{
    if (!keys)
        return;
    SSL_CTX_free(keys->context);
    pthread_mutex_destroy(&keys->mutex);
    free(keys);
}

bool tls_keys_refresh(struct tls_keys *keys)
{
    struct tls_stamp stamp;
    SSL_CTX *context;
    tls_stamp(&stamp, keys->directory);
    bool has_new_own = stamp.own != keys->stamp.own;
    bool has_new_trust = stamp.trust != keys->stamp.trust;
    if (!has_new_own && !has_new_trust)
        return false;
    keys->stamp = stamp;
    if (tls_context_open(&context, keys->directory, keys->side, keys->protocol) != 0) {
        log_error("tls",
                  "the files of %s changed and cannot be used for %s; the old ones go on: %s",
                  keys->directory, keys->protocol, report_line());
        return false;
    }
    pthread_mutex_lock(&keys->mutex);
    SSL_CTX *before = keys->context;
    keys->context = context;
    pthread_mutex_unlock(&keys->mutex);
    SSL_CTX_free(before); /* open connections keep a reference */
    keys->end_s = tls_context_end_s(context);
    log_info("tls", "read %s again for %s%s", keys->directory, keys->protocol,
             has_new_trust ? "; connections that are open have to come again" : "");
    return has_new_trust;
}

int64_t tls_keys_end_s(const struct tls_keys *keys)
{
    return keys->end_s;
}

static SSL *new_ssl(struct tls_keys *keys)
{
    pthread_mutex_lock(&keys->mutex);
    SSL *ssl = SSL_new(keys->context);
    pthread_mutex_unlock(&keys->mutex);
    return ssl;
}

/* ---- time ---- */

static int sleep_until(const struct tls_stream *stream, short events, int64_t until_ms)
{
    struct pollfd state = {.fd = stream->socket, .events = events};
    for (;;) {
        int64_t left = until_ms - clock_ms();
        int count = poll(&state, 1, left > 0 ? (int)(left < 60000 ? left : 60000) : 0);
        if (count > 0)
            return 0;
        if (count < 0 && errno != EINTR)
            return report_errno(ERR_IO, "could not wait for a connection", "poll");
        if (count == 0 && left <= 0)
            return report_error(ERR_TIMEOUT, NULL, "the other end of a connection stood still");
    }
}

/* ---- the handshake ---- */

/* Sets the name in the server's certificate: an address or a host name. */
static bool expect_host(SSL *ssl, const char *host)
{
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1)
        return true;
    ERR_clear_error();
    return SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
}

static int fail_handshake(const SSL *ssl)
{
    long verified = SSL_get_verify_result(ssl);
    const char *text = tls_error_text();
    return report_error(ERR_DENIED, "look at the certificates of both ends: holdfast-certificates",
                        "a TLS handshake failed: %s",
                        verified != X509_V_OK ? X509_verify_cert_error_string(verified) : text);
}

/* 1: it is done; 0: not yet. */
static int advance_handshake(SSL *ssl, short *out_events)
{
    ERR_clear_error();
    int rc = SSL_do_handshake(ssl);
    if (rc == 1)
        return 1;
    int reason = SSL_get_error(ssl, rc);
    if (reason == SSL_ERROR_SYSCALL && ERR_peek_error() == 0)
        return report_error(ERR_UNAVAILABLE, NULL, "a connection ended in its handshake");
    if (reason != SSL_ERROR_WANT_READ && reason != SSL_ERROR_WANT_WRITE)
        return fail_handshake(ssl);
    *out_events = reason == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
    return 0;
}

int tls_stream_shake(struct tls_stream *stream, struct principal *out_peer, short *out_events)
{
    struct principal peer = {.kind = PRINCIPAL_CERTIFICATE, .role = ROLE_READER}, found;
    int rc = stream->ssl ? advance_handshake(stream->ssl, out_events) : 1;
    if (rc != 1)
        return rc;
    int error = stream->ssl ? tls_identify(&found, stream->ssl) : ERR_NOT_FOUND;
    *out_peer = error == 0 ? found : peer;
    /* For a server the check is that its certificate names the host. */
    return error != 0 && stream->ssl && SSL_is_server(stream->ssl) ? error : 1;
}

static int prepare_tls(struct tls_stream *stream, struct tls_keys *keys, const char *host)
{
    stream->ssl = new_ssl(keys);
    if (!stream->ssl || SSL_set_fd(stream->ssl, stream->socket) != 1 ||
        (host && !expect_host(stream->ssl, host)))
        return report_error(ERR_MEMORY, NULL, "no memory for a connection: %s", tls_error_text());
    if (host)
        SSL_set_connect_state(stream->ssl);
    else
        SSL_set_accept_state(stream->ssl);
    return 0;
}

int tls_stream_begin(struct tls_stream **out, struct tls_keys *keys, int socket, const char *host)
{
    struct tls_stream *stream = calloc(1, sizeof *stream);
    if (!stream) {
        close(socket);
        return report_error(ERR_MEMORY, NULL, "no memory for a connection");
    }
    stream->socket = socket;
    tls_socket_set(socket);
    int error = keys ? prepare_tls(stream, keys, host) : 0;
    if (error == 0)
        *out = stream;
    else
        tls_stream_close(stream);
    return error;
}

int tls_stream_open(struct tls_stream **out, struct tls_keys *keys, int socket, const char *host,
                    uint32_t timeout_ms, struct principal *out_peer)
{
    struct principal peer;
    struct tls_stream *stream;
    short events = 0;
    int64_t until_ms = clock_ms() + timeout_ms;
    ERR_TRY(tls_stream_begin(&stream, keys, socket, host));
    if (stream->ssl) {
        SSL_set_read_ahead(stream->ssl, 1);
        SSL_set_default_read_buffer_len(stream->ssl, READ_BYTES);
    }
    int rc;
    while ((rc = tls_stream_shake(stream, &peer, &events)) == 0)
        if ((rc = sleep_until(stream, events, until_ms)) != 0)
            break;
    if (rc < 0) {
        tls_stream_close(stream);
        return rc;
    }
    if (out_peer)
        *out_peer = peer;
    *out = stream;
    return 0;
}

void tls_stream_close(struct tls_stream *stream)
{
    if (!stream)
        return;
    if (stream->ssl && SSL_is_server(stream->ssl) && SSL_is_init_finished(stream->ssl))
        SSL_shutdown(stream->ssl); /* all bytes were sent; best effort */
    SSL_free(stream->ssl);
    ERR_clear_error();
    close(stream->socket);
    free(stream);
}

void tls_stream_cut(struct tls_stream *stream)
{
    shutdown(stream->socket, SHUT_RDWR);
}

/* ---- bytes ---- */

/* The result of one call: bytes, 0 for nothing yet (and *out_events to wait for), or an error. */
static ssize_t after_tls(const struct tls_stream *stream, int rc, short *out_events)
{
    int reason = SSL_get_error(stream->ssl, rc);
    if (reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE) {
        *out_events = reason == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
        return 0;
    }
    return report_error(ERR_UNAVAILABLE, NULL, "a connection ended: %s",
                        reason == SSL_ERROR_SSL ? tls_error_text() : "its other end has gone");
}

bool tls_stream_has_pending(const struct tls_stream *stream)
{
    return stream->ssl && SSL_pending(stream->ssl) > 0;
}

static ssize_t after_plain(ssize_t count, short events, short *out_events)
{
    if (count > 0)
        return count;
    *out_events = events;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    return report_error(ERR_UNAVAILABLE, NULL, "a connection ended: %s",
                        count == 0 ? "its other end has gone" : strerror(errno));
}

ssize_t tls_stream_read_some(struct tls_stream *stream, void *out, size_t bytes, short *out_events)
{
    if (!stream->ssl)
        return after_plain(recv(stream->socket, out, bytes, MSG_DONTWAIT), POLLIN, out_events);
    ERR_clear_error();
    int rc = SSL_read(stream->ssl, out, bytes < INT32_MAX ? (int)bytes : INT32_MAX);
    return rc > 0 ? rc : after_tls(stream, rc, out_events);
}

ssize_t tls_stream_write_some(struct tls_stream *stream, const void *data, size_t bytes,
                              short *out_events)
{
    if (!stream->ssl)
        return after_plain(send(stream->socket, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL), POLLOUT,
                           out_events);
    ERR_clear_error();
    int rc = SSL_write(stream->ssl, data, bytes < INT32_MAX ? (int)bytes : INT32_MAX);
    return rc > 0 ? rc : after_tls(stream, rc, out_events);
}

/* Progress and deadline of a call. */
struct pace {
    int64_t begun_ms, moved_ms, timeout_ms;
    size_t done;
};

static struct pace begin_pace(uint32_t timeout_ms)
{
    int64_t now = clock_ms();
    return (struct pace){.begun_ms = now, .moved_ms = now, .timeout_ms = timeout_ms};
}

static int64_t pace_until_ms(const struct pace *pace)
{
    int64_t slowest_ms =
        pace->begun_ms + (int64_t)(pace->done * 1000 / TLS_STREAM_BYTES_PER_SECOND);
    return (slowest_ms < pace->moved_ms ? slowest_ms : pace->moved_ms) + pace->timeout_ms;
}

static void keep_pace(struct pace *pace, ssize_t count)
{
    pace->done += (size_t)count;
    pace->moved_ms = clock_ms();
}

int tls_stream_read(struct tls_stream *stream, void *out, size_t bytes, uint32_t timeout_ms)
{
    struct pace pace = begin_pace(timeout_ms);
    while (pace.done < bytes) {
        short events = 0;
        ssize_t count =
            tls_stream_read_some(stream, (char *)out + pace.done, bytes - pace.done, &events);
        if (count < 0)
            return (int)count;
        if (count > 0)
            keep_pace(&pace, count);
        else
            ERR_TRY(sleep_until(stream, events, pace_until_ms(&pace)));
    }
    return 0;
}

int tls_stream_write(struct tls_stream *stream, const void *data, size_t bytes, uint32_t timeout_ms)
{
    struct pace pace = begin_pace(timeout_ms);
    while (pace.done < bytes) {
        short events = 0;
        ssize_t count = tls_stream_write_some(stream, (const char *)data + pace.done,
                                              bytes - pace.done, &events);
        if (count < 0)
            return (int)count;
        if (count > 0)
            keep_pace(&pace, count);
        else
            ERR_TRY(sleep_until(stream, events, pace_until_ms(&pace)));
    }
    return 0;
}

int tls_stream_wait(struct tls_stream *stream, uint32_t timeout_ms)
{
    if (stream->ssl && SSL_has_pending(stream->ssl))
        return 0;
    return sleep_until(stream, POLLIN, clock_ms() + timeout_ms);
}

double tls_stream_rtt_seconds(const struct tls_stream *stream)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    bool is_known = getsockopt(stream->socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0;
    return is_known ? info.tcpi_rtt / 1e6 : 0;
}
