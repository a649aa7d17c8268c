/* http_server.c - the HTTP listener of http.listen, for browsers, Prometheus and probes.
 *
 *   /metrics  the numbers of Status, as in metrics.file         /status  the reply of Status, JSON
 *   /readyz   200, or 503 and why the next save will fail       /        a page (http_page.c)
 *   /healthz  200, or 503: the service thread did not answer
 *
 * libmicrohttpd runs a thread per connection. It posts an event to the service thread for a status
 * and waits at most ANSWER_MS: after that every request is answered 503. So a request never blocks
 * the service thread, and a blocked service thread is noticed. A status serves all requests within
 * FRESH_MS, so any number of requests costs the service thread at most one status per FRESH_MS. The
 * texts are formatted on the thread of the connection, one at a time.
 *
 * Bounds: CONNECTIONS_MAX threads, half of them for one address; CONNECTION_BYTES for a request;
 * IDLE_S of silence; http.request_ms from the connection to the end of its answer, which a thread
 * enforces (even if a client sends or reads a byte at a time). Every answer ends its connection.
 * Only GET and HEAD: no request changes anything, and no body is read.
 *
 * It is plain text without a password. A client that can reach the port reads the names of runs,
 * their steps and sizes, paths of stores, names of nodes, and errors, but no tensor, configuration
 * or key. So config.c accepts only a loopback address, unless http.public is set; on loopback every
 * user of this machine can read it. */
#include "ckptd/status/http_server.h"
#include "ckptd/core/config.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/peers/peer_status.h"
#include "ckptd/status/http_page.h"
#include "ckptd/status/metrics_text.h"
#include "ckptd/status/status.h"
#include "proto/base/address.h"
#include "proto/base/clock.h"
#include "proto/base/json.h"
#include "proto/base/report.h"

#include <microhttpd.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_MS 3000
#define FRESH_MS 200
#define CONNECTIONS_MAX 32u
#define CONNECTION_BYTES ((size_t)16 << 10)
#define STACK_BYTES ((size_t)256 << 10)
#define IDLE_S 10u

struct http_server {
    struct service *service;
    struct MHD_Daemon *daemon;
    struct event ask;      /* on the service thread: makes a status */
    pthread_mutex_t mutex; /* guards the fields below */
    pthread_cond_t answered;
    bool is_asking; /* `ask` is posted */
    bool is_ending;
    char *status; /* the newest, JSON; NULL: none yet */
    int64_t made_ms;
    struct guest {
        int fd;
        int64_t until_ms; /* INT64_MAX: it was closed */
    } guests[CONNECTIONS_MAX];
    uint32_t num_guests;
    pthread_cond_t came;
    pthread_t watcher;
    pthread_mutex_t writing; /* held while a text is formatted: memory for one at a time */
};

/* ---- from the service thread ---- */

static void make_status(struct event *event)
{
    struct http_server *web = CONTAINER_OF(event, struct http_server, ask);
    peer_status_refresh(web->service);
    char *text = service_status(web->service, false, 0), *before = text;
    pthread_mutex_lock(&web->mutex);
    web->is_asking = false;
    if (text) {
        before = web->status;
        web->status = text;
        web->made_ms = clock_ms();
    }
    pthread_cond_broadcast(&web->answered);
    pthread_mutex_unlock(&web->mutex);
    free(before);
}

static struct timespec timespec_of(int64_t ms)
{
    return (struct timespec){ms / 1000, ms % 1000 * 1000000};
}

static bool is_fresh(const struct http_server *web, int64_t now_ms)
{
    return web->status && now_ms - web->made_ms <= FRESH_MS;
}

/* A copy of the current status, which the caller frees; NULL: the service thread made none in
 * time. */
static char *wait_for_status(struct http_server *web)
{
    const int64_t asked_ms = clock_ms();
    const struct timespec until = timespec_of(asked_ms + ANSWER_MS);
    bool has_asked = false;
    pthread_mutex_lock(&web->mutex);
    while (!is_fresh(web, asked_ms) && !web->is_ending) {
        if (!has_asked && !web->is_asking)
            loop_post(web->service->loop, &web->ask);
        web->is_asking |= !has_asked;
        has_asked = true;
        if (pthread_cond_timedwait(&web->answered, &web->mutex, &until) != 0)
            break;
    }
    char *copy = is_fresh(web, asked_ms) ? strdup(web->status) : NULL;
    pthread_mutex_unlock(&web->mutex);
    return copy;
}

/* ---- the answers: return the code, write the text to `out` ---- */

static unsigned tell_metrics(FILE *out, const json_t *status)
{
    metrics_text_write(out, status);
    return MHD_HTTP_OK;
}

static unsigned tell_status(FILE *out, const json_t *status)
{
    json_dumpf(status, out, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    fputc('\n', out);
    return MHD_HTTP_OK;
}

static unsigned tell_page(FILE *out, const json_t *status)
{
    http_page_write(out, status);
    return MHD_HTTP_OK;
}

static unsigned tell_alive(FILE *out, const json_t *status)
{
    (void)status; /* that there is a status is enough */
    fputs("ok\n", out);
    return MHD_HTTP_OK;
}

/* As in grpc.health.v1: able to save, and not shutting down. */
static unsigned tell_ready(FILE *out, const json_t *status)
{
    const char *why = json_string_value(json_at(status, "health.reason"));
    if (json_is_true(json_at(status, "draining")))
        why = "ckptd is shutting down";
    else if (json_is_true(json_at(status, "health.saving")))
        why = NULL;
    fprintf(out, "%s\n", why ? why : "ok");
    return why ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK;
}

static const struct route {
    const char *path, *type;
    unsigned (*tell)(FILE *out, const json_t *status);
} routes[] = {
    {"/", "text/html; charset=utf-8", tell_page},
    {"/metrics", "text/plain; version=0.0.4; charset=utf-8", tell_metrics},
    {"/status", "application/json", tell_status},
    {"/healthz", "text/plain; charset=utf-8", tell_alive},
    {"/readyz", "text/plain; charset=utf-8", tell_ready},
};

static const struct route *find_route(const char *path)
{
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++)
        if (strcmp(routes[i].path, path) == 0)
            return &routes[i];
    return NULL;
}

/* ---- a request, on the thread of its connection ---- */

/* Sends `text` and frees it. */
static enum MHD_Result send_text(struct MHD_Connection *connection, unsigned code, const char *type,
                                 char *text, size_t bytes)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(bytes, text, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        free(text);
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Content-Security-Policy",
                            "default-src 'none'; style-src 'unsafe-inline'");
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    enum MHD_Result result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result send_words(struct MHD_Connection *connection, unsigned code,
                                  const char *words)
{
    char *text = strdup(words);
    return text ? send_text(connection, code, "text/plain; charset=utf-8", text, strlen(text))
                : MHD_NO;
}

static enum MHD_Result send_route(struct MHD_Connection *connection, const struct route *route,
                                  const char *status)
{
    char *text = NULL;
    size_t bytes = 0;
    json_t *parsed = json_loads(status, 0, NULL);
    FILE *out = open_memstream(&text, &bytes);
    unsigned code = parsed && out ? route->tell(out, parsed) : 0;
    bool whole = out && !ferror(out);
    whole = out && fclose(out) == 0 && whole;
    json_decref(parsed);
    if (code != 0 && whole)
        return send_text(connection, code, route->type, text, bytes);
    free(text);
    return MHD_NO; /* no memory: the connection ends */
}

static enum MHD_Result answer_request(void *user, struct MHD_Connection *connection,
                                      const char *url, const char *method, const char *version,
                                      const char *upload, size_t *upload_bytes, void **state)
{
    struct http_server *web = user;
    const struct route *route = find_route(url);
    (void)version, (void)upload, (void)upload_bytes, (void)state;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return send_words(connection, MHD_HTTP_METHOD_NOT_ALLOWED,
                          "only GET and HEAD are allowed\n");
    if (!route)
        return send_words(connection, MHD_HTTP_NOT_FOUND,
                          "not found; the paths are /, /metrics, /status, /healthz and /readyz\n");
    char *status = wait_for_status(web);
    if (!status)
        return send_words(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                          "ckptd's service thread does not answer\n");
    pthread_mutex_lock(&web->writing);
    enum MHD_Result result = send_route(connection, route, status);
    pthread_mutex_unlock(&web->writing);
    free(status);
    return result;
}

/* ---- the time of a request ---- */

/* The library closes the socket after this last notification. */
static void note_guest(void *user, struct MHD_Connection *connection, void **context,
                       enum MHD_ConnectionNotificationCode code)
{
    struct http_server *web = user;
    int fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    uint32_t i = 0;
    (void)context;
    pthread_mutex_lock(&web->mutex);
    if (code == MHD_CONNECTION_NOTIFY_STARTED && web->num_guests < CONNECTIONS_MAX) {
        int64_t until_ms = clock_ms() + web->service->config->http_request_ms;
        web->guests[web->num_guests++] = (struct guest){fd, until_ms};
        pthread_cond_signal(&web->came);
    } else if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        while (i < web->num_guests && web->guests[i].fd != fd)
            i++;
        if (i < web->num_guests)
            web->guests[i] = web->guests[--web->num_guests];
    }
    pthread_mutex_unlock(&web->mutex);
}

/* Closes the connections whose time is over; returns when the next one's is. The mutex is held. */
static int64_t hang_up(struct http_server *web)
{
    int64_t now_ms = clock_ms(), next_ms = INT64_MAX;
    for (uint32_t i = 0; i < web->num_guests; i++) {
        struct guest *guest = &web->guests[i];
        if (guest->until_ms <= now_ms) {
            shutdown(guest->fd, SHUT_RDWR);
            guest->until_ms = INT64_MAX;
        }
        next_ms = guest->until_ms < next_ms ? guest->until_ms : next_ms;
    }
    return next_ms;
}

static void *watch_guests(void *argument)
{
    struct http_server *web = argument;
    pthread_mutex_lock(&web->mutex);
    while (!web->is_ending) {
        int64_t next_ms = hang_up(web);
        const struct timespec until = timespec_of(next_ms);
        if (next_ms == INT64_MAX)
            pthread_cond_wait(&web->came, &web->mutex);
        else
            pthread_cond_timedwait(&web->came, &web->mutex, &until);
    }
    pthread_mutex_unlock(&web->mutex);
    return NULL;
}

static void end_watch(struct http_server *web)
{
    pthread_mutex_lock(&web->mutex);
    web->is_ending = true;
    pthread_cond_broadcast(&web->answered);
    pthread_cond_broadcast(&web->came);
    pthread_mutex_unlock(&web->mutex);
    pthread_join(web->watcher, NULL);
}

/* ---- as a whole ---- */

static int start_daemon(struct http_server *web, int fd)
{
    if (pthread_create(&web->watcher, NULL, watch_guests, web) != 0) {
        close(fd);
        return report_error(ERR_MEMORY, NULL, "could not start a thread for the HTTP listener");
    }
    web->daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL |
            MHD_USE_ITC,
        0, NULL, NULL, answer_request, web, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
        CONNECTIONS_MAX / 2, MHD_OPTION_NOTIFY_CONNECTION, note_guest, web,
        MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_BYTES,
        MHD_OPTION_THREAD_STACK_SIZE, STACK_BYTES, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (web->daemon)
        return 0;
    end_watch(web);
    close(fd);
    return report_error(ERR_IO, NULL, "could not start the HTTP listener on %s",
                        web->service->config->http_listen);
}

int http_server_open(struct service *service)
{
    const struct config *config = service->config;
    pthread_condattr_t monotonic;
    int fd;
    if (config->http_listen[0] == '\0')
        return 0;
    struct http_server *web = calloc(1, sizeof *web);
    if (!web)
        return report_error(ERR_MEMORY, NULL, "no memory for the HTTP listener");
    web->service = service;
    web->ask.run = make_status;
    pthread_mutex_init(&web->mutex, NULL);
    pthread_mutex_init(&web->writing, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&web->answered, &monotonic);
    pthread_cond_init(&web->came, &monotonic);
    pthread_condattr_destroy(&monotonic);
    service->http_server = web;
    ERR_TRY(address_listen(&fd, config->http_listen, "http.listen"));
    ERR_TRY(start_daemon(web, fd));
    log_info("http", "status and metrics on http://%s, in plain text%s", config->http_listen,
             config->http_public ? ", for every client that can connect" : "");
    return 0;
}

void http_server_end(struct service *service)
{
    struct http_server *web = service->http_server;
    if (!web || !web->daemon)
        return;
    end_watch(web);
    MHD_stop_daemon(web->daemon); /* its threads have ended, and the socket is closed */
    web->daemon = NULL;
}

void http_server_close(struct service *service)
{
    struct http_server *web = service->http_server;
    if (!web)
        return;
    pthread_cond_destroy(&web->answered);
    pthread_cond_destroy(&web->came);
    pthread_mutex_destroy(&web->mutex);
    pthread_mutex_destroy(&web->writing);
    free(web->status);
    free(web);
    service->http_server = NULL;
}
