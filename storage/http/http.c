/* http.c - one request over libcurl; no other file uses libcurl.
 *
 * Bodies are sent from and received into the caller's memory. libcurl copies only the current
 * piece, in its two buffers, which stay in the cache. A request with a body goes without "Expect:
 * 100-continue": the wait costs a round trip per part.
 *
 * libcurl detects a stall: less than a byte a second for `stall_s`, which includes a server that
 * accepts a request and does not answer. A short answer is CURLE_PARTIAL_FILE if the server sent a
 * length; otherwise the caller's count of bytes detects it. */
#include "storage/http/http.h"

#include "proto/base/clock.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CONNECT_SECONDS 10L
#define REST_NS (CLOCK_SECOND_NS / 10) /* between looks at ends_ns */
#define RECEIVE_BUFFER (512L << 10)
#define SEND_BUFFER (256L << 10)

struct http_connection {
    CURL *curl;
    struct http_settings settings;
    char error[CURL_ERROR_SIZE];
};

/* One call under way. */
struct transfer {
    struct http_connection *connection;
    struct http_call *call;
    size_t piece, at;    /* of the body: the next bytes to send */
    size_t room, filled; /* likewise of `receive`: its pieces, and bytes in them */
    uint64_t received;
    bool was_sent, is_too_long, is_short_of_memory;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode initialized;

static void initialize(void)
{
    initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
}

int http_init(void)
{
    pthread_once(&once, initialize);
    return initialized == CURLE_OK
               ? 0
               : report_error(ERR_MEMORY, NULL, "libcurl could not be initialized: %s",
                              curl_easy_strerror(initialized));
}

int http_open(struct http_connection **out, const struct http_settings *settings)
{
    struct http_connection *connection = calloc(1, sizeof *connection);
    ERR_TRY(http_init());
    if (connection != NULL)
        connection->curl = curl_easy_init();
    if (connection == NULL || connection->curl == NULL) {
        free(connection);
        return report_error(ERR_MEMORY, NULL, "no memory for a connection");
    }
    connection->settings = *settings;
    *out = connection;
    return 0;
}

void http_close(struct http_connection *connection)
{
    if (connection == NULL)
        return;
    curl_easy_cleanup(connection->curl);
    free(connection);
}

void http_call_free(struct http_call *call)
{
    if (call->text != NULL)
        explicit_bzero(call->text, call->text_bytes);
    free(call->text);
    call->text = NULL;
    call->text_bytes = 0;
}

/* ---- the request body ---- */

static uint64_t bytes_of(const struct iovec *pieces, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += pieces[i].iov_len;
    return bytes;
}

static size_t send_some(char *out, size_t size, size_t count, void *user)
{
    struct transfer *transfer = user;
    const struct http_call *call = transfer->call;
    const struct http_settings *settings = &transfer->connection->settings;
    size_t room = size * count, moved = 0;
    while (moved < room && transfer->piece < call->num_send) {
        const struct iovec *piece = &call->send[transfer->piece];
        size_t rest = piece->iov_len - transfer->at;
        size_t now = rest < room - moved ? rest : room - moved;
        memcpy(out + moved, (const char *)piece->iov_base + transfer->at, now);
        moved += now;
        transfer->at += now;
        if (transfer->at == piece->iov_len) {
            transfer->piece++;
            transfer->at = 0;
        }
    }
    if (settings->pace != NULL && moved > 0)
        settings->pace(settings->pace_user, moved);
    return moved;
}

/* libcurl sends the body again when a kept connection was closed meanwhile. The bytes sent before
 * may already have been a whole request. */
static int rewind_body(void *user, curl_off_t offset, int origin)
{
    struct transfer *transfer = user;
    if (offset != 0 || origin != SEEK_SET)
        return CURL_SEEKFUNC_FAIL;
    transfer->was_sent = transfer->was_sent || transfer->piece > 0 || transfer->at > 0;
    transfer->piece = transfer->at = 0;
    return CURL_SEEKFUNC_OK;
}

/* ---- the response ---- */

static void copy_value(char out[HTTP_HEADER_BYTES], const char *value, size_t bytes)
{
    if (bytes >= 2 && value[0] == '"' && value[bytes - 1] == '"') {
        value++;
        bytes -= 2;
    }
    snprintf(out, HTTP_HEADER_BYTES, "%.*s", (int)bytes, value);
}

static void read_range(struct http_call *call, const char *value)
{
    unsigned long long start = 0, end = 0, whole = 0;
    if (sscanf(value, "bytes %llu-%llu/%llu", &start, &end, &whole) != 3 || end < start)
        return;
    call->range_start = start;
    call->range_bytes = end - start + 1;
    call->whole_length = whole;
}

static void read_header(struct http_call *call, const char *name, const char *value)
{
    size_t bytes = strlen(value);
    if (strcasecmp(name, "date") == 0)
        call->date = curl_getdate(value, NULL);
    else if (strcasecmp(name, "last-modified") == 0)
        call->changed = curl_getdate(value, NULL);
    else if (strcasecmp(name, "content-length") == 0)
        call->length = strtoull(value, NULL, 10);
    else if (strcasecmp(name, "content-range") == 0)
        read_range(call, value);
    else if (strcasecmp(name, "etag") == 0)
        copy_value(call->etag, value, bytes);
    else if (strcasecmp(name, "x-amz-meta-holdfast-nonce") == 0)
        copy_value(call->nonce, value, bytes);
    else if (strcasecmp(name, "x-amz-meta-holdfast-lease") == 0)
        copy_value(call->lease, value, bytes);
    else if (strcasecmp(name, "x-amz-meta-holdfast-sha256") == 0)
        copy_value(call->sha256, value, bytes);
    else if (strcasecmp(name, "x-amz-bucket-region") == 0)
        copy_value(call->region, value, bytes);
    else if (strcasecmp(name, "retry-after") == 0)
        call->retry_after_s = (uint32_t)strtoul(value, NULL, 10);
    if (call->date < 0)
        call->date = 0;
    if (call->changed < 0)
        call->changed = 0;
}

static size_t receive_header(char *data, size_t size, size_t count, void *user)
{
    struct transfer *transfer = user;
    size_t bytes = size * count;
    char line[HTTP_HEADER_BYTES + 64];
    snprintf(line, sizeof line, "%.*s", (int)bytes, data);
    line[strcspn(line, "\r\n")] = '\0';
    char *colon = strchr(line, ':');
    if (colon == NULL)
        return bytes;
    *colon = '\0';
    char *value = colon + 1 + strspn(colon + 1, " \t");
    for (size_t length = strlen(value); length > 0 && value[length - 1] == ' ';)
        value[--length] = '\0';
    read_header(transfer->call, line, value);
    return bytes;
}

static size_t copy_into(struct transfer *transfer, const char *data, size_t bytes)
{
    const struct http_call *call = transfer->call;
    size_t moved = 0;
    while (moved < bytes && transfer->room < call->num_receive) {
        const struct iovec *piece = &call->receive[transfer->room];
        size_t rest = piece->iov_len - transfer->filled;
        size_t now = rest < bytes - moved ? rest : bytes - moved;
        memcpy((char *)piece->iov_base + transfer->filled, data + moved, now);
        moved += now;
        transfer->filled += now;
        if (transfer->filled == piece->iov_len) {
            transfer->room++;
            transfer->filled = 0;
        }
    }
    transfer->received += moved;
    transfer->is_too_long = transfer->is_too_long || moved < bytes;
    return moved;
}

static size_t keep_text(struct transfer *transfer, const char *data, size_t bytes)
{
    struct http_call *call = transfer->call;
    if (bytes > HTTP_TEXT_MAX - call->text_bytes) {
        transfer->is_too_long = true;
        return 0;
    }
    char *text = malloc(call->text_bytes + bytes + 1);
    if (text == NULL) {
        transfer->is_short_of_memory = true;
        return 0;
    }
    size_t before = call->text_bytes;
    if (before > 0)
        memcpy(text, call->text, before);
    memcpy(text + before, data, bytes);
    text[before + bytes] = '\0';
    http_call_free(call); /* wiped: it may hold a secret */
    call->text = text;
    call->text_bytes = before + bytes;
    return bytes;
}

static size_t receive_some(char *data, size_t size, size_t count, void *user)
{
    struct transfer *transfer = user;
    long status = 0;
    curl_easy_getinfo(transfer->connection->curl, CURLINFO_RESPONSE_CODE, &status);
    bool goes_there = transfer->call->receive != NULL && (status == 200 || status == 206);
    return goes_there ? copy_into(transfer, data, size * count)
                      : keep_text(transfer, data, size * count);
}

/* ---- the end of all calls ---- */

bool http_is_over(const _Atomic uint64_t *ends_ns)
{
    uint64_t end = ends_ns != NULL ? atomic_load(ends_ns) : 0;
    return end != 0 && clock_ns() >= end;
}

void http_rest(const _Atomic uint64_t *ends_ns, uint64_t ns)
{
    for (uint64_t until = clock_ns() + ns, now;
         !http_is_over(ends_ns) && (now = clock_ns()) < until;)
        clock_sleep_ns(until - now < REST_NS ? until - now : REST_NS);
}

/* libcurl calls it once a second at least. */
static int look_at_end(void *user, curl_off_t of_get, curl_off_t got, curl_off_t of_put,
                       curl_off_t put)
{
    const struct http_connection *connection = user;
    (void)of_get, (void)got, (void)of_put, (void)put;
    return http_is_over(connection->settings.ends_ns);
}

/* ---- a call ---- */

static int set_headers(struct curl_slist **list, const struct http_call *call)
{
    static const char *const plain[] = {"Expect:", "Content-Type:"};
    for (size_t i = 0; i < call->num_headers + sizeof plain / sizeof plain[0]; i++) {
        const char *line = i < call->num_headers ? call->headers[i] : plain[i - call->num_headers];
        struct curl_slist *longer = curl_slist_append(*list, line);
        if (longer == NULL)
            return report_error(ERR_MEMORY, NULL, "no memory for the headers of a request");
        *list = longer;
    }
    return 0;
}

static void set_connection(struct http_connection *connection)
{
    const struct http_settings *settings = &connection->settings;
    CURL *curl = connection->curl;
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(curl, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, CONNECT_SECONDS);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)settings->stall_s);
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, RECEIVE_BUFFER);
    curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, SEND_BUFFER);
    if (settings->authorities[0] != '\0')
        curl_easy_setopt(curl, CURLOPT_CAINFO, settings->authorities);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, settings->ends_ns == NULL ? 1L : 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, look_at_end);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, connection);
    if (settings->no_proxy)
        curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
}

static void set_call(struct http_connection *connection, struct transfer *transfer,
                     struct curl_slist *headers)
{
    const struct http_call *call = transfer->call;
    CURL *curl = connection->curl;
    curl_easy_reset(curl); /* the socket stays open */
    set_connection(connection);
    curl_easy_setopt(curl, CURLOPT_URL, call->url);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, connection->error);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, receive_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, transfer);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, receive_some);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, transfer);
    if (strcmp(call->method, "HEAD") == 0) {
        curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    } else if (strcmp(call->method, "PUT") == 0 || strcmp(call->method, "POST") == 0) {
        curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(curl, CURLOPT_READFUNCTION, send_some);
        curl_easy_setopt(curl, CURLOPT_READDATA, transfer);
        curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, rewind_body);
        curl_easy_setopt(curl, CURLOPT_SEEKDATA, transfer);
        curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE,
                         (curl_off_t)bytes_of(call->send, call->num_send));
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, call->method);
    } else if (strcmp(call->method, "GET") != 0) {
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, call->method);
    }
}

/* May the server have received the whole request? When in doubt, yes. */
static bool may_have_acted(CURLcode code, const struct transfer *transfer)
{
    static const CURLcode before[] = {CURLE_COULDNT_RESOLVE_HOST,     CURLE_COULDNT_RESOLVE_PROXY,
                                      CURLE_COULDNT_CONNECT,          CURLE_SSL_CONNECT_ERROR,
                                      CURLE_PEER_FAILED_VERIFICATION, CURLE_SSL_CACERT_BADFILE};
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++)
        if (code == before[i])
            return false;
    return transfer->piece >= transfer->call->num_send;
}

static int fail_call(struct http_connection *connection, struct transfer *transfer, CURLcode code)
{
    struct http_call *call = transfer->call;
    const char *why = connection->error[0] ? connection->error : curl_easy_strerror(code);
    call->was_sent = transfer->was_sent || may_have_acted(code, transfer);
    if (transfer->is_short_of_memory || code == CURLE_OUT_OF_MEMORY)
        return report_error(ERR_MEMORY, NULL, "no memory for the answer of a server");
    if (transfer->is_too_long)
        return report_error(ERR_CORRUPT, NULL, "the server's answer is longer than the request");
    if (code == CURLE_SSL_CACERT_BADFILE || code == CURLE_URL_MALFORMAT)
        return report_error(ERR_INVALID, "check the endpoint and the authorities' file",
                            "the request could not be sent: %s", why);
    if (code == CURLE_PEER_FAILED_VERIFICATION)
        return report_error(ERR_DENIED, "name the authority that signed it: authorities",
                            "the server's certificate is not trusted: %s", why);
    if (code == CURLE_ABORTED_BY_CALLBACK)
        return report_error(ERR_UNAVAILABLE, NULL,
                            "the server had not answered when the store was closed");
    return report_error(ERR_UNAVAILABLE, NULL, "the server did not answer: %s", why);
}

static void forget_answer(struct http_call *call)
{
    http_call_free(call);
    call->status = 0;
    call->was_sent = false;
    call->date = call->changed = 0;
    call->length = call->whole_length = call->range_start = call->range_bytes = 0;
    call->etag[0] = call->nonce[0] = call->lease[0] = call->sha256[0] = call->region[0] = '\0';
    call->retry_after_s = 0;
}

/* Checks the length that the server sent, or the requested one. */
static int check_length(const struct http_call *call, uint64_t got)
{
    bool goes_there = call->receive != NULL && (call->status == 200 || call->status == 206);
    uint64_t wanted = goes_there            ? bytes_of(call->receive, call->num_receive)
                      : call->status == 206 ? call->range_bytes
                                            : got;
    return got == wanted ? 0
                         : report_error(ERR_UNAVAILABLE, NULL,
                                        "the server's answer has %llu bytes and not %llu",
                                        (unsigned long long)got, (unsigned long long)wanted);
}

int http_perform(struct http_connection *connection, struct http_call *call)
{
    struct transfer transfer = {.connection = connection, .call = call};
    struct curl_slist *headers = NULL;
    long status = 0;
    forget_answer(call);
    connection->error[0] = '\0';
    int error = set_headers(&headers, call);
    if (error == 0) {
        set_call(connection, &transfer, headers);
        CURLcode code = curl_easy_perform(connection->curl);
        curl_easy_getinfo(connection->curl, CURLINFO_RESPONSE_CODE, &status);
        error = code == CURLE_OK ? 0 : fail_call(connection, &transfer, code);
    }
    for (struct curl_slist *at = headers; at != NULL; at = at->next)
        explicit_bzero(at->data, strlen(at->data)); /* a session token */
    curl_slist_free_all(headers);
    if (error != 0)
        return error;
    call->status = (int)status;
    call->was_sent = transfer.was_sent;
    return check_length(call, transfer.received + call->text_bytes);
}
