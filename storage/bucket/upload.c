/* upload.c - multipart uploads: begin, parts, complete, abort, and incomplete ones.
 *
 * An upload is invisible until it is completed, and uses space until it is completed or aborted.
 * After a crash it is found by list, by key or by age. Parts may be sent in any order and
 * repeatedly; the last one of a number counts. A completion may return 200 with an error in its
 * body, and 200 with an empty ETag (Ceph). */
#include "storage/bucket/bucket.h"

#include "proto/base/array.h"
#include "storage/http/xml.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAGES_MAX 100000u
#define LEFT_MAX 1024u /* of one directory that are continued */
#define PART_TEXT_BYTES (HTTP_HEADER_BYTES + 96u)

struct id {
    const char *path;
    char *out;
    size_t size;
};

static int read_id(void *user, const char *path, const char *text)
{
    const struct id *id = user;
    if (text != NULL && strcmp(path, id->path) == 0)
        snprintf(id->out, id->size, "%s", text);
    return 0;
}

int s3_upload_begin(struct bucket *bucket, struct s3_upload *out, const char *key,
                    const char *const *headers, size_t num_headers)
{
    struct s3_call call = {.method = "POST", .key = key, .answers_xml = true};
    struct id id = {"InitiateMultipartUploadResult/UploadId", out->id, sizeof out->id};
    out->id[0] = '\0';
    for (size_t i = 0; i < num_headers; i++)
        call.headers[call.num_headers++] = headers[i];
    int error = s3_query_add(&call, "uploads", "");
    if (error == 0)
        error = s3_perform(bucket, &call);
    if (error == 0)
        error = xml_read(call.http.text, call.http.text_bytes, read_id, &id);
    if (error == 0 && out->id[0] == '\0')
        error = report_error(ERR_CORRUPT, NULL, "the server began an upload without an id");
    s3_call_free(&call);
    return error;
}

int s3_upload_part(struct bucket *bucket, const struct s3_upload *upload, const char *key,
                   uint32_t number, const struct iovec *data, const char *sha256, char *out_etag)
{
    struct s3_call call = {
        .method = "PUT", .key = key, .send = data, .num_send = 1, .sha256 = sha256};
    char digits[16];
    snprintf(digits, sizeof digits, "%u", number);
    int error = s3_query_add(&call, "partNumber", digits);
    if (error == 0)
        error = s3_query_add(&call, "uploadId", upload->id);
    if (error == 0)
        error = s3_perform(bucket, &call);
    snprintf(out_etag, HTTP_HEADER_BYTES, "%s", call.http.etag);
    if (error == 0 && out_etag[0] == '\0')
        error = report_error(ERR_CORRUPT, NULL, "the server accepted a part without an ETag");
    s3_call_free(&call);
    return error;
}

/* The caller frees the text. */
static int write_completion(char **out, const char *etags, size_t stride, uint32_t count)
{
    static const char begin[] = "<CompleteMultipartUpload>", end[] = "</CompleteMultipartUpload>";
    size_t size = sizeof begin + sizeof end + (size_t)count * PART_TEXT_BYTES, at;
    char *text = *out = malloc(size);
    if (text == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a list of parts");
    at = (size_t)snprintf(text, size, "%s", begin);
    for (uint32_t i = 0; i < count; i++) {
        const char *etag = etags + i * stride;
        if (strpbrk(etag, "<>&") != NULL)
            return report_error(ERR_CORRUPT, NULL, "the server sent an invalid ETag of a part");
        at += (size_t)snprintf(text + at, size - at,
                               "<Part><PartNumber>%u</PartNumber><ETag>\"%s\"</ETag></Part>", i + 1,
                               etag);
    }
    snprintf(text + at, size - at, "%s", end);
    return 0;
}

int s3_upload_complete(struct bucket *bucket, const struct s3_upload *upload, const char *key,
                       const char *etags, size_t stride, uint32_t count, bool is_exclusive,
                       bool *out_is_unsettled)
{
    char *text = NULL;
    struct iovec body = {0};
    struct s3_call call = {
        .method = "POST", .key = key, .send = &body, .num_send = 1, .answers_xml = true};
    int error = write_completion(&text, etags, stride, count);
    if (error == 0)
        error = s3_query_add(&call, "uploadId", upload->id);
    if (is_exclusive)
        call.headers[call.num_headers++] = "if-none-match: *";
    if (error == 0) {
        body = (struct iovec){text, strlen(text)};
        error = s3_perform(bucket, &call);
    }
    *out_is_unsettled = call.is_unsettled;
    s3_call_free(&call);
    free(text);
    return error;
}

int s3_upload_abort(struct bucket *bucket, const struct s3_upload *upload, const char *key)
{
    struct s3_call call = {.method = "DELETE", .key = key};
    int error = s3_query_add(&call, "uploadId", upload->id);
    if (error == 0)
        error = s3_perform(bucket, &call);
    s3_call_free(&call);
    return error == ERR_NOT_FOUND ? 0 : error;
}

/* ---- incomplete uploads ---- */

/* "2026-11-24T20:00:00.000Z"; 0: invalid. */
static time_t read_time(const char *text)
{
    struct tm utc = {0};
    return strptime(text, "%Y-%m-%dT%H:%M:%S", &utc) != NULL ? timegm(&utc) : 0;
}

struct uploads {
    int (*visit)(void *user, const struct s3_open_upload *found);
    void *user;
    char key[S3_KEY_BYTES], next_key[S3_KEY_BYTES], next_id[S3_ID_BYTES];
    struct s3_open_upload found;
    bool is_told, is_truncated;
};

static int read_upload(void *user, const char *path, const char *text)
{
    struct uploads *uploads = user;
    static const char root[] = "ListMultipartUploadsResult/";
    if (strncmp(path, root, strlen(root)) != 0)
        return 0;
    path += strlen(root);
    if (text == NULL && strcmp(path, "Upload") == 0)
        return uploads->found.upload.id[0] != '\0' ? uploads->visit(uploads->user, &uploads->found)
                                                   : 0;
    if (text == NULL)
        return 0;
    if (strcmp(path, "Upload/Key") == 0)
        snprintf(uploads->key, sizeof uploads->key, "%s", text);
    else if (strcmp(path, "Upload/UploadId") == 0)
        snprintf(uploads->found.upload.id, S3_ID_BYTES, "%s", text);
    else if (strcmp(path, "Upload/Initiated") == 0)
        uploads->found.began = read_time(text);
    else if (strcmp(path, "NextKeyMarker") == 0)
        snprintf(uploads->next_key, sizeof uploads->next_key, "%s", text);
    else if (strcmp(path, "NextUploadIdMarker") == 0)
        snprintf(uploads->next_id, sizeof uploads->next_id, "%s", text);
    else if (strcmp(path, "IsTruncated") == 0) {
        uploads->is_told = true;
        uploads->is_truncated = strcmp(text, "true") == 0;
    }
    return 0;
}

static int build_uploads_request(struct s3_call *call, const struct uploads *uploads,
                                 const char *prefix)
{
    int error = 0;
    *call = (struct s3_call){.method = "GET", .answers_xml = true};
    if (uploads->next_key[0] != '\0')
        error = s3_query_add(call, "key-marker", uploads->next_key);
    if (error == 0)
        error = s3_query_add(call, "prefix", prefix);
    if (error == 0 && uploads->next_key[0] != '\0' && uploads->next_id[0] != '\0')
        error = s3_query_add(call, "upload-id-marker", uploads->next_id);
    return error == 0 ? s3_query_add(call, "uploads", "") : error;
}

static int list_uploads(struct bucket *bucket, struct uploads *uploads, const char *prefix)
{
    struct s3_call call;
    int error = build_uploads_request(&call, uploads, prefix);
    uploads->is_told = uploads->is_truncated = false;
    uploads->next_key[0] = uploads->next_id[0] = '\0';
    if (error == 0)
        error = s3_perform(bucket, &call);
    uploads->found.now = call.http.date;
    if (error == 0)
        error = xml_read(call.http.text, call.http.text_bytes, read_upload, uploads);
    s3_call_free(&call);
    if (error == 0 && (!uploads->is_told || (uploads->is_truncated && !uploads->next_key[0])))
        error = report_error(ERR_CORRUPT, NULL,
                             "a list of uploads does not say whether it is "
                             "whole");
    return error;
}

int s3_uploads(struct bucket *bucket, const char *prefix,
               int (*visit)(void *user, const struct s3_open_upload *found), void *user)
{
    struct uploads *uploads = calloc(1, sizeof *uploads);
    if (uploads == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a list of uploads");
    *uploads = (struct uploads){.visit = visit, .user = user, .is_truncated = true};
    uploads->found.key = uploads->key;
    int result = 0;
    for (uint32_t i = 0; i < PAGES_MAX && result == 0 && uploads->is_truncated; i++)
        result = list_uploads(bucket, uploads, prefix);
    free(uploads);
    return result;
}

/* ---- those of one directory ---- */

struct left_upload {
    char key[S3_KEY_BYTES];
    struct s3_upload upload;
};

/* Those beyond LEFT_MAX are sent again from the beginning. */
static int add_left(void *user, const struct s3_open_upload *found)
{
    struct bucket *bucket = user;
    if (bucket->left.count == LEFT_MAX)
        return 0;
    ERR_TRY(array_reserve(&bucket->left.list, &bucket->left.room, bucket->left.count,
                          sizeof *bucket->left.list));
    struct left_upload *left = &bucket->left.list[bucket->left.count++];
    snprintf(left->key, sizeof left->key, "%s", found->key);
    left->upload = found->upload;
    return 0;
}

/* Runs under the mutex: no other thread lists the same meanwhile. */
static int list_left(struct bucket *bucket, const char *directory)
{
    if (bucket->left.is_known && strcmp(bucket->left.directory, directory) == 0)
        return 0;
    bucket->left.count = 0;
    snprintf(bucket->left.directory, sizeof bucket->left.directory, "%s", directory);
    int error = s3_uploads(bucket, directory, add_left, bucket);
    bucket->left.is_known = error == 0;
    return error;
}

int s3_find_upload(struct bucket *bucket, struct s3_upload *out, const char *key)
{
    char directory[S3_KEY_BYTES];
    const char *end = strrchr(key, '/');
    snprintf(directory, sizeof directory, "%.*s", end != NULL ? (int)(end + 1 - key) : 0, key);
    out->id[0] = '\0';
    pthread_mutex_lock(&bucket->left_mutex);
    int error = list_left(bucket, directory);
    for (uint32_t i = 0; i < bucket->left.count && error == 0; i++)
        if (strcmp(bucket->left.list[i].key, key) == 0)
            *out = bucket->left.list[i].upload;
    pthread_mutex_unlock(&bucket->left_mutex);
    return error;
}

void s3_forget_uploads(struct bucket *bucket)
{
    pthread_mutex_lock(&bucket->left_mutex);
    bucket->left.is_known = false;
    pthread_mutex_unlock(&bucket->left_mutex);
}

struct parts {
    int (*visit)(void *user, const struct s3_open_part *part);
    void *user;
    struct s3_open_part found;
    char next[32];
    bool is_told, is_truncated;
};

static int read_part(void *user, const char *path, const char *text)
{
    struct parts *parts = user;
    static const char root[] = "ListPartsResult/";
    if (strncmp(path, root, strlen(root)) != 0)
        return 0;
    path += strlen(root);
    if (text == NULL && strcmp(path, "Part") == 0)
        return parts->visit(parts->user, &parts->found);
    if (text == NULL)
        return 0;
    if (strcmp(path, "Part/PartNumber") == 0) {
        parts->found.number = (uint32_t)strtoul(text, NULL, 10);
    } else if (strcmp(path, "Part/Size") == 0) {
        parts->found.bytes = strtoull(text, NULL, 10);
    } else if (strcmp(path, "Part/LastModified") == 0) {
        parts->found.changed = read_time(text);
    } else if (strcmp(path, "Part/ETag") == 0) {
        size_t length = strlen(text);
        bool is_quoted = length >= 2 && text[0] == '"' && text[length - 1] == '"';
        snprintf(parts->found.etag, sizeof parts->found.etag, "%.*s",
                 (int)(is_quoted ? length - 2 : length), text + is_quoted);
    } else if (strcmp(path, "NextPartNumberMarker") == 0) {
        snprintf(parts->next, sizeof parts->next, "%s", text);
    } else if (strcmp(path, "IsTruncated") == 0) {
        parts->is_told = true;
        parts->is_truncated = strcmp(text, "true") == 0;
    }
    return 0;
}

static int list_parts(struct bucket *bucket, struct parts *parts, const struct s3_upload *upload,
                      const char *key)
{
    struct s3_call call = {.method = "GET", .key = key, .answers_xml = true};
    int error = parts->next[0] ? s3_query_add(&call, "part-number-marker", parts->next) : 0;
    if (error == 0)
        error = s3_query_add(&call, "uploadId", upload->id);
    parts->is_told = parts->is_truncated = false;
    parts->next[0] = '\0';
    if (error == 0)
        error = s3_perform(bucket, &call);
    if (error == 0)
        error = xml_read(call.http.text, call.http.text_bytes, read_part, parts);
    s3_call_free(&call);
    if (error == 0 && (!parts->is_told || (parts->is_truncated && !parts->next[0])))
        error = report_error(ERR_CORRUPT, NULL, "a list of parts does not say whether it is whole");
    return error;
}

int s3_parts(struct bucket *bucket, const struct s3_upload *upload, const char *key,
             int (*visit)(void *user, const struct s3_open_part *part), void *user)
{
    struct parts parts = {.visit = visit, .user = user, .is_truncated = true};
    int result = 0;
    for (uint32_t i = 0; i < PAGES_MAX && result == 0 && parts.is_truncated; i++)
        result = list_parts(bucket, &parts, upload, key);
    return result;
}

/* ---- sweep ---- */

struct sweeping {
    struct bucket *bucket;
    const char *directory; /* ends with '/', or "" */
    struct storage_sweep *sweep;
};

struct measured {
    uint64_t bytes;
    time_t changed;
};

static int measure_part(void *user, const struct s3_open_part *part)
{
    struct measured *measured = user;
    measured->bytes += part->bytes;
    measured->changed = part->changed > measured->changed ? part->changed : measured->changed;
    return 0;
}

/* An upload that still gets parts is in use. */
static int sweep_upload(void *user, const struct s3_open_upload *found)
{
    struct sweeping *sweeping = user;
    struct storage_sweep *sweep = sweeping->sweep;
    struct measured measured = {.changed = found->began};
    const char *name = found->key + strlen(sweeping->directory);
    uint64_t idle = (uint64_t)sweeping->bucket->settings.upload_idle_s;
    uint64_t seconds = sweep->seconds > idle ? sweep->seconds : sweep->seconds > 0 ? idle : 0;
    if (strncmp(found->key, sweeping->directory, strlen(sweeping->directory)) != 0 ||
        strchr(name, '/') != NULL)
        return 0;
    int error = s3_parts(sweeping->bucket, &found->upload, found->key, measure_part, &measured);
    if (error != 0)
        return error == ERR_NOT_FOUND ? 0 : error;
    if (seconds > 0 && found->now - measured.changed < (time_t)seconds)
        return 0;
    sweep->files++;
    sweep->bytes += measured.bytes;
    return sweep->removes ? s3_upload_abort(sweeping->bucket, &found->upload, found->key) : 0;
}

int bucket_sweep(struct storage *storage, const char *prefix, struct storage_sweep *sweep)
{
    struct bucket *bucket = bucket_of(storage);
    char directory[S3_KEY_BYTES];
    struct sweeping sweeping = {bucket, directory, sweep};
    if (sweep->removes)
        ERR_TRY(bucket_refuse_read_only(bucket));
    bucket_key(directory, bucket, prefix);
    size_t length = strlen(directory);
    if (length > 0)
        snprintf(directory + length, sizeof directory - length, "/");
    return s3_uploads(bucket, directory, sweep_upload, &sweeping);
}
