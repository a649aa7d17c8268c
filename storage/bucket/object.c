/* object.c - an open big object of a bucket: its parts while it is written, ranges while it is
 * read.
 *
 *   create ──► pieces of WRITEs ──► a part is whole: sent ──► SYNC: completed, checked
 *                  │ a whole part: straight from the caller's memory
 *                  └ less: copied into the part's buffer, freed when the part has been sent
 *
 * An object of one part is one PUT, and exists when its last byte was written; others appear with
 * the SYNC. An interrupted upload of the same key is continued: parts whose ETag is the MD5 of ours
 * are not sent again (with other ETags all are sent). A lost response is settled by the object's
 * identity. It is made of the key and the size, so it is the same in the next process.
 *
 * Limits: 10,000 parts (S3's): the part's size grows with the object beyond that. STAGED_MAX parts
 * with a buffer; a caller whose writes need more of them gets ERR_BUSY. */
#include "storage/bucket/bucket.h"

#include "storage/http/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARTS_MAX 10000u
#define STAGED_MAX 64u
#define ETAG_BYTES HTTP_HEADER_BYTES

struct part {
    uint64_t filled;          /* written bytes */
    unsigned char *buffer;    /* for an incomplete part; NULL: none */
    char there[HASH_MD5_HEX]; /* ETag of the part that an earlier process sent; "": none */
    bool is_sent;
};

struct bucket_object {
    struct storage_base base;
    struct bucket *bucket;
    char key[S3_KEY_BYTES];
    uint64_t bytes, part_bytes;
    bool is_written; /* it was created here */
    uint32_t num_parts;
    char nonce[NONCE_DIGITS + 1];
    pthread_mutex_t mutex; /* guards the following */
    uint32_t num_staged, num_sent;
    bool is_complete;
    struct s3_upload upload; /* id "": none, or not begun */
    struct part *parts;
    char *etags; /* num_parts * ETAG_BYTES */
};

static struct bucket_object *object_of(struct storage_object *object)
{
    return (struct bucket_object *)object;
}

uint64_t object_part_bytes(const struct storage_object *object)
{
    return ((const struct bucket_object *)object)->part_bytes;
}

/* ---- open and close ---- */

static int new_object(struct bucket_object **out, struct bucket *bucket, const char *key)
{
    struct bucket_object *object = calloc(1, sizeof *object);
    if (object == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate an open object");
    object->base.ops = bucket->base.ops;
    object->bucket = bucket;
    object->part_bytes = (uint64_t)bucket->settings.part_bytes;
    bucket_key(object->key, bucket, key);
    pthread_mutex_init(&object->mutex, NULL);
    *out = object;
    return 0;
}

void bucket_object_close(struct storage *storage, struct storage_object *base)
{
    struct bucket_object *object = object_of(base);
    (void)storage;
    if (object->upload.id[0] != '\0' && !object->is_complete)
        s3_forget_uploads(object->bucket);
    for (uint32_t i = 0; i < object->num_parts && object->parts != NULL; i++)
        free(object->parts[i].buffer);
    free(object->parts);
    free(object->etags);
    pthread_mutex_destroy(&object->mutex);
    free(object);
}

int bucket_object_open(struct storage *storage, struct storage_object **out, const char *key,
                       uint64_t *out_bytes)
{
    struct bucket_object *object = NULL;
    struct http_call there;
    ERR_TRY(new_object(&object, bucket_of(storage), key));
    int error = s3_head(object->bucket, &there, object->key);
    if (error != 0) {
        bucket_object_close(storage, (struct storage_object *)object);
        return error;
    }
    object->bytes = *out_bytes = there.length;
    *out = (struct storage_object *)object;
    return 0;
}

/* Equal for the same key and size: the first digits of their hash. */
static int make_identity(struct bucket_object *object)
{
    unsigned char sum[HASH_SHA256_BYTES];
    char text[S3_KEY_BYTES + 64], hex[HASH_SHA256_HEX];
    int length = snprintf(text, sizeof text, "%s %" PRIu64 " %" PRIu64, object->key, object->bytes,
                          object->part_bytes);
    ERR_TRY(hash_sha256(sum, &(struct iovec){text, (size_t)length}, 1));
    hash_hex(hex, sum, sizeof sum);
    snprintf(object->nonce, sizeof object->nonce, "%.*s", (int)NONCE_DIGITS, hex);
    return 0;
}

static int plan_parts(struct bucket_object *object)
{
    uint64_t least = (object->bytes + PARTS_MAX - 1) / PARTS_MAX;
    least = (least + STORAGE_ALIGN - 1) / STORAGE_ALIGN * STORAGE_ALIGN;
    object->part_bytes = object->part_bytes > least ? object->part_bytes : least;
    object->num_parts = (uint32_t)((object->bytes + object->part_bytes - 1) / object->part_bytes);
    object->parts = calloc(object->num_parts + 1u, sizeof *object->parts);
    object->etags = calloc(object->num_parts + 1u, ETAG_BYTES);
    return object->parts != NULL && object->etags != NULL
               ? make_identity(object)
               : report_error(ERR_MEMORY, NULL, "no memory for the parts of an object");
}

static uint64_t size_of_part(const struct bucket_object *object, uint32_t index)
{
    uint64_t rest = object->bytes - index * object->part_bytes;
    return rest < object->part_bytes ? rest : object->part_bytes;
}

/* ---- an interrupted upload ---- */

static int note_part(void *user, const struct s3_open_part *found)
{
    struct bucket_object *object = user;
    uint32_t index = found->number - 1;
    if (found->number > 0 && index < object->num_parts &&
        found->bytes == size_of_part(object, index) && strlen(found->etag) == HASH_MD5_HEX - 1)
        memcpy(object->parts[index].there, found->etag, HASH_MD5_HEX);
    return 0;
}

/* Parts that it does not find are sent again. */
static void find_upload(struct bucket_object *object)
{
    int error = s3_find_upload(object->bucket, &object->upload, object->key);
    if (error == 0 && object->upload.id[0] != '\0')
        error = s3_parts(object->bucket, &object->upload, object->key, note_part, object);
    if (error != 0) {
        log_debug("storage", "no unfinished upload of %s is continued: %s", object->key,
                  report_line());
        object->upload.id[0] = '\0';
    }
}

static int begin_upload(struct bucket_object *object)
{
    char line[96];
    const char *headers[] = {line};
    if (object->upload.id[0] != '\0')
        return 0;
    snprintf(line, sizeof line, "x-amz-meta-holdfast-nonce: %s", object->nonce);
    return s3_upload_begin(object->bucket, &object->upload, object->key, headers, 1);
}

int bucket_object_create(struct storage *storage, struct storage_object **out, const char *key,
                         uint64_t bytes)
{
    struct bucket *bucket = bucket_of(storage);
    struct bucket_object *object = NULL;
    struct http_call there;
    ERR_TRY(bucket_refuse_read_only(bucket));
    ERR_TRY(new_object(&object, bucket, key));
    object->is_written = true;
    object->bytes = bytes;
    int error = s3_head(bucket, &there, object->key);
    if (error == 0)
        error = report_error(ERR_EXISTS, NULL, "\"%s\" already exists", key);
    else if (error == ERR_NOT_FOUND)
        error = plan_parts(object);
    if (error == 0 && object->num_parts > 1) {
        find_upload(object);
        error = begin_upload(object);
    }
    if (error != 0)
        bucket_object_close(storage, (struct storage_object *)object);
    else
        *out = (struct storage_object *)object;
    return error;
}

/* ---- parts ---- */

/* Did an earlier process send this part, with these bytes? */
static bool is_there(const struct part *part, const struct iovec *data)
{
    unsigned char md5[HASH_MD5_BYTES];
    char hex[HASH_MD5_HEX];
    if (part->there[0] == '\0' || hash_md5(md5, data, 1) != 0)
        return false;
    hash_hex(hex, md5, sizeof md5);
    return strcmp(hex, part->there) == 0;
}

static int put_whole(struct bucket_object *object, const struct iovec *data, const char *sha256)
{
    char nonce[96];
    struct bucket *bucket = object->bucket;
    snprintf(nonce, sizeof nonce, "x-amz-meta-holdfast-nonce: %s", object->nonce);
    struct s3_call call = {.method = "PUT",
                           .key = object->key,
                           .headers = {nonce},
                           .num_headers = 1,
                           .send = data,
                           .num_send = 1,
                           .sha256 = sha256};
    if (bucket->exclusive == EXCLUSIVE_PUT)
        call.headers[call.num_headers++] = "if-none-match: *";
    int error = s3_perform(bucket, &call);
    s3_call_free(&call);
    if (error == ERR_EXISTS || (error != 0 && call.is_unsettled))
        error = bucket_settle(bucket, object->key, object->nonce, error);
    return error;
}

static int send_part(struct bucket_object *object, uint32_t index, const struct iovec *data,
                     const char *sha256)
{
    struct part *part = &object->parts[index];
    char *etag = object->etags + index * ETAG_BYTES;
    int error = 0;
    if (object->num_parts == 1)
        error = put_whole(object, data, sha256);
    else if (is_there(part, data))
        snprintf(etag, ETAG_BYTES, "%s", part->there);
    else
        error = s3_upload_part(object->bucket, &object->upload, object->key, index + 1, data,
                               sha256, etag);
    pthread_mutex_lock(&object->mutex);
    part->is_sent = error == 0;
    object->num_sent += error == 0;
    pthread_mutex_unlock(&object->mutex);
    return error;
}

/* Allocates the buffer of a part that comes in pieces. Under the mutex. */
static int allocate_buffer(struct bucket_object *object, struct part *part, uint64_t size)
{
    if (part->buffer != NULL)
        return 0;
    if (object->num_staged == STAGED_MAX)
        return report_error(ERR_BUSY, "write it from its beginning to its end",
                            "\"%s\" is written in pieces of over %u parts", object->key,
                            STAGED_MAX);
    part->buffer =
        aligned_alloc(STORAGE_ALIGN, (size + STORAGE_ALIGN - 1) / STORAGE_ALIGN * STORAGE_ALIGN);
    if (part->buffer == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a part of an object");
    object->num_staged++;
    return 0;
}

/* Frees the buffer. After a failure the whole part may be written again. */
static void free_buffer(struct bucket_object *object, struct part *part, bool has_failed)
{
    pthread_mutex_lock(&object->mutex);
    part->filled = has_failed ? 0 : part->filled;
    object->num_staged -= part->buffer != NULL;
    free(part->buffer);
    part->buffer = NULL;
    pthread_mutex_unlock(&object->mutex);
}

/* *out_is_whole: this piece completed its part, which the caller must send. */
static int add_piece(struct bucket_object *object, uint32_t index, uint64_t at, const void *data,
                     size_t bytes, bool *out_is_whole)
{
    struct part *part = &object->parts[index];
    uint64_t size = size_of_part(object, index);
    pthread_mutex_lock(&object->mutex);
    int error = part->filled + bytes > size
                    ? report_error(ERR_INVALID, "write each byte once",
                                   "a part of \"%s\" is written twice", object->key)
                    : 0;
    if (error == 0 && bytes < size)
        error = allocate_buffer(object, part, size);
    if (error == 0 &&
        bytes < size) /* pieces do not overlap, so they could also be copied in parallel */
        memcpy(part->buffer + at, data, bytes);
    part->filled += error == 0 ? bytes : 0;
    *out_is_whole = error == 0 && part->filled == size;
    pthread_mutex_unlock(&object->mutex);
    return error;
}

int object_write(struct bucket *bucket, struct storage_object *base, uint64_t offset,
                 const struct iovec *piece, const char *sha256)
{
    struct bucket_object *object = object_of(base);
    uint32_t index = (uint32_t)(offset / object->part_bytes);
    struct part *part = &object->parts[index];
    uint64_t size = size_of_part(object, index);
    bool is_whole = false;
    ERR_TRY(bucket_check_lock(bucket));
    ERR_TRY(add_piece(object, index, offset % object->part_bytes, piece->iov_base, piece->iov_len,
                      &is_whole));
    if (!is_whole)
        return 0;
    bool is_piece = piece->iov_len == size;
    struct iovec body = {is_piece ? piece->iov_base : (void *)part->buffer, size};
    int error = send_part(object, index, &body, is_piece ? sha256 : NULL);
    free_buffer(object, part, error != 0);
    return error;
}

/* ---- the end ---- */

/* The expected ETag: "md5 of the parts' md5s"-N, as most servers have for an upload; "": some
 * part's ETag is not an MD5. */
static void expect_etag(char out[ETAG_BYTES], const struct bucket_object *object)
{
    unsigned char sum[HASH_MD5_BYTES], *all = malloc((size_t)object->num_parts * HASH_MD5_BYTES);
    char hex[HASH_MD5_HEX];
    bool is_known = all != NULL;
    out[0] = '\0';
    for (uint32_t i = 0; i < object->num_parts && is_known; i++) {
        const char *etag = object->etags + i * ETAG_BYTES;
        is_known = strlen(etag) == HASH_MD5_HEX - 1;
        for (uint32_t j = 0; j < HASH_MD5_BYTES && is_known; j++)
            is_known = sscanf(etag + 2 * j, "%2hhx", &all[i * HASH_MD5_BYTES + j]) == 1;
    }
    struct iovec data = {all, (size_t)object->num_parts * HASH_MD5_BYTES};
    if (is_known && hash_md5(sum, &data, 1) == 0) {
        hash_hex(hex, sum, sizeof sum);
        snprintf(out, ETAG_BYTES, "%s-%u", hex, object->num_parts);
    }
    free(all);
}

/* Call it after a completion with any result: is the object ours, and whole? `error` is that
 * result. */
static int check_completed(struct bucket_object *object, int error, bool is_unsettled)
{
    char wanted[ETAG_BYTES];
    struct http_call there;
    struct report_text text;
    report_keep(&text);
    int looked = s3_head(object->bucket, &there, object->key);
    if (looked != 0 && error == 0)
        return looked;
    if (looked != 0)
        return is_unsettled ? report_restore(&text, ERR_UNSETTLED) : report_restore(&text, error);
    expect_etag(wanted, object);
    bool is_same =
        wanted[0] == '\0' || strchr(there.etag, '-') == NULL || strcmp(there.etag, wanted) == 0;
    if (there.length == object->bytes && strcmp(there.nonce, object->nonce) == 0 && is_same)
        return 0;
    return report_error(error != 0 ? ERR_EXISTS : ERR_CORRUPT, NULL,
                        "\"%s\" has %llu bytes and is not what was uploaded", object->key,
                        (unsigned long long)there.length);
}

int object_sync(struct bucket *bucket, struct storage_object *base)
{
    struct bucket_object *object = object_of(base);
    bool is_unsettled = false;
    pthread_mutex_lock(&object->mutex);
    bool is_due = object->is_written && !object->is_complete &&
                  object->num_sent == object->num_parts && object->num_parts > 1;
    pthread_mutex_unlock(&object->mutex);
    if (!is_due)
        return 0;
    ERR_TRY(bucket_check_lock(bucket));
    int error = s3_upload_complete(bucket, &object->upload, object->key, object->etags, ETAG_BYTES,
                                   object->num_parts, false, &is_unsettled);
    /* A previous try may have completed an upload that no longer exists. */
    error = check_completed(object, error, is_unsettled);
    object->is_complete = error == 0;
    return error;
}

/* ---- reading ---- */

int object_read(struct bucket *bucket, struct storage_object *base, uint64_t offset,
                const struct iovec *data, size_t count)
{
    struct bucket_object *object = object_of(base);
    char range[64];
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += data[i].iov_len;
    snprintf(range, sizeof range, "range: bytes=%" PRIu64 "-%" PRIu64, offset, offset + bytes - 1);
    struct s3_call call = {.method = "GET",
                           .key = object->key,
                           .headers = {range},
                           .num_headers = 1,
                           .receive = data,
                           .num_receive = count,
                           .range_start = offset};
    int error = s3_perform(bucket, &call);
    if (error == 0 && call.http.status != 206 && (offset > 0 || bytes != object->bytes))
        error = report_error(ERR_CORRUPT, NULL, "the server answered a range with %d",
                             call.http.status);
    s3_call_free(&call);
    return error;
}

bool object_accepts(struct storage_request *request)
{
    struct bucket_object *object = object_of(request->object);
    bool is_inside = request->offset + request->bytes <= object->bytes;
    if (request->op == STORAGE_WRITE && !object->is_written)
        engine_set_errno(request, EBADF);
    else if (request->op == STORAGE_WRITE && !is_inside)
        request->error = ERR_INVALID, request->error_number = EFBIG;
    else if (request->op == STORAGE_READ && !is_inside)
        request->error = ERR_CORRUPT;
    return request->error == 0;
}
