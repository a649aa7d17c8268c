/* bucket.h - private to storage/bucket/: an open bucket, and one request to it.
 *
 *   bucket.c     the table of the back-end, open, the probe of what the server honours
 *   names.c      small objects and names: publish, fetch, list, remove
 *   upload.c     big objects that are written: parts, and their completion
 *   requests.c   the queue of reads and writes, and the threads that carry them out
 *   lease.c      what somebody holds: leases and the store's lock
 *   request.c    one signed request, tried again as long as that makes sense
 *   pace.c       how fast may be sent
 *   settings.c   what the environment says */
#ifndef HOLDFAST_STORAGE_BUCKET_BUCKET_H
#define HOLDFAST_STORAGE_BUCKET_BUCKET_H

#include "storage/bucket/credentials.h"
#include "storage/engine/engine.h"
#include "storage/http/http.h"
#include "storage/http/sigv4.h"

#include <pthread.h>

#define S3_QUERY_BYTES 4096u
#define S3_KEY_BYTES 1100u /* S3 keys have at most 1024 bytes */
#define S3_CODE_BYTES 64u
#define S3_ID_BYTES 1024u /* of an upload */
#define NONCE_DIGITS 32u

/* How a small object is made to appear once: what the probe found. */
enum exclusive {
    EXCLUSIVE_UNKNOWN,  /* not asked: opened for reading */
    EXCLUSIVE_PUT,      /* PUT with If-None-Match: * */
    EXCLUSIVE_COMPLETE, /* an upload of one part, completed with If-None-Match: * */
    EXCLUSIVE_NOT       /* neither: with a single writer alone */
};

struct pace;
struct requests;
struct keeper;
struct left_upload;

struct bucket {
    struct storage_base base;
    struct storage_bucket settings;
    char name[128], prefix[STORAGE_KEY_MAX + 1]; /* without a '/' at its ends; may be "" */
    char scheme[8], host[640], path[160];        /* path: "/BUCKET" or "" */
    bool read_only, is_quiet, lists_all_names;
    uint64_t retry_s; /* for how long a request is tried */
    enum exclusive exclusive;
    bool is_conditional_complete;
    uint32_t num_winners; /* of RACE_WRITERS that made one name at once; over 1: no condition */
    struct credentials *credentials;
    struct pace *pace;
    struct requests *requests;
    struct keeper *keeper;
    pthread_mutex_t left_mutex; /* guards what s3_find_upload() knows */
    struct {
        char directory[S3_KEY_BYTES];
        bool is_known;
        struct left_upload *list;
        uint32_t count, room;
    } left;
    pthread_mutex_t mutex; /* guards what follows */
    struct http_connection **idle;
    uint32_t num_idle;
    double tokens;          /* of the budget of retries */
    uint64_t slow_until_ns; /* no request begins before: the server is busy */
    uint64_t slow_ns;       /* the last such wait */
    int64_t clock_s;        /* the server's clock less ours */
    bool is_clock_known, is_clock_told;
    /* The store's lock, which lease.c keeps: until when, by our clock; 0: it was not taken. */
    _Atomic uint64_t lock_until_ns;
    atomic_bool is_lock_lost;
    char text[1024];
};

static inline struct bucket *bucket_of(struct storage *storage)
{
    return (struct bucket *)storage;
}

/* ---- request.c ---- */

struct s3_call {
    const char *method;
    const char *key;            /* in the bucket, whole; NULL: the bucket itself */
    char query[S3_QUERY_BYTES]; /* as sigv4.h wants it */
    const char *headers[8];     /* "name: value", names in lower case */
    size_t num_headers;
    const struct iovec *send; /* the body */
    size_t num_send;
    const char *sha256;          /* of the body, in hexadecimal; NULL: it is made here */
    const struct iovec *receive; /* as of http.h */
    size_t num_receive;
    uint64_t range_start; /* with `receive`: where the range begins that was asked for */
    bool answers_xml;     /* also with 200: an error may stand there */

    struct http_call http;    /* the answer */
    char code[S3_CODE_BYTES]; /* of an error, as "NoSuchUpload" */
    bool is_unsettled;        /* a try without an answer may have taken effect */
};
/* Performs it until there is an answer that counts. ERR_NOT_FOUND (404), ERR_EXISTS (412),
 * ERR_DENIED, ERR_INVALID, ERR_SPACE; ERR_UNAVAILABLE, ERR_TIMEOUT: not within retry_s, or the
 * budget of retries is spent; ERR_CORRUPT: the answer makes no sense. */
int s3_perform(struct bucket *bucket, struct s3_call *call);
void s3_call_free(struct s3_call *call);
/* Appends "&name=value", or "name=value", with the value encoded. */
int s3_query_add(struct s3_call *call, const char *name, const char *value);
/* The key in the bucket of a key of the store: below the prefix. */
void bucket_key(char out[S3_KEY_BYTES], const struct bucket *bucket, const char *key);
int bucket_refuse_read_only(const struct bucket *bucket);
/* ERR_STALE: the store's lock was taken, and has been lost. */
int bucket_check_lock(const struct bucket *bucket);
uint64_t bucket_now_ns(void);
int bucket_make_nonce(char out[NONCE_DIGITS + 1]);
/* What the server says of an object. ERR_NOT_FOUND. */
int s3_head(struct bucket *bucket, struct http_call *out, const char *key);

/* ---- names.c ---- */

int bucket_publish(struct storage *storage, const char *key, const void *data, size_t bytes);
/* The same under a key of the bucket, with more headers; also in a bucket that was opened for
 * reading. */
int bucket_publish_at(struct bucket *bucket, const char *key, const void *data, size_t bytes,
                      const char *header);
/* Likewise, but in place of what is there: for objects that this process alone writes. */
int bucket_put_at(struct bucket *bucket, const char *key, const void *data, size_t bytes,
                  const char *header);
/* After a try that may have taken effect, or a 412: is the object the one with this nonce? Returns
 * 0, ERR_EXISTS, ERR_UNSETTLED, or ERR_BUSY: it is told to be there and is not, try again. */
int bucket_settle(struct bucket *bucket, const char *key, const char *nonce, int error);
int bucket_fetch(struct storage *storage, const char *key, void *data, size_t size,
                 uint64_t *out_bytes);
int bucket_list(struct storage *storage, const char *prefix,
                int (*visit)(void *user, const struct storage_entry *entry), void *user);
/* Names directly below a prefix of the bucket, which ends with '/' or is "", also reserved ones. */
int bucket_list_at(struct bucket *bucket, const char *prefix,
                   int (*visit)(void *user, const struct storage_entry *entry), void *user);
int bucket_remove(struct storage *storage, const char *key);
int bucket_remove_at(struct bucket *bucket, const char *key);

/* ---- upload.c ---- */

struct s3_upload {
    char id[S3_ID_BYTES];
};
/* `headers` as of s3_call: what the object will be told to carry. */
int s3_upload_begin(struct bucket *bucket, struct s3_upload *out, const char *key,
                    const char *const *headers, size_t num_headers);
/* One part, from 1; `sha256` as of s3_call. out_etag has HTTP_HEADER_BYTES. */
int s3_upload_part(struct bucket *bucket, const struct s3_upload *upload, const char *key,
                   uint32_t number, const struct iovec *data, const char *sha256, char *out_etag);
/* `etags`: so many texts, `stride` bytes apart. Errors as of s3_perform(); ERR_NOT_FOUND: there is
 * no such upload any more; *out_is_unsettled as of s3_call. */
int s3_upload_complete(struct bucket *bucket, const struct s3_upload *upload, const char *key,
                       const char *etags, size_t stride, uint32_t count, bool is_exclusive,
                       bool *out_is_unsettled);
int s3_upload_abort(struct bucket *bucket, const struct s3_upload *upload, const char *key);

/* ---- race.c ---- */

#define RACE_WRITERS 4u
#define RACE_ROUNDS 2u
/* The most winners of a round, in which one may win; the key must be free, and is free again. */
int bucket_race(struct bucket *bucket, const char *key, bool is_put, uint32_t *out_winners);
/* Uploads that nobody completed: each has the key in the bucket, its id and when it began. */
struct s3_open_upload {
    const char *key;
    struct s3_upload upload;
    time_t began;
    time_t now; /* of the server */
};
/* Of all keys that begin with `prefix`. */
int s3_uploads(struct bucket *bucket, const char *prefix,
               int (*visit)(void *user, const struct s3_open_upload *found), void *user);
/* The newest of that key; id "": there is none. The uploads of its directory are listed once, until
 * s3_forget_uploads(): after one was begun here and left. */
int s3_find_upload(struct bucket *bucket, struct s3_upload *out, const char *key);
void s3_forget_uploads(struct bucket *bucket);
/* The parts that are there. */
struct s3_open_part {
    uint32_t number;
    uint64_t bytes;
    time_t changed;
    char etag[HTTP_HEADER_BYTES];
};
int s3_parts(struct bucket *bucket, const struct s3_upload *upload, const char *key,
             int (*visit)(void *user, const struct s3_open_part *part), void *user);
int bucket_sweep(struct storage *storage, const char *prefix, struct storage_sweep *sweep);

/* ---- object.c ---- */

int bucket_object_create(struct storage *storage, struct storage_object **out, const char *key,
                         uint64_t bytes);
int bucket_object_open(struct storage *storage, struct storage_object **out, const char *key,
                       uint64_t *out_bytes);
void bucket_object_close(struct storage *storage, struct storage_object *object);
/* A piece of a WRITE within one part; `sha256`: of the piece, or NULL. */
int object_write(struct bucket *bucket, struct storage_object *object, uint64_t offset,
                 const struct iovec *piece, const char *sha256);
int object_read(struct bucket *bucket, struct storage_object *object, uint64_t offset,
                const struct iovec *data, size_t count);
int object_sync(struct bucket *bucket, struct storage_object *object);
uint64_t object_part_bytes(const struct storage_object *object);
/* Is this request refused before it begins? Then its error is set. */
bool object_accepts(struct storage_request *request);

/* ---- requests.c ---- */

int requests_open(struct requests **out, struct bucket *bucket);
void requests_close(struct requests *requests); /* waits for all; NULL is allowed */
void bucket_submit(struct storage *storage, struct storage_request *request);

/* ---- lease.c ---- */

int bucket_lock(struct storage *storage);
int bucket_hold(struct storage *storage, struct storage_hold **out, const char *key,
                const void *data, size_t bytes);
void bucket_release(struct storage *storage, struct storage_hold *hold, bool stays);
int bucket_find_holder(struct storage *storage, const char *key);
void keeper_close(struct keeper *keeper); /* NULL is allowed */

/* ---- pace.c ---- */

/* Bytes per second; 0: no limit. ERR_MEMORY. */
int pace_open(struct pace **out, int64_t rate);
void pace_close(struct pace *pace); /* NULL is allowed */
/* Waits until so many bytes more may be sent. */
void pace_take(void *pace, size_t bytes);

/* ---- settings.c ---- */

/* Fills in what is "" from the environment. */
void settings_complete(struct storage_bucket *settings);

#endif
