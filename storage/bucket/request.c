/* request.c - one signed request to a bucket, with its retries.
 *
 * A table maps each response to done, final, or try again. Retries are spread (full jitter,
 * doubling up to WAIT_MAX), end after retry_s, and use a budget of the whole store, so that an
 * outage causes no storm of retries. 503 and 429 make every request of the store wait, twice as
 * long each time, until one succeeds.
 *
 * A process that ends gives its store a time (ends_ns), at which every request fails, so that a
 * silent server does not keep it.
 *
 * A try without a response, or with a server error, may have taken effect: is_unsettled reports
 * that, and only the caller can settle it.
 *
 * The clock: a server refuses signatures that are 15 minutes off. So each uses the server's clock,
 * known from its responses; a difference of CLOCK_TOLD_S or more is logged once.
 *
 * Error codes: "Error responses" of Amazon's S3 API Reference, and those of Ceph and Swift. */
#include "storage/bucket/bucket.h"

#include "proto/base/clock.h"
#include "storage/engine/measured.h"
#include "storage/engine/meter.h"
#include "storage/http/hash.h"
#include "storage/http/xml.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>

#define WAIT_FIRST_NS (CLOCK_SECOND_NS / 20)
#define WAIT_MAX_NS (10 * CLOCK_SECOND_NS)
#define SLOW_FIRST_NS (CLOCK_SECOND_NS / 10)
#define SLOW_MAX_NS (8 * CLOCK_SECOND_NS)
#define BUDGET_MAX 200.0
#define BUDGET_PER_SUCCESS 0.2 /* in the long run one try in six may be a retry */
#define CLOCK_TOLD_S 30
#define FIXES_MAX 3u /* repairs after a refusal: of the clock, or the keys */
#define URL_BYTES 8192u
#define MESSAGE_BYTES 256u
#define LINE_BYTES 320u /* of a header without a token */
#define OWN_HEADERS_MAX (sizeof((struct s3_call *)0)->headers / sizeof(char *))

int bucket_make_nonce(char out[NONCE_DIGITS + 1])
{
    unsigned char random[NONCE_DIGITS / 2];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return report_error(ERR_IO, NULL, "could not get a random number");
    hash_hex(out, random, sizeof random);
    return 0;
}

void bucket_key(char out[S3_KEY_BYTES], const struct bucket *bucket, const char *key)
{
    const char *slash = bucket->prefix[0] != '\0' && key[0] != '\0' ? "/" : "";
    int length = snprintf(out, S3_KEY_BYTES, "%s%s%s", bucket->prefix, slash, key);
    CHECK(length < (int)S3_KEY_BYTES);
}

int bucket_refuse_read_only(const struct bucket *bucket)
{
    return bucket->read_only
               ? report_error(ERR_DENIED, NULL, "the store was opened for reading only")
               : 0;
}

int bucket_check_lock(const struct bucket *bucket)
{
    uint64_t until = atomic_load(&bucket->lock_until_ns);
    bool is_lost = atomic_load(&bucket->is_lock_lost) || (until != 0 && clock_ns() >= until);
    return is_lost ? report_error(ERR_STALE, "start it again",
                                  "the lock of the store was lost: another process may write to it")
                   : 0;
}

int s3_query_add(struct s3_call *call, const char *name, const char *value)
{
    size_t at = strlen(call->query);
    int length = snprintf(call->query + at, S3_QUERY_BYTES - at, "%s%s=", at > 0 ? "&" : "", name);
    if (length >= (int)(S3_QUERY_BYTES - at))
        return report_error(ERR_INVALID, NULL, "the parameters of a request are too long");
    return sigv4_encode(call->query, S3_QUERY_BYTES, value, 0);
}

void s3_call_free(struct s3_call *call)
{
    http_call_free(&call->http);
}

/* ---- connections ---- */

static int take_connection(struct bucket *bucket, struct http_connection **out)
{
    *out = NULL;
    pthread_mutex_lock(&bucket->mutex);
    if (bucket->num_idle > 0)
        *out = bucket->idle[--bucket->num_idle];
    pthread_mutex_unlock(&bucket->mutex);
    struct http_settings settings = {.authorities = bucket->settings.authorities,
                                     .stall_s = bucket->settings.stall_s,
                                     .ends_ns = bucket->ends_ns,
                                     .pace = pace_take,
                                     .pace_user = bucket->pace};
    return *out != NULL ? 0 : http_open(out, &settings);
}

static void put_connection(struct bucket *bucket, struct http_connection *connection)
{
    pthread_mutex_lock(&bucket->mutex);
    if (bucket->num_idle < (uint32_t)bucket->settings.connections) {
        bucket->idle[bucket->num_idle++] = connection;
        connection = NULL;
    }
    pthread_mutex_unlock(&bucket->mutex);
    http_close(connection);
}

/* ---- the clock ---- */

static void learn_clock(struct bucket *bucket, const struct http_call *http)
{
    if (http->date == 0)
        return;
    int64_t error = (int64_t)http->date - (int64_t)time(NULL);
    bool is_told = false;
    pthread_mutex_lock(&bucket->mutex);
    bucket->clock_s = error;
    bucket->is_clock_known = true;
    if (llabs(error) >= CLOCK_TOLD_S && !bucket->is_clock_told)
        is_told = bucket->is_clock_told = true;
    pthread_mutex_unlock(&bucket->mutex);
    if (is_told)
        log_warn("storage",
                 "the clock of %s is %" PRId64 " s %s this machine's: requests are "
                 "signed with the server's time",
                 bucket->host, (int64_t)llabs(error), error > 0 ? "ahead of" : "behind");
}

/* The server's time. A Date has no fraction of a second. */
static time_t time_there(struct bucket *bucket)
{
    pthread_mutex_lock(&bucket->mutex);
    int64_t error = llabs(bucket->clock_s) > 2 ? bucket->clock_s : 0;
    pthread_mutex_unlock(&bucket->mutex);
    return time(NULL) + (time_t)error;
}

/* ---- one try ---- */

struct texts {
    char url[URL_BYTES], path[4 * S3_KEY_BYTES], date[SIGV4_DATE_BYTES], sha256[HASH_SHA256_HEX];
    char authorization[SIGV4_AUTHORIZATION_BYTES], signed_line[SIGV4_AUTHORIZATION_BYTES + 32];
    char token_line[CREDENTIALS_TOKEN_BYTES + 32];
    char own[OWN_HEADERS_MAX][LINE_BYTES], lines[SIGV4_HEADERS_MAX][LINE_BYTES];
};

static int hash_body(char out[HASH_SHA256_HEX], const struct s3_call *call)
{
    unsigned char sum[HASH_SHA256_BYTES];
    if (call->sha256 != NULL) {
        snprintf(out, HASH_SHA256_HEX, "%s", call->sha256);
        return 0;
    }
    ERR_TRY(hash_sha256(sum, call->send, call->num_send));
    hash_hex(out, sum, sizeof sum);
    return 0;
}

static int write_target(const struct bucket *bucket, const struct s3_call *call,
                        struct texts *texts)
{
    snprintf(texts->path, sizeof texts->path, "%s/", bucket->path);
    if (call->key != NULL)
        ERR_TRY(sigv4_encode(texts->path, sizeof texts->path, call->key, 1));
    int length = snprintf(texts->url, sizeof texts->url, "%s://%s%s%s%s", bucket->scheme,
                          bucket->host, texts->path, call->query[0] ? "?" : "", call->query);
    return length < (int)sizeof texts->url
               ? 0
               : report_error(ERR_INVALID, NULL, "the URL of a request is too long");
}

static void add_header(struct sigv4_request *request, const char *name, const char *value)
{
    CHECK(request->num_headers < SIGV4_HEADERS_MAX);
    request->headers[request->num_headers++] = (struct sigv4_header){name, value};
}

/* The call's headers are "name: value". */
static void add_own_headers(struct sigv4_request *request, const struct s3_call *call,
                            struct texts *texts)
{
    for (size_t i = 0; i < call->num_headers; i++) {
        snprintf(texts->own[i], LINE_BYTES, "%s", call->headers[i]);
        char *colon = strchr(texts->own[i], ':');
        CHECK(colon != NULL && colon[1] == ' ');
        *colon = '\0';
        add_header(request, texts->own[i], colon + 2);
    }
}

/* All signed headers except "host", which libcurl makes, and the signature. */
static void write_headers(struct http_call *http, const struct sigv4_request *request,
                          struct texts *texts)
{
    http->num_headers = 0;
    for (size_t i = 0; i < request->num_headers; i++) {
        const struct sigv4_header *header = &request->headers[i];
        bool is_token = strcmp(header->name, "x-amz-security-token") == 0;
        char *line = is_token ? texts->token_line : texts->lines[i];
        if (strcmp(header->name, "host") == 0)
            continue;
        int length = snprintf(line, is_token ? sizeof texts->token_line : LINE_BYTES, "%s: %s",
                              header->name, header->value);
        CHECK(length < (int)(is_token ? sizeof texts->token_line : LINE_BYTES));
        http->headers[http->num_headers++] = line;
    }
    snprintf(texts->signed_line, sizeof texts->signed_line, "Authorization: %s",
             texts->authorization);
    http->headers[http->num_headers++] = texts->signed_line;
}

static int sign(struct bucket *bucket, struct s3_call *call, struct texts *texts)
{
    const struct keys *keys = NULL;
    struct sigv4_request request = {.method = call->method,
                                    .path = texts->path,
                                    .query = call->query,
                                    .payload_sha256 = texts->sha256,
                                    .region = bucket->settings.region,
                                    .service = "s3",
                                    .date = texts->date};
    sigv4_date(texts->date, time_there(bucket));
    add_header(&request, "host", bucket->host);
    add_header(&request, "x-amz-content-sha256", texts->sha256);
    add_header(&request, "x-amz-date", texts->date);
    add_own_headers(&request, call, texts);
    ERR_TRY(credentials_take(bucket->credentials, &keys));
    if (keys->token[0] != '\0')
        add_header(&request, "x-amz-security-token", keys->token);
    int error = sigv4_sign(texts->authorization, &request, keys->access_key, keys->secret_key);
    write_headers(&call->http, &request, texts);
    credentials_drop(bucket->credentials);
    return error;
}

static enum storage_measure measure_of(const struct s3_call *call)
{
    unsigned method = STORAGE_GET;
    while (method < STORAGE_DELETE && strcasecmp(call->method, storage_measure_name(method)) != 0)
        method++;
    return method == STORAGE_GET && call->answers_xml ? STORAGE_LIST : (enum storage_measure)method;
}

static int try_once(struct bucket *bucket, struct s3_call *call, struct texts *texts)
{
    struct http_connection *connection = NULL;
    struct http_call *http = &call->http;
    http->method = call->method;
    http->url = texts->url;
    http->send = call->send;
    http->num_send = call->num_send;
    http->receive = call->receive;
    http->num_receive = call->num_receive;
    http->status = 0;
    http->was_sent = false;
    if (http_is_over(bucket->ends_ns))
        return report_error(ERR_UNAVAILABLE, NULL, "the store is being closed");
    ERR_TRY(sign(bucket, call, texts));
    ERR_TRY(take_connection(bucket, &connection));
    uint64_t begun_ns = clock_ns();
    int error = http_perform(connection, http);
    storage_meter_count(bucket->base.meter, measure_of(call), (clock_ns() - begun_ns) / 1000);
    put_connection(bucket, connection);
    if (error == 0)
        learn_clock(bucket, http);
    return error;
}

/* ---- the meaning of a response ---- */

enum verdict { DONE, FINAL, AGAIN, AGAIN_SLOWLY, AGAIN_CLOCK, AGAIN_KEYS };

struct meaning {
    int status;       /* 0: any error */
    const char *code; /* NULL: any */
    enum verdict verdict;
    int error;
    bool may_have_acted;
};

/* The first match is used. */
static const struct meaning meanings[] = {
    {0, "RequestTimeTooSkewed", AGAIN_CLOCK, ERR_DENIED, false},
    {0, "ExpiredToken", AGAIN_KEYS, ERR_DENIED, false},
    {0, "TokenRefreshRequired", AGAIN_KEYS, ERR_DENIED, false},
    {0, "InvalidToken", AGAIN_KEYS, ERR_DENIED, false},
    {403, "InvalidAccessKeyId", AGAIN_KEYS, ERR_DENIED, false},
    {0, "SlowDown", AGAIN_SLOWLY, ERR_UNAVAILABLE, true},
    {0, "InternalError", AGAIN, ERR_UNAVAILABLE, true},
    {0, "ServiceUnavailable", AGAIN_SLOWLY, ERR_UNAVAILABLE, true},
    {0, "RequestTimeout", AGAIN, ERR_UNAVAILABLE, false},
    {0, "XAmzContentSHA256Mismatch", AGAIN, ERR_UNAVAILABLE, false}, /* damaged on the way */
    {0, "BadDigest", AGAIN, ERR_UNAVAILABLE, false},
    {404, "NoSuchBucket", FINAL, ERR_INVALID, false},
    {404, NULL, FINAL, ERR_NOT_FOUND, false},
    {412, NULL, FINAL, ERR_EXISTS, false},
    {409, NULL, AGAIN, ERR_BUSY, true},
    {416, NULL, FINAL, ERR_CORRUPT, false},
    {301, NULL, FINAL, ERR_INVALID, false},
    {307, NULL, FINAL, ERR_INVALID, false},
    {400, NULL, FINAL, ERR_INVALID, false},
    {401, NULL, FINAL, ERR_DENIED, false},
    {403, NULL, FINAL, ERR_DENIED, false},
    {405, NULL, FINAL, ERR_DENIED, false},
    {408, NULL, AGAIN, ERR_UNAVAILABLE, true},
    {411, NULL, FINAL, ERR_INVALID, false},
    {429, NULL, AGAIN_SLOWLY, ERR_UNAVAILABLE, false},
    {501, NULL, FINAL, ERR_VERSION, false},
    {503, NULL, AGAIN_SLOWLY, ERR_UNAVAILABLE, true},
    {507, NULL, FINAL, ERR_SPACE, true},
    {0, NULL, AGAIN, ERR_UNAVAILABLE, true},
};

struct error_text {
    char code[S3_CODE_BYTES], message[MESSAGE_BYTES];
    bool is_error;
};

static int read_error(void *user, const char *path, const char *text)
{
    struct error_text *out = user;
    out->is_error = out->is_error || strcmp(path, "Error") == 0;
    if (text != NULL && strcmp(path, "Error/Code") == 0)
        snprintf(out->code, sizeof out->code, "%s", text);
    else if (text != NULL && strcmp(path, "Error/Message") == 0)
        snprintf(out->message, sizeof out->message, "%s", text);
    return 0;
}

static int fail_with(const struct bucket *bucket, const struct s3_call *call,
                     const struct meaning *meaning, struct error_text *text)
{
    const struct http_call *http = &call->http;
    char hint[MESSAGE_BYTES + HTTP_HEADER_BYTES] = "";
    report_make_printable(text->message);
    report_make_printable(text->code);
    if (http->region[0] != '\0' && strcmp(http->region, bucket->settings.region) != 0)
        snprintf(hint, sizeof hint, "the bucket is in the region %s", http->region);
    return report_error(meaning->error, hint[0] ? hint : NULL,
                        "%s s3://%s/%s was answered with %d %s%s%s", call->method, bucket->name,
                        call->key ? call->key : "", http->status, text->code,
                        text->message[0] ? ": " : "", text->message);
}

/* Checks the body of a good response: some servers, and proxies, return 200 with an error in the
 * body. ERR_CORRUPT. */
static int check_good(const struct s3_call *call, const struct error_text *text)
{
    const struct http_call *http = &call->http;
    bool is_of_object =
        call->key != NULL && !call->answers_xml && strcmp(call->method, "DELETE") != 0;
    if (text->is_error)
        return report_error(ERR_CORRUPT, NULL, "the server answered 200 with the error %s",
                            text->code);
    if (call->answers_xml && http->text == NULL)
        return report_error(ERR_CORRUPT, NULL, "the server's answer has no body");
    if (is_of_object && http->etag[0] == '\0')
        return report_error(ERR_CORRUPT, NULL, "the server answered %d without an ETag",
                            http->status);
    if (call->num_receive > 0 && http->status == 206 && http->range_start != call->range_start)
        return report_error(ERR_CORRUPT, NULL, "the server answered with another range");
    return 0;
}

static const struct meaning *meaning_of(int status, const char *code)
{
    const struct meaning *meaning = meanings;
    while ((meaning->status != 0 && meaning->status != status) ||
           (meaning->code != NULL && strcmp(meaning->code, code) != 0))
        meaning++;
    return meaning;
}

/* *out_error: the result if the verdict is FINAL, or no retries are left. */
static enum verdict classify_response(const struct bucket *bucket, struct s3_call *call,
                                      int *out_error)
{
    const struct http_call *http = &call->http;
    struct error_text text = {0};
    bool is_good = http->status >= 200 && http->status < 300;
    bool is_data = is_good && !call->answers_xml && strcmp(call->method, "GET") == 0;
    int error = http->text != NULL && !is_data
                    ? xml_read(http->text, http->text_bytes, read_error, &text)
                    : 0;
    if (is_good && error == 0)
        error = check_good(call, &text);
    snprintf(call->code, sizeof call->code, "%s", text.code);
    *out_error = error;
    if (is_good && error == 0)
        return DONE;
    const struct meaning *meaning = meaning_of(http->status, text.code);
    if (!is_good || (text.is_error && meaning->code != NULL))
        *out_error = fail_with(bucket, call, meaning, &text);
    call->is_unsettled = call->is_unsettled || is_good || meaning->may_have_acted;
    return is_good && error != ERR_CORRUPT ? FINAL : is_good ? AGAIN : meaning->verdict;
}

/* ---- retries ---- */

struct tries {
    uint64_t begin_ns;
    uint32_t count, fixes;
};

static uint64_t random_below(uint64_t limit)
{
    uint64_t value = 0;
    if (getrandom(&value, sizeof value, 0) != sizeof value)
        value = clock_ns();
    return limit > 0 ? value % limit : 0;
}

static void wait_for_calm(struct bucket *bucket)
{
    pthread_mutex_lock(&bucket->mutex);
    uint64_t until = bucket->slow_until_ns, now = clock_ns();
    pthread_mutex_unlock(&bucket->mutex);
    if (now < until)
        http_rest(bucket->ends_ns, until - now + random_below((until - now) / 4 + 1));
}

static void slow_down(struct bucket *bucket, uint32_t asked_s)
{
    pthread_mutex_lock(&bucket->mutex);
    uint64_t now = clock_ns();
    if (now >= bucket->slow_until_ns) { /* otherwise another request has just received the same */
        uint64_t next = 2 * bucket->slow_ns;
        next = next < SLOW_FIRST_NS ? SLOW_FIRST_NS : next;
        bucket->slow_ns = next < SLOW_MAX_NS ? next : SLOW_MAX_NS;
        uint64_t asked =
            asked_s * CLOCK_SECOND_NS < SLOW_MAX_NS ? asked_s * CLOCK_SECOND_NS : SLOW_MAX_NS;
        bucket->slow_until_ns = now + (asked > bucket->slow_ns ? asked : bucket->slow_ns);
    }
    pthread_mutex_unlock(&bucket->mutex);
}

static void count_success(struct bucket *bucket)
{
    pthread_mutex_lock(&bucket->mutex);
    bucket->slow_ns /= 2;
    bucket->tokens += bucket->tokens + BUDGET_PER_SUCCESS < BUDGET_MAX ? BUDGET_PER_SUCCESS : 0;
    pthread_mutex_unlock(&bucket->mutex);
}

static bool take_token(struct bucket *bucket)
{
    pthread_mutex_lock(&bucket->mutex);
    bool has_one = bucket->tokens >= 1;
    bucket->tokens -= has_one ? 1 : 0;
    pthread_mutex_unlock(&bucket->mutex);
    return has_one;
}

/* Waits before the next try. False: there is none. */
static bool try_again(struct bucket *bucket, struct tries *tries, enum verdict verdict,
                      const struct s3_call *call)
{
    uint64_t spent = clock_ns() - tries->begin_ns;
    if (verdict == AGAIN_CLOCK || verdict == AGAIN_KEYS) {
        if (verdict == AGAIN_KEYS)
            credentials_expire(bucket->credentials);
        return tries->fixes++ < FIXES_MAX;
    }
    if (spent >= bucket->retry_s * CLOCK_SECOND_NS || !take_token(bucket))
        return false;
    if (verdict == AGAIN_SLOWLY)
        slow_down(bucket, call->http.retry_after_s);
    uint64_t limit = WAIT_FIRST_NS << (tries->count < 12 ? tries->count : 12);
    http_rest(bucket->ends_ns, random_below(limit < WAIT_MAX_NS ? limit : WAIT_MAX_NS));
    tries->count++;
    return true;
}

int s3_perform(struct bucket *bucket, struct s3_call *call)
{
    struct tries tries = {.begin_ns = clock_ns()};
    struct texts *texts = calloc(1, sizeof *texts);
    int error = texts != NULL ? hash_body(texts->sha256, call)
                              : report_error(ERR_MEMORY, NULL, "no memory for a request");
    if (error == 0)
        error = write_target(bucket, call, texts);
    enum verdict verdict = error == 0 ? AGAIN : FINAL;
    while (verdict >= AGAIN) {
        wait_for_calm(bucket);
        error = try_once(bucket, call, texts);
        if (error == 0)
            verdict = classify_response(bucket, call, &error);
        else
            verdict = error == ERR_UNAVAILABLE || error == ERR_CORRUPT ? AGAIN : FINAL;
        call->is_unsettled = call->is_unsettled || call->http.was_sent;
        if (verdict >= AGAIN &&
            (http_is_over(bucket->ends_ns) || !try_again(bucket, &tries, verdict, call)))
            verdict = FINAL;
        else if (verdict >= AGAIN)
            log_debug("storage", "retry: %s", report_line());
    }
    if (error == 0)
        count_success(bucket);
    if (texts != NULL)
        explicit_bzero(texts, sizeof *texts);
    free(texts);
    return error;
}

int s3_head(struct bucket *bucket, struct http_call *out, const char *key)
{
    struct s3_call call = {.method = "HEAD", .key = key};
    int error = s3_perform(bucket, &call);
    s3_call_free(&call);
    *out = call.http;
    return error;
}
