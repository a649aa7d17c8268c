/* names.c - small objects of a bucket, and names.
 *
 * publish: one request that succeeds once; the probe has selected its kind (enum exclusive). Each
 * has a nonce, so a try whose response was lost is repeated. If the object exists by an earlier try
 * the server answers 412, and the nonce is read back. If no response comes within retry_s, and the
 * object is missing, the outcome is unknown, because the server may still create it: ERR_UNSETTLED.
 *
 * A small object also has the SHA-256 of its bytes, which a fetch of the whole object checks.
 *
 * list: pages of a thousand. A page that does not tell whether it is the last is damage, not the
 * end. */
#include "storage/bucket/bucket.h"

#include "storage/http/hash.h"
#include "storage/http/xml.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BYTES (1u << 20) /* of a fetch, read by its first request */
#define HEADER_LINE_BYTES 160u
#define PAGES_MAX 100000u
#define SETTLES_MAX 4u /* when the server reports an object that is missing */
#define FETCHES_MAX 3u /* when bytes were damaged on the way */

/* ---- publish ---- */

struct publication {
    const char *key; /* in the bucket */
    struct iovec data;
    char sha256[HASH_SHA256_HEX], nonce[NONCE_DIGITS + 1];
    char lines[2][HEADER_LINE_BYTES];
    const char *header; /* one more, or NULL */
};

static int prepare(struct publication *publication, const char *key, const void *data, size_t bytes,
                   const char *header)
{
    unsigned char sum[HASH_SHA256_BYTES];
    *publication = (struct publication){
        .key = key, .data = {(void *)(uintptr_t)data, bytes}, .header = header};
    ERR_TRY(bucket_make_nonce(publication->nonce));
    ERR_TRY(hash_sha256(sum, &publication->data, 1));
    hash_hex(publication->sha256, sum, sizeof sum);
    snprintf(publication->lines[0], HEADER_LINE_BYTES, "x-amz-meta-holdfast-nonce: %s",
             publication->nonce);
    snprintf(publication->lines[1], HEADER_LINE_BYTES, "x-amz-meta-holdfast-sha256: %s",
             publication->sha256);
    return 0;
}

int bucket_settle(struct bucket *bucket, const char *key, const char *nonce, int error)
{
    struct report_text text;
    struct http_call there;
    report_keep(&text);
    int looked = s3_head(bucket, &there, key);
    if (looked == 0 && strcmp(there.nonce, nonce) == 0)
        return 0;
    if (looked == 0)
        return report_error(ERR_EXISTS, NULL, "\"%s\" already exists", key);
    if (error == ERR_EXISTS && looked == ERR_NOT_FOUND) /* another process removed it meanwhile */
        return report_restore(&text, ERR_BUSY);
    report_restore(&text, error);
    return report_error(ERR_UNSETTLED, "check whether it exists before anything depends on it",
                        "it is unknown whether \"%s\" was made: %s", key, text.message);
}

static int put_once(struct bucket *bucket, const struct publication *publication,
                    bool is_conditional)
{
    struct s3_call call = {.method = "PUT",
                           .key = publication->key,
                           .headers = {publication->lines[0], publication->lines[1]},
                           .num_headers = 2,
                           .send = &publication->data,
                           .num_send = 1,
                           .sha256 = publication->sha256};
    if (is_conditional)
        call.headers[call.num_headers++] = "if-none-match: *";
    if (publication->header != NULL)
        call.headers[call.num_headers++] = publication->header;
    int error = s3_perform(bucket, &call);
    s3_call_free(&call);
    if (error == ERR_EXISTS || (error != 0 && call.is_unsettled))
        return bucket_settle(bucket, publication->key, publication->nonce, error);
    return error;
}

static int put_object(struct bucket *bucket, const struct publication *publication,
                      bool is_conditional)
{
    int error = ERR_BUSY;
    for (uint32_t i = 0; i < SETTLES_MAX && error == ERR_BUSY; i++)
        error = put_once(bucket, publication, is_conditional);
    return error;
}

/* Uploads one part; the completion is conditional. */
static int put_by_upload(struct bucket *bucket, const struct publication *publication)
{
    struct s3_upload upload;
    char etag[HTTP_HEADER_BYTES];
    bool is_unsettled = false;
    const char *headers[] = {publication->lines[0], publication->lines[1], publication->header};
    int error = s3_upload_begin(bucket, &upload, publication->key, headers,
                                publication->header != NULL ? 3 : 2);
    if (error != 0)
        return error;
    error = s3_upload_part(bucket, &upload, publication->key, 1, &publication->data,
                           publication->sha256, etag);
    if (error == 0)
        error = s3_upload_complete(bucket, &upload, publication->key, etag, sizeof etag, 1, true,
                                   &is_unsettled);
    if (error == ERR_EXISTS || (error != 0 && is_unsettled))
        error = bucket_settle(bucket, publication->key, publication->nonce, error);
    if (error != 0 && error != ERR_UNSETTLED)
        s3_upload_abort(bucket, &upload, publication->key);
    return error;
}

/* Without a condition: checks first whether it exists; no other process writes here. */
static int put_alone(struct bucket *bucket, const struct publication *publication)
{
    struct http_call there;
    int error = s3_head(bucket, &there, publication->key);
    if (error == 0)
        return report_error(ERR_EXISTS, NULL, "\"%s\" already exists", publication->key);
    return error == ERR_NOT_FOUND ? put_object(bucket, publication, false) : error;
}

int bucket_publish_at(struct bucket *bucket, const char *key, const void *data, size_t bytes,
                      const char *header)
{
    struct publication publication;
    ERR_TRY(prepare(&publication, key, data, bytes, header));
    switch (bucket->exclusive) {
    case EXCLUSIVE_COMPLETE:
        return put_by_upload(bucket, &publication);
    case EXCLUSIVE_NOT:
        return put_alone(bucket, &publication);
    case EXCLUSIVE_UNKNOWN:
    case EXCLUSIVE_PUT:
        break;
    }
    return put_object(bucket, &publication, true);
}

int bucket_put_at(struct bucket *bucket, const char *key, const void *data, size_t bytes,
                  const char *header)
{
    struct publication publication;
    ERR_TRY(prepare(&publication, key, data, bytes, header));
    return put_object(bucket, &publication, false);
}

int bucket_publish(struct storage *storage, const char *key, const void *data, size_t bytes)
{
    struct bucket *bucket = bucket_of(storage);
    char whole[S3_KEY_BYTES];
    ERR_TRY(bucket_refuse_read_only(bucket));
    ERR_TRY(bucket_check_lock(bucket));
    bucket_key(whole, bucket, key);
    return bucket_publish_at(bucket, whole, data, bytes, NULL);
}

/* ---- fetch ---- */

/* Reads bytes [at, at + bytes) of an object into their final place. */
static int fetch_range(struct bucket *bucket, const char *key, char *data, uint64_t at,
                       size_t bytes)
{
    char range[64];
    struct iovec piece = {data, bytes};
    snprintf(range, sizeof range, "range: bytes=%" PRIu64 "-%" PRIu64, at, at + bytes - 1);
    struct s3_call call = {.method = "GET",
                           .key = key,
                           .headers = {range},
                           .num_headers = 1,
                           .receive = &piece,
                           .num_receive = 1,
                           .range_start = at};
    int error = s3_perform(bucket, &call);
    s3_call_free(&call);
    return error;
}

static int check_content(const struct http_call *http, const char *key, size_t bytes)
{
    unsigned char sum[HASH_SHA256_BYTES];
    char sha256[HASH_SHA256_HEX];
    if (http->sha256[0] == '\0' || http->text == NULL || http->text_bytes != bytes)
        return 0;
    ERR_TRY(hash_sha256(sum, &(struct iovec){http->text, bytes}, 1));
    hash_hex(sha256, sum, sizeof sum);
    return strcmp(sha256, http->sha256) == 0
               ? 0
               : report_error(ERR_CORRUPT, NULL, "\"%s\" is not what was written", key);
}

/* One request reads the first bytes and the size. */
static int fetch_first(struct bucket *bucket, const char *key, void *data, size_t size,
                       uint64_t *out_bytes)
{
    char range[64];
    snprintf(range, sizeof range, "range: bytes=0-%zu", size - 1);
    struct s3_call call = {.method = "GET", .key = key, .headers = {range}, .num_headers = 1};
    int error = s3_perform(bucket, &call);
    const struct http_call *http = &call.http;
    uint64_t whole = http->status == 206 ? http->whole_length : http->text_bytes;
    size_t wanted = whole < size ? (size_t)whole : size;
    if (error == 0 && http->text_bytes < wanted)
        error = report_error(ERR_CORRUPT, NULL, "the answer for \"%s\" has %zu bytes and not %zu",
                             key, http->text_bytes, wanted);
    if (error == 0 && whole <= size)
        error = check_content(http, key, (size_t)whole);
    if (error == 0 && wanted > 0)
        memcpy(data, http->text, wanted);
    if (error == 0)
        *out_bytes = whole;
    bool is_empty = error != 0 && http->status == 416; /* an empty object has no ranges */
    s3_call_free(&call);
    if (!is_empty)
        return error;
    struct http_call there;
    error = s3_head(bucket, &there, key);
    *out_bytes = error == 0 ? there.length : 0;
    return error == 0 && there.length > 0
               ? report_error(ERR_CORRUPT, NULL, "the server refuses a range of \"%s\"", key)
               : error;
}

int bucket_fetch(struct storage *storage, const char *key, void *data, size_t size,
                 uint64_t *out_bytes)
{
    struct bucket *bucket = bucket_of(storage);
    struct http_call there;
    char whole[S3_KEY_BYTES];
    bucket_key(whole, bucket, key);
    if (size == 0) {
        int error = s3_head(bucket, &there, whole);
        *out_bytes = there.length;
        return error;
    }
    size_t first = size < FIRST_BYTES ? size : FIRST_BYTES;
    int error = ERR_CORRUPT;
    for (uint32_t i = 0; i < FETCHES_MAX && error == ERR_CORRUPT; i++)
        error = fetch_first(bucket, whole, data, first, out_bytes);
    size_t wanted = error == 0 && *out_bytes < size ? (size_t)*out_bytes : size;
    for (size_t at = first; error == 0 && at < wanted;) {
        size_t part = (size_t)bucket->settings.part_bytes;
        size_t now = wanted - at < part ? wanted - at : part;
        error = fetch_range(bucket, whole, (char *)data + at, at, now);
        at += now;
    }
    return error;
}

/* ---- list ---- */

struct page {
    const char *prefix;
    int (*visit)(void *user, const struct storage_entry *entry);
    void *user;
    char key[S3_KEY_BYTES];
    uint64_t bytes;
    char tag[STORAGE_TAG_BYTES];
    char next[S3_QUERY_BYTES / 2]; /* where the next page begins; "": none */
    bool is_told, is_truncated;
};

static int digit_of(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* For encoding-type=url. */
static void decode(char *text)
{
    char *out = text;
    for (const char *in = text; *in != '\0'; in++, out++) {
        int high = *in == '%' ? digit_of(in[1]) : -1, low = high >= 0 ? digit_of(in[2]) : -1;
        *out = low >= 0 ? (char)(high * 16 + low) : *in == '+' ? ' ' : *in;
        in += low >= 0 ? 2 : 0;
    }
    *out = '\0';
}

static int visit_key(struct page *page, bool is_dir)
{
    size_t length = strlen(page->prefix);
    if (strncmp(page->key, page->prefix, length) != 0)
        return report_error(ERR_CORRUPT, NULL, "a listing of \"%s\" has a key that is not below it",
                            page->prefix);
    char *name = page->key + length;
    name[strcspn(name, "/")] = '\0';
    struct storage_entry entry = {.name = name,
                                  .is_dir = is_dir,
                                  .bytes = is_dir ? 0 : page->bytes,
                                  .tag = is_dir ? NULL : page->tag};
    return name[0] == '\0' ? 0 : page->visit(page->user, &entry);
}

static int read_listed(void *user, const char *path, const char *text)
{
    struct page *page = user;
    static const char root[] = "ListBucketResult/";
    if (strncmp(path, root, strlen(root)) != 0)
        return 0;
    path += strlen(root);
    if (text == NULL && strcmp(path, "Contents") == 0)
        return visit_key(page, false);
    if (text == NULL && strcmp(path, "CommonPrefixes") == 0)
        return visit_key(page, true);
    if (text == NULL)
        return 0;
    if (strcmp(path, "Contents/Key") == 0 || strcmp(path, "CommonPrefixes/Prefix") == 0) {
        snprintf(page->key, sizeof page->key, "%s", text);
        decode(page->key);
    } else if (strcmp(path, "Contents/Size") == 0) {
        page->bytes = strtoull(text, NULL, 10);
    } else if (strcmp(path, "Contents/ETag") == 0) {
        snprintf(page->tag, sizeof page->tag, "%s", text);
    } else if (strcmp(path, "IsTruncated") == 0) {
        page->is_told = true;
        page->is_truncated = strcmp(text, "true") == 0;
    } else if (strcmp(path, "NextContinuationToken") == 0) {
        snprintf(page->next, sizeof page->next, "%s", text);
    }
    return 0;
}

static int build_page_request(struct s3_call *call, struct page *page, bool is_deep)
{
    int error = 0;
    *call = (struct s3_call){.method = "GET", .answers_xml = true};
    if (page->next[0] != '\0')
        error = s3_query_add(call, "continuation-token", page->next);
    if (error == 0 && !is_deep)
        error = s3_query_add(call, "delimiter", "/");
    if (error == 0)
        error = s3_query_add(call, "encoding-type", "url");
    if (error == 0)
        error = s3_query_add(call, "list-type", "2");
    if (error == 0 && is_deep)
        error = s3_query_add(call, "max-keys", "1");
    if (error == 0)
        error = s3_query_add(call, "prefix", page->prefix);
    return error;
}

static int list_page(struct bucket *bucket, struct page *page, bool is_deep)
{
    struct s3_call call;
    ERR_TRY(build_page_request(&call, page, is_deep));
    page->next[0] = '\0';
    page->is_told = page->is_truncated = false;
    int error = s3_perform(bucket, &call);
    if (error == 0)
        error = xml_read(call.http.text, call.http.text_bytes, read_listed, page);
    s3_call_free(&call);
    if (error == 0 && (!page->is_told || (page->is_truncated && page->next[0] == '\0')))
        error = report_error(ERR_CORRUPT, NULL,
                             "a listing of \"%s\" does not say whether it is whole", page->prefix);
    return error;
}

int bucket_list_at(struct bucket *bucket, const char *prefix,
                   int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    struct page *page = calloc(1, sizeof *page);
    if (page == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a listing");
    *page = (struct page){.prefix = prefix, .visit = visit, .user = user, .is_truncated = true};
    int result = 0;
    for (uint32_t i = 0; i < PAGES_MAX && result == 0 && page->is_truncated; i++)
        result = list_page(bucket, page, false);
    if (result == 0 && page->is_truncated)
        result = report_error(ERR_BUSY, NULL, "a listing of \"%s\" has over %u pages", prefix,
                              PAGES_MAX);
    free(page);
    return result;
}

struct filter {
    bool lists_all_names;
    int (*visit)(void *user, const struct storage_entry *entry);
    void *user;
};

static int visit_valid(void *user, const struct storage_entry *entry)
{
    const struct filter *filter = user;
    struct storage_entry told = *entry;
    told.is_no_key = !storage_name_is_valid(entry->name, strlen(entry->name));
    return told.is_no_key && !filter->lists_all_names ? 0 : filter->visit(filter->user, &told);
}

/* Ends with '/', except "" for the whole bucket. */
static void directory_key(char out[S3_KEY_BYTES], const struct bucket *bucket, const char *prefix)
{
    bucket_key(out, bucket, prefix);
    size_t length = strlen(out);
    if (length > 0)
        snprintf(out + length, S3_KEY_BYTES - length, "/");
}

int bucket_list(struct storage *storage, const char *prefix,
                int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    struct bucket *bucket = bucket_of(storage);
    struct filter filter = {bucket->lists_all_names, visit, user};
    char whole[S3_KEY_BYTES];
    directory_key(whole, bucket, prefix);
    return bucket_list_at(bucket, whole, visit_valid, &filter);
}

/* ---- remove ---- */

int bucket_remove_at(struct bucket *bucket, const char *key)
{
    struct s3_call call = {.method = "DELETE", .key = key};
    int error = s3_perform(bucket, &call);
    s3_call_free(&call);
    return error;
}

static int note_one(void *user, const struct storage_entry *entry)
{
    (void)entry;
    *(bool *)user = true;
    return 0;
}

/* ERR_EXISTS: it is not empty. */
static int check_empty(struct bucket *bucket, const char *directory)
{
    bool is_full = false;
    struct page *page = calloc(1, sizeof *page);
    if (page == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a listing");
    *page = (struct page){.prefix = directory, .visit = note_one, .user = &is_full};
    int error = list_page(bucket, page, true);
    free(page);
    return error == 0 && is_full
               ? report_error(ERR_EXISTS, NULL, "the directory \"%s\" is not empty", directory)
               : error;
}

static int abort_upload(void *user, const struct s3_open_upload *found)
{
    return s3_upload_abort(user, &found->upload, found->key);
}

/* A directory exists while it has objects, or incomplete uploads, which this removes. */
static int remove_directory(struct bucket *bucket, const char *key)
{
    char directory[S3_KEY_BYTES + 1];
    snprintf(directory, sizeof directory, "%s/", key);
    int error = check_empty(bucket, directory);
    if (error == 0)
        error = s3_uploads(bucket, directory, abort_upload, bucket);
    return error == 0 ? report_error(ERR_NOT_FOUND, NULL, "there is no \"%s\"", key) : error;
}

int bucket_remove(struct storage *storage, const char *key)
{
    struct bucket *bucket = bucket_of(storage);
    struct http_call there;
    char whole[S3_KEY_BYTES];
    ERR_TRY(bucket_refuse_read_only(bucket));
    ERR_TRY(bucket_check_lock(bucket));
    bucket_key(whole, bucket, key);
    int error = s3_head(bucket, &there, whole);
    if (error == ERR_NOT_FOUND)
        return remove_directory(bucket, whole);
    return error == 0 ? bucket_remove_at(bucket, whole) : error;
}
