/* relay.c - see tls.h.
 *
 * One thread, one epoll. A link is a TCP connection, its TLS state, and one end of a socket pair.
 * It pumps: bytes from the peer are decrypted into `in` and written to the pair; bytes from the
 * pair are read into `out` and encrypted. Each buffer is emptied before it is filled again, so a
 * side that does not read stops the other. A link that ends while an event of it may be on its way
 * is freed after the events that were fetched with it.
 *
 * Where no more handshakes fit, a newcomer takes the place of one that is not finished: crowd.h. */
#include "proto/base/report.h"
#include "proto/tls/context.h"
#include "proto/tls/crowd.h"
#include "proto/tls/tls.h"

#include <openssl/err.h>

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PROTOCOL "h2" /* gRPC is HTTP/2 */
#define EVENTS_MAX 64
#define LOG_MS 1000 /* between two lines about peers that were refused */

struct buffer {
    uint32_t at, bytes;
    uint8_t data[TLS_BUFFER_BYTES];
};

struct link {
    struct link *next;
    SSL *ssl;
    int tcp, plain;   /* plain: -1 until it is verified */
    bool wants_write; /* TLS could not go on without writing */
    bool is_parted;   /* the server's end is closed: what it sent before still goes out */
    bool is_ended;
    bool may_begin; /* a handshake: its first byte has come */
    uint32_t tcp_events, plain_events;
    int64_t until_ms; /* of the handshake, and of a link that is parted */
    struct tls_newcomer newcomer;
    struct buffer in, out;
};

struct tls_relay {
    struct tls_relay_options options;
    pthread_t thread;
    pthread_mutex_t mutex;               /* of `arrived` and `is_closing` */
    struct link *arrived, **arrived_end; /* the first came first */
    bool is_closing;
    int epoll, wake;
    _Atomic int64_t end_s; /* of the context's files */
    /* The thread's alone. */
    SSL_CTX *context;
    struct tls_stamp stamp;
    struct link *links, *graves;
    uint32_t num_links;
    struct tls_crowd crowd;
    int64_t looked_ms, logged_ms;
    uint32_t num_unlogged;
};

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A crowd of strangers does not fill the log. */
static void log_refused(struct tls_relay *relay, const char *from, const char *why)
{
    int64_t now = now_ms();
    if (relay->logged_ms != 0 && now - relay->logged_ms < LOG_MS) {
        relay->num_unlogged++;
        return;
    }
    char more[64] = "";
    if (relay->num_unlogged > 0)
        snprintf(more, sizeof more, " (%u more since the line before)", relay->num_unlogged);
    log_warn("tls", "refused a connection from %s: %s%s", from, why, more);
    relay->logged_ms = now;
    relay->num_unlogged = 0;
}

/* ---- links ---- */

static void end_link(struct tls_relay *relay, struct link *link)
{
    struct link **at = &relay->links;
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    relay->num_links--;
    link->is_ended = true;
    tls_crowd_leave(&relay->crowd, &link->newcomer, false);
    if (link->plain >= 0) {
        SSL_shutdown(link->ssl); /* what was sent is all there is; best effort */
        close(link->plain);
    }
    ERR_clear_error();
    close(link->tcp);
    link->next = relay->graves;
    relay->graves = link;
}

static void free_link(struct link *link)
{
    SSL_free(link->ssl);
    free(link);
}

static void refuse(struct tls_relay *relay, struct link *link, const char *why)
{
    log_refused(relay, link->newcomer.from, why);
    end_link(relay, link);
}

static bool set_events(struct tls_relay *relay, int fd, uint32_t *set, uint32_t wanted,
                       struct link *link, unsigned side)
{
    struct epoll_event event = {.events = wanted, .data.u64 = (uintptr_t)link | side};
    if (*set == wanted)
        return true;
    *set = wanted;
    return epoll_ctl(relay->epoll, EPOLL_CTL_MOD, fd, &event) == 0;
}

/* What epoll is to tell next. */
static void watch(struct tls_relay *relay, struct link *link)
{
    bool is_open = link->plain >= 0;
    bool reads_tcp = !is_open || (link->in.bytes == 0 && !link->is_parted);
    uint32_t tcp = (reads_tcp ? EPOLLIN : 0u) | (link->wants_write ? (uint32_t)EPOLLOUT : 0u);
    uint32_t plain =
        (link->out.bytes == 0 ? EPOLLIN : 0u) | (link->in.bytes > 0 ? (uint32_t)EPOLLOUT : 0u);
    if (!set_events(relay, link->tcp, &link->tcp_events, tcp, link, 0) ||
        (is_open && !link->is_parted &&
         !set_events(relay, link->plain, &link->plain_events, plain, link, 1)))
        refuse(relay, link, "it could not be watched");
}

/* ---- the handshake ---- */

/* Opens the pair and hands its other end over. */
static int open_pair(struct tls_relay *relay, struct link *link, const struct principal *principal)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
        return report_errno(ERR_IO, "could not pass a connection on", "socketpair");
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uintptr_t)link | 1};
    if (epoll_ctl(relay->epoll, EPOLL_CTL_ADD, pair[0], &event) != 0) {
        close(pair[0]);
        close(pair[1]);
        return report_errno(ERR_IO, "could not pass a connection on", "epoll_ctl");
    }
    link->plain = pair[0];
    link->plain_events = EPOLLIN;
    relay->options.verified(relay->options.user, pair[1], principal);
    return 0;
}

/* Why the handshake ended, in words that tell an operator what to mend. */
static const char *handshake_error(const struct link *link)
{
    long verified = SSL_get_verify_result(link->ssl);
    const char *text = tls_error_text();
    return verified != X509_V_OK ? X509_verify_cert_error_string(verified) : text;
}

/* Until a byte has come it costs nothing but its place. False: it was refused. */
static bool may_begin(struct tls_relay *relay, struct link *link)
{
    if (link->may_begin || !relay->options.may_begin || !tls_newcomer_has_bytes(&link->newcomer))
        return true;
    link->may_begin = relay->options.may_begin(relay->options.user, link->newcomer.from) == 0;
    if (!link->may_begin)
        refuse(relay, link, report_line());
    return link->may_begin;
}

/* True when it is done. */
static bool shake(struct tls_relay *relay, struct link *link)
{
    struct principal principal;
    if (!may_begin(relay, link))
        return false;
    ERR_clear_error();
    int rc = SSL_accept(link->ssl);
    link->newcomer.has_spoken |= SSL_get_state(link->ssl) != TLS_ST_BEFORE;
    int reason = rc == 1 ? SSL_ERROR_NONE : SSL_get_error(link->ssl, rc);
    link->wants_write = reason == SSL_ERROR_WANT_WRITE;
    if (reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE)
        return false;
    if (rc != 1) {
        refuse(relay, link, handshake_error(link));
        return false;
    }
    if (tls_identify(&principal, link->ssl) != 0 || open_pair(relay, link, &principal) != 0) {
        refuse(relay, link, report_line());
        return false;
    }
    tls_crowd_leave(&relay->crowd, &link->newcomer, true);
    log_debug("tls", "%s comes from %s", principal.name, link->newcomer.from);
    return true;
}

/* ---- bytes ---- */

enum moved { MOVED, STUCK, OVER };

static enum moved of_tls(struct link *link, int rc)
{
    int reason = SSL_get_error(link->ssl, rc);
    if (reason == SSL_ERROR_WANT_WRITE)
        link->wants_write = true;
    return reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE ? STUCK : OVER;
}

static enum moved of_socket(ssize_t count)
{
    if (count > 0)
        return MOVED;
    return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? STUCK : OVER;
}

/* From the peer to the pair. */
static enum moved move_in(struct link *link)
{
    struct buffer *in = &link->in;
    if (in->bytes == 0) {
        int count = SSL_read(link->ssl, in->data, (int)sizeof in->data);
        if (count <= 0)
            return of_tls(link, count);
        in->at = 0;
        in->bytes = (uint32_t)count;
    }
    ssize_t count = send(link->plain, in->data + in->at, in->bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    enum moved moved = of_socket(count);
    if (moved == MOVED) {
        in->at += (uint32_t)count;
        in->bytes -= (uint32_t)count;
    }
    return moved;
}

/* From the pair to the peer. */
static enum moved move_out(struct link *link)
{
    struct buffer *out = &link->out;
    if (out->bytes == 0) {
        ssize_t count = recv(link->plain, out->data, sizeof out->data, MSG_DONTWAIT);
        enum moved moved = of_socket(count);
        if (moved != MOVED)
            return moved;
        out->at = 0;
        out->bytes = (uint32_t)count;
    }
    int count = SSL_write(link->ssl, out->data + out->at, (int)out->bytes);
    if (count <= 0)
        return of_tls(link, count);
    out->at += (uint32_t)count;
    out->bytes -= (uint32_t)count;
    return MOVED;
}

/* As far as both sides go now, but not for ever: others want their turn. */
static void pump(struct tls_relay *relay, struct link *link)
{
    if (link->plain < 0 && !shake(relay, link)) {
        if (!link->is_ended)
            watch(relay, link);
        return;
    }
    link->wants_write = false;
    ERR_clear_error();
    enum moved in = MOVED, out = MOVED;
    for (int turns = 0; (turns < 8 || link->is_parted) && (in == MOVED || out == MOVED); turns++) {
        in = link->is_parted ? STUCK : move_in(link);
        out = move_out(link);
        if (in == OVER || out == OVER) {
            end_link(relay, link);
            return;
        }
    }
    watch(relay, link);
    /* Decrypted bytes that OpenSSL holds are in no socket: epoll would not tell of them. */
    if (!link->is_ended && !link->is_parted && link->in.bytes == 0 && SSL_pending(link->ssl) > 0)
        set_events(relay, link->tcp, &link->tcp_events, EPOLLIN | EPOLLOUT, link, 0);
}

/* epoll tells for ever that a socket has hung up, also while nothing is to be read from it: it is
 * asked no more. */
static void handle(struct tls_relay *relay, struct link *link, bool is_plain, uint32_t events)
{
    bool has_hung_up = (events & (EPOLLHUP | EPOLLERR)) != 0;
    if (has_hung_up && is_plain && !link->is_parted) {
        link->is_parted = true;
        link->until_ms = now_ms() + TLS_HANDSHAKE_MS;
        epoll_ctl(relay->epoll, EPOLL_CTL_DEL, link->plain, NULL);
    }
    pump(relay, link);
    if (has_hung_up && !is_plain && !link->is_ended)
        end_link(relay, link); /* nobody reads the answers */
}

/* ---- newcomers ---- */

/* Makes room for its handshake. False: all connections are verified ones. */
static bool make_room(struct tls_relay *relay, struct link *link)
{
    struct tls_newcomer *leaves;
    bool is_full = relay->num_links >= relay->options.num_connections;
    bool may = tls_crowd_enter(&relay->crowd, &link->newcomer, is_full, &leaves);
    if (leaves)
        refuse(relay, (struct link *)((char *)leaves - offsetof(struct link, newcomer)),
               "its handshake was not finished when others came");
    return may;
}

static void enter(struct tls_relay *relay, struct link *link)
{
    const char *why = "limits.sessions is reached";
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uintptr_t)link};
    bool may = make_room(relay, link);
    if (may) {
        link->ssl = SSL_new(relay->context);
        may = link->ssl && SSL_set_fd(link->ssl, link->tcp) == 1 &&
              epoll_ctl(relay->epoll, EPOLL_CTL_ADD, link->tcp, &event) == 0;
        why = "no memory";
    }
    if (!may) {
        log_refused(relay, link->newcomer.from, why);
        tls_crowd_leave(&relay->crowd, &link->newcomer, false);
        close(link->tcp);
        free_link(link);
        return;
    }
    link->tcp_events = EPOLLIN;
    link->until_ms = now_ms() + TLS_HANDSHAKE_MS;
    link->next = relay->links;
    relay->links = link;
    relay->num_links++;
}

static void enter_arrived(struct tls_relay *relay)
{
    pthread_mutex_lock(&relay->mutex);
    struct link *arrived = relay->arrived;
    relay->arrived = NULL;
    relay->arrived_end = &relay->arrived;
    pthread_mutex_unlock(&relay->mutex);
    while (arrived) {
        struct link *link = arrived;
        arrived = link->next;
        enter(relay, link);
    }
}

void tls_relay_adopt(struct tls_relay *relay, int socket, const char *from)
{
    struct link *link = calloc(1, sizeof *link);
    if (!link) {
        close(socket);
        return;
    }
    tls_socket_set(socket);
    link->tcp = socket;
    link->plain = -1;
    tls_newcomer_init(&link->newcomer, socket, from);
    pthread_mutex_lock(&relay->mutex);
    *relay->arrived_end = link;
    relay->arrived_end = &link->next;
    pthread_mutex_unlock(&relay->mutex);
    uint64_t one = 1;
    (void)!write(relay->wake, &one, sizeof one);
}

/* ---- time ---- */

static void reload(struct tls_relay *relay)
{
    struct tls_stamp stamp;
    SSL_CTX *context;
    tls_stamp(&stamp, relay->options.directory);
    bool has_new_own = stamp.own != relay->stamp.own;
    bool has_new_trust = stamp.trust != relay->stamp.trust;
    if (!has_new_own && !has_new_trust)
        return;
    relay->stamp = stamp;
    if (tls_context_open(&context, relay->options.directory, TLS_SERVER, PROTOCOL) != 0) {
        log_error("tls", "the files of %s changed and cannot be used; the old ones go on: %s",
                  relay->options.directory, report_line());
        return;
    }
    SSL_CTX_free(relay->context);
    relay->context = context;
    relay->end_s = tls_context_end_s(context);
    log_info("tls", "read %s again%s", relay->options.directory,
             has_new_trust ? "; connections that are open have to come again" : "");
    while (has_new_trust && relay->links)
        end_link(relay, relay->links);
}

static void tick(struct tls_relay *relay)
{
    int64_t now = now_ms();
    if (now - relay->looked_ms < TLS_LOOK_MS)
        return;
    relay->looked_ms = now;
    for (struct link *link = relay->links, *next; link; link = next) {
        next = link->next;
        if (link->plain < 0 && now >= link->until_ms)
            refuse(relay, link, "its handshake took too long");
        else if (link->is_parted && now >= link->until_ms)
            end_link(relay, link);
    }
    reload(relay);
}

static bool is_closing(struct tls_relay *relay)
{
    pthread_mutex_lock(&relay->mutex);
    bool answer = relay->is_closing;
    pthread_mutex_unlock(&relay->mutex);
    return answer;
}

static void bury(struct tls_relay *relay)
{
    while (relay->graves) {
        struct link *link = relay->graves;
        relay->graves = link->next;
        free_link(link);
    }
}

static void *relay_thread(void *argument)
{
    struct tls_relay *relay = argument;
    struct epoll_event events[EVENTS_MAX];
    uint64_t drained;
    while (!is_closing(relay)) {
        int count = epoll_wait(relay->epoll, events, EVENTS_MAX, TLS_LOOK_MS);
        for (int i = 0; i < count; i++) {
            struct link *link = (struct link *)(uintptr_t)(events[i].data.u64 & ~(uint64_t)1);
            bool is_plain = (events[i].data.u64 & 1) != 0;
            if (!link)
                (void)!read(relay->wake, &drained, sizeof drained);
            else if (!link->is_ended)
                handle(relay, link, is_plain, events[i].events);
        }
        bury(relay);
        enter_arrived(relay);
        tick(relay);
    }
    for (struct link *link = relay->links, *next; link; link = next) { /* the last answers */
        next = link->next;
        pump(relay, link);
    }
    enter_arrived(relay);
    while (relay->links)
        end_link(relay, relay->links);
    bury(relay);
    return NULL;
}

/* ---- opening, closing ---- */

static void free_relay(struct tls_relay *relay)
{
    SSL_CTX_free(relay->context);
    if (relay->epoll >= 0)
        close(relay->epoll);
    if (relay->wake >= 0)
        close(relay->wake);
    pthread_mutex_destroy(&relay->mutex);
    free(relay);
}

static int start(struct tls_relay *relay)
{
    struct epoll_event event = {.events = EPOLLIN};
    relay->epoll = epoll_create1(EPOLL_CLOEXEC);
    relay->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (relay->epoll < 0 || relay->wake < 0 ||
        epoll_ctl(relay->epoll, EPOLL_CTL_ADD, relay->wake, &event) != 0)
        return report_errno(ERR_IO, "could not watch connections", "epoll");
    if (pthread_create(&relay->thread, NULL, relay_thread, relay) != 0)
        return report_error(ERR_MEMORY, NULL, "the thread of the connections could not be started");
    return 0;
}

int tls_relay_open(struct tls_relay **out, const struct tls_relay_options *options)
{
    struct tls_relay *relay = calloc(1, sizeof *relay);
    if (!relay)
        return report_error(ERR_MEMORY, NULL, "no memory for the connections");
    relay->options = *options;
    relay->crowd.most = TLS_HANDSHAKES_MAX;
    relay->crowd.most_each = TLS_HANDSHAKES_EACH;
    relay->epoll = relay->wake = -1;
    relay->arrived_end = &relay->arrived;
    pthread_mutex_init(&relay->mutex, NULL);
    tls_stamp(&relay->stamp, options->directory);
    int error = tls_context_open(&relay->context, options->directory, TLS_SERVER, PROTOCOL);
    if (error == 0) {
        relay->end_s = tls_context_end_s(relay->context);
        error = start(relay);
    }
    if (error == 0)
        *out = relay;
    else
        free_relay(relay);
    return error;
}

int64_t tls_relay_end_s(const struct tls_relay *relay)
{
    return relay->end_s;
}

void tls_relay_close(struct tls_relay *relay)
{
    if (!relay)
        return;
    pthread_mutex_lock(&relay->mutex);
    relay->is_closing = true;
    pthread_mutex_unlock(&relay->mutex);
    uint64_t one = 1;
    (void)!write(relay->wake, &one, sizeof one);
    pthread_join(relay->thread, NULL);
    free_relay(relay);
}
