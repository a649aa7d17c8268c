/* bucket.c - the back-end "s3": its table, its opening, and the probe of the server's conditional
 * writes.
 *
 * Servers differ in conditional writes: one honours If-None-Match on PUT and ignores it on the
 * completion of an upload, another does the opposite, some ignore both and overwrite. So a process
 * that opens a bucket for writing tries each on a probe object, and uses the one that works. If
 * neither works, or several writers win a race (race.c), two writers could both believe that they
 * made one object. Such a bucket is refused, unless single_writer declares that there is only one.
 *
 * The name is "BUCKET" or "BUCKET/PREFIX". All objects are made below the prefix. */
#include "storage/bucket/bucket.h"
#include "storage/engine/measured.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROBE_FOLDER ".holdfast.probe/"
#define RACE_SUFFIX "-race" /* of the key that several writers make at once */
#define PROBE_SECONDS 3600  /* an older probe object is no longer in use */
#define PROBES_SWEPT 16u    /* per opening */
#define BUDGET_FIRST 200.0
#define BRIEF_S 3u /* time-out of each request of a brief opening */

static const char *const exclusive_texts[] = {
    [EXCLUSIVE_UNKNOWN] = "opened for reading",
    [EXCLUSIVE_PUT] = "conditional PUT",
    [EXCLUSIVE_COMPLETE] = "no conditional PUT, conditional completion",
    [EXCLUSIVE_NOT] = "no conditional writes: a single writer",
};

#define RACY_TEXT "a conditional write that several win: a single writer"

/* ---- the name and the server ---- */

/* "BUCKET[/PREFIX]" */
static int parse_name(struct bucket *bucket, const char *where)
{
    size_t length = strcspn(where, "/");
    const char *prefix = where + length + strspn(where + length, "/");
    size_t prefix_length = strlen(prefix);
    while (prefix_length > 0 && prefix[prefix_length - 1] == '/')
        prefix_length--;
    bool is_fine = length >= 3 && length < 64 && prefix_length <= STORAGE_KEY_MAX;
    for (size_t i = 0; i < length && is_fine; i++)
        is_fine = strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_",
                         where[i]) != NULL;
    if (!is_fine)
        return report_error(ERR_INVALID, "write s3://BUCKET or s3://BUCKET/PREFIX",
                            "\"%s\" is not the name of a bucket with a prefix", where);
    snprintf(bucket->name, sizeof bucket->name, "%.*s", (int)length, where);
    snprintf(bucket->prefix, sizeof bucket->prefix, "%.*s", (int)prefix_length, prefix);
    char *rest = bucket->prefix, copy[sizeof bucket->prefix];
    strcpy(copy, bucket->prefix);
    rest = copy;
    for (char *name; bucket->prefix[0] != '\0' && (name = strsep(&rest, "/")) != NULL;)
        if (!storage_name_is_valid(name, strlen(name)))
            return report_error(ERR_INVALID, "names of [A-Za-z0-9._-] with '/' between them",
                                "the prefix \"%s\" is not a storage key", bucket->prefix);
    return 0;
}

/* "https://HOST[:PORT]" */
static int parse_endpoint(struct bucket *bucket, const char *endpoint, bool is_virtual)
{
    const char *host = strstr(endpoint, "://");
    size_t scheme = host != NULL ? (size_t)(host - endpoint) : 0;
    bool is_known = (scheme == 5 && strncmp(endpoint, "https", 5) == 0) ||
                    (scheme == 4 && strncmp(endpoint, "http", 4) == 0);
    if (!is_known || host[3] == '\0' || strcspn(host + 3, "/?#@") + 1 < strlen(host + 3))
        return report_error(ERR_INVALID, "write https://HOST or https://HOST:PORT",
                            "the endpoint \"%s\" is not an address of a server", endpoint);
    snprintf(bucket->scheme, sizeof bucket->scheme, "%.*s", (int)scheme, endpoint);
    snprintf(bucket->host, sizeof bucket->host, "%s%s%.*s", is_virtual ? bucket->name : "",
             is_virtual ? "." : "", (int)strcspn(host + 3, "/"), host + 3);
    const char *usual = scheme == 5 ? ":443" : ":80"; /* libcurl omits it from "Host" */
    size_t length = strlen(bucket->host), tail = strlen(usual);
    if (length > tail && strcmp(bucket->host + length - tail, usual) == 0)
        bucket->host[length - tail] = '\0';
    return 0;
}

static int find_server(struct bucket *bucket)
{
    struct storage_bucket *settings = &bucket->settings;
    char endpoint[sizeof settings->endpoint];
    bool is_aws = settings->endpoint[0] == '\0';
    bool is_virtual =
        strcmp(settings->style, "virtual") == 0 ||
        (strcmp(settings->style, "auto") == 0 && is_aws && strchr(bucket->name, '.') == NULL);
    if (settings->region[0] == '\0')
        strcpy(settings->region, "us-east-1");
    snprintf(endpoint, sizeof endpoint, "%s", settings->endpoint);
    if (is_aws)
        snprintf(endpoint, sizeof endpoint, "https://s3.%s.amazonaws.com", settings->region);
    if (!is_virtual)
        snprintf(bucket->path, sizeof bucket->path, "/%s", bucket->name);
    return parse_endpoint(bucket, endpoint, is_virtual);
}

/* ---- the probe ---- */

/* *out_holds: the server refuses a second conditional PUT of the same key. */
static int probe_put(struct bucket *bucket, const char *key, bool *out_holds)
{
    struct iovec body = {"probe\n", 6};
    int error = 0;
    *out_holds = false;
    for (int i = 0; i < 2; i++) {
        struct s3_call call = {.method = "PUT",
                               .key = key,
                               .headers = {"if-none-match: *"},
                               .num_headers = 1,
                               .send = &body,
                               .num_send = 1};
        error = s3_perform(bucket, &call);
        int status = call.http.status;
        s3_call_free(&call);
        if (status == 501) /* the server reports that it does not support it */
            break;
        bool is_own = i == 1 || call.is_unsettled; /* the existing object */
        if (error != 0 && !(is_own && error == ERR_EXISTS))
            return error;
        *out_holds = error == ERR_EXISTS;
    }
    return 0;
}

/* *out_holds: the server refuses the completion of an upload over an existing object. */
static int probe_complete(struct bucket *bucket, const char *key, bool *out_holds)
{
    struct s3_upload upload;
    char etag[HTTP_HEADER_BYTES];
    bool is_unsettled = false;
    struct iovec body = {"probe\n", 6};
    *out_holds = false;
    ERR_TRY(s3_upload_begin(bucket, &upload, key, NULL, 0));
    int error = s3_upload_part(bucket, &upload, key, 1, &body, NULL, etag);
    if (error == 0)
        error = s3_upload_complete(bucket, &upload, key, etag, sizeof etag, 1, true, &is_unsettled);
    *out_holds = error == ERR_EXISTS;
    if (error == ERR_NOT_FOUND && is_unsettled) /* the previous try has completed it */
        return 0;
    if (error != 0)
        s3_upload_abort(bucket, &upload, key);
    return error == ERR_EXISTS || error == ERR_VERSION ? 0 : error;
}

static int refuse_unconditional(const struct bucket *bucket)
{
    return report_error(
        ERR_DENIED,
        "use another server, or say that there is one writer: HOLDFAST_S3_SINGLE_WRITER=true in "
        "the environment",
        "the server of s3://%s honours If-None-Match neither on PUT nor on the completion of an "
        "upload: two writers could overwrite each other",
        bucket->name);
}

static int refuse_racy(const struct bucket *bucket)
{
    return report_error(
        ERR_DENIED,
        "use another server, or say that there is one writer: HOLDFAST_S3_SINGLE_WRITER=true in "
        "the environment",
        "the server of s3://%s let %u of %u writers that raced make one object: its conditional %s "
        "only works for one writer after the other, so two writers could overwrite each other",
        bucket->name, bucket->num_winners, RACE_WRITERS,
        bucket->exclusive == EXCLUSIVE_PUT ? "PUT" : "completion");
}

/* Tries PUT before completion, and several racing writers before writers in sequence. */
static int probe_kind(struct bucket *bucket, const char *key, bool is_put)
{
    bool is_complete = bucket->is_conditional_complete;
    bucket->exclusive = is_put ? EXCLUSIVE_PUT : is_complete ? EXCLUSIVE_COMPLETE : EXCLUSIVE_NOT;
    if (is_put)
        ERR_TRY(bucket_race(bucket, key, true, &bucket->num_winners));
    if (!is_complete || (is_put && bucket->num_winners <= 1))
        return 0;
    bucket->exclusive = EXCLUSIVE_COMPLETE;
    return bucket_race(bucket, key, false, &bucket->num_winners);
}

static int probe(struct bucket *bucket)
{
    char key[S3_KEY_BYTES], name[64] = PROBE_FOLDER;
    struct iovec body = {"probe\n", 6};
    bool is_put = false;
    ERR_TRY(bucket_make_nonce(name + strlen(name)));
    bucket_key(key, bucket, name);
    int error = probe_put(bucket, key, &is_put);
    struct s3_call plain = {.method = "PUT", .key = key, .send = &body, .num_send = 1};
    if (error == 0 && !is_put) { /* the upload may not exist */
        error = s3_perform(bucket, &plain);
        s3_call_free(&plain);
    }
    if (error == 0)
        error = probe_complete(bucket, key, &bucket->is_conditional_complete);
    if (error == 0)
        error = bucket_remove_at(bucket, key);
    strcat(name, RACE_SUFFIX);
    bucket_key(key, bucket, name);
    if (error == 0)
        error = probe_kind(bucket, key, is_put);
    if (error == 0 && bucket->exclusive == EXCLUSIVE_NOT && !bucket->settings.single_writer)
        error = refuse_unconditional(bucket);
    if (error == 0 && bucket->num_winners > 1 && !bucket->settings.single_writer)
        error = refuse_racy(bucket);
    return error;
}

struct left_probes {
    char names[PROBES_SWEPT][64];
    uint32_t num;
};

static int visit_probe(void *user, const struct storage_entry *entry)
{
    struct left_probes *left = user;
    if (!entry->is_dir && strlen(entry->name) < sizeof left->names[0])
        strcpy(left->names[left->num++], entry->name);
    return left->num == PROBES_SWEPT;
}

/* Removes probe objects of processes that were killed during their probe. Younger ones may be in
 * use: if one disappears, its process finds that the server breaks its promise. Best effort:
 * failures are ignored. */
static void sweep_probes(struct bucket *bucket)
{
    struct left_probes left = {.num = 0};
    struct http_call there;
    char key[S3_KEY_BYTES], name[sizeof PROBE_FOLDER + sizeof left.names[0]];
    bucket_key(key, bucket, PROBE_FOLDER);
    (void)bucket_list_at(bucket, key, visit_probe, &left);
    for (uint32_t i = 0; i < left.num; i++) {
        snprintf(name, sizeof name, "%s%s", PROBE_FOLDER, left.names[i]);
        bucket_key(key, bucket, name);
        if (s3_head(bucket, &there, key) == 0 && there.changed != 0 &&
            there.date - there.changed > PROBE_SECONDS)
            (void)bucket_remove_at(bucket, key);
    }
    report_clear();
}

/* A reader learns here that the bucket does not exist, or that it may not read it. */
static int visit_none(void *user, const struct storage_entry *entry)
{
    (void)user, (void)entry;
    return 1;
}

static int greet(struct bucket *bucket)
{
    char prefix[S3_KEY_BYTES];
    if (!bucket->read_only) {
        ERR_TRY(probe(bucket));
        sweep_probes(bucket);
        return 0;
    }
    bucket_key(prefix, bucket, "");
    int found = bucket_list_at(bucket, prefix, visit_none, NULL);
    return found == 1 ? 0 : found;
}

/* ---- open and close ---- */

static void bucket_close(struct storage *storage)
{
    struct bucket *bucket = bucket_of(storage);
    requests_close(bucket->requests);
    keeper_close(bucket->keeper);
    for (uint32_t i = 0; i < bucket->num_idle; i++)
        http_close(bucket->idle[i]);
    free(bucket->idle);
    free(bucket->left.list);
    pthread_mutex_destroy(&bucket->left_mutex);
    credentials_close(bucket->credentials);
    pace_close(bucket->pace);
    pthread_mutex_destroy(&bucket->mutex);
    free(bucket);
}

static int copy_settings(struct bucket *bucket, const struct storage_options *options)
{
    struct storage_bucket *settings = &bucket->settings;
    if (options->bucket == NULL)
        ERR_TRY(storage_bucket_environment(settings));
    else
        *settings = *options->bucket;
    settings_complete(settings);
    settings->part_bytes -= settings->part_bytes % STORAGE_ALIGN;
    return 0;
}

static int connect_all(struct bucket *bucket, bool is_brief)
{
    struct storage_bucket *settings = &bucket->settings;
    uint64_t retry_s = (uint64_t)settings->retry_s;
    bucket->retry_s = is_brief && retry_s > BRIEF_S ? BRIEF_S : retry_s;
    bucket->idle = calloc((size_t)settings->connections, sizeof *bucket->idle);
    if (bucket->idle == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for connections");
    ERR_TRY(http_init());
    ERR_TRY(pace_open(&bucket->pace, settings->rate, bucket->ends_ns));
    ERR_TRY(credentials_open(&bucket->credentials, settings));
    ERR_TRY(greet(bucket));
    bucket->retry_s = retry_s;
    return requests_open(&bucket->requests, bucket);
}

static void write_text(struct bucket *bucket)
{
    snprintf(bucket->text, sizeof bucket->text,
             "%s://%s, %lld connections, parts of %lld bytes, credentials from %s, %s",
             bucket->scheme, bucket->host, (long long)bucket->settings.connections,
             (long long)bucket->settings.part_bytes, credentials_source(bucket->credentials),
             bucket->num_winners > 1 ? RACY_TEXT : exclusive_texts[bucket->exclusive]);
}

static int bucket_open(struct storage **out, const char *where,
                       const struct storage_options *options)
{
    struct bucket *bucket = calloc(1, sizeof *bucket);
    if (bucket == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate the store of a bucket");
    bucket->base.ops = &storage_s3;
    bucket->base.text = bucket->text;
    bucket->read_only = options->read_only;
    bucket->is_quiet = options->read_only || options->is_quiet;
    bucket->lists_all_names = options->lists_all_names;
    bucket->ends_ns = options->ends_ns;
    bucket->tokens = BUDGET_FIRST;
    pthread_mutex_init(&bucket->mutex, NULL);
    pthread_mutex_init(&bucket->left_mutex, NULL);
    int error = parse_name(bucket, where);
    if (error == 0)
        error = copy_settings(bucket, options);
    if (error == 0)
        error = find_server(bucket);
    bucket->base.num_at_once = (uint32_t)bucket->settings.connections;
    if (error == 0)
        error = connect_all(bucket, options->opens_briefly);
    if (error != 0) {
        bucket_close((struct storage *)bucket);
        return error;
    }
    write_text(bucket);
    log_print(bucket->is_quiet ? LOG_DEBUG : LOG_INFO, "storage", "opened s3://%s: %s", where,
              bucket->text);
    *out = (struct storage *)bucket;
    return 0;
}

/* ---- operations that buckets lack ---- */

/* A name is durable with its object. */
static int bucket_sync_names(struct storage *storage, const char *prefix)
{
    (void)storage, (void)prefix;
    return 0;
}

/* Unknown: all stays 0. */
static int bucket_space(struct storage *storage, struct storage_space *out)
{
    (void)storage, (void)out;
    return 0;
}

static void bucket_link(struct storage *storage, struct storage_link *out)
{
    struct bucket *bucket = bucket_of(storage);
    pthread_mutex_lock(&bucket->mutex);
    out->is_clock_known = bucket->is_clock_known;
    out->clock_ahead_s = bucket->clock_s;
    pthread_mutex_unlock(&bucket->mutex);
}

const struct storage_ops storage_s3 = {
    .name = "s3",
    .version = 1,
    .flags = STORAGE_DURABLE | STORAGE_REMOTE | STORAGE_BYTES,
    .open = bucket_open,
    .close = bucket_close,
    .object_create = bucket_object_create,
    .object_open = bucket_object_open,
    .object_close = bucket_object_close,
    .submit = bucket_submit,
    .sync_names = bucket_sync_names,
    .publish = bucket_publish,
    .fetch = bucket_fetch,
    .list = bucket_list,
    .remove = bucket_remove,
    .lock = bucket_lock,
    .space = bucket_space,
    .hold = bucket_hold,
    .release = bucket_release,
    .find_holder = bucket_find_holder,
    .sweep = bucket_sweep,
    .link = bucket_link,
};
