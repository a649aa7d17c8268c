/* bucket.h - private to storage/bucket/: an open bucket, and one request to it.
 *
 *   bucket.c     the table of the back-end, open, the probe of conditional writes
 *   names.c      small objects and names: publish, fetch, list, remove
 *   upload.c     big objects that are written: parts, and their completion
 *   requests.c   the queue of reads and writes, and the threads that execute them
 *   lease.c      leases and the store's lock
 *   request.c    one signed request, with its retries
 *   pace.c       the limit of the sending rate
 *   settings.c   settings from the environment */
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

/* How to publish a small object exclusively: the result of the probe. */
enum exclusive {
    EXCLUSIVE_UNKNOWN,  /* not probed: opened for reading */
    EXCLUSIVE_PUT,      /* PUT with If-None-Match: * */
    EXCLUSIVE_COMPLETE, /* an upload of one part, completed with If-None-Match: * */
    EXCLUSIVE_NOT       /* neither: only with a single writer */
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
    uint64_t retry_s;                /* how long a request is retried */
    const _Atomic uint64_t *ends_ns; /* as in storage_options */
    enum exclusive exclusive;
    bool is_conditional_complete;
    /* Of RACE_WRITERS that made one name at once; over 1: conditions do not work. */
    uint32_t num_winners;
    struct credentials *credentials;
    struct pace *pace;
    struct requests *requests;
    struct keeper *keeper;
    pthread_mutex_t left_mutex; /* guards the list of s3_find_upload() */
    struct {
        char directory[S3_KEY_BYTES];
        bool is_known;
        struct left_upload *list;
        uint32_t count, room;
    } left;
    pthread_mutex_t mutex; /* guards the following */
    struct http_connection **idle;
    uint32_t num_idle;
    double tokens;          /* of the retry budget */
    uint64_t slow_until_ns; /* no request begins before this time: the server is busy */
    uint64_t slow_ns;       /* the last such wait */
    int64_t clock_s;        /* the server's clock less ours */
    bool is_clock_known, is_clock_told;
    /* The store's lock, which lease.c renews: its end by our clock; 0: not taken. */
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
    const char *key;            /* the complete key in the bucket; NULL: the bucket itself */
    char query[S3_QUERY_BYTES]; /* as for sigv4.h */
    const char *headers[8];     /* "name: value", names in lower case */
    size_t num_headers;
    const struct iovec *send; /* the body */
    size_t num_send;
    const char *sha256;          /* of the body, in hexadecimal; NULL: it is computed here */
    const struct iovec *receive; /* as in http.h */
    size_t num_receive;
    uint64_t range_start; /* with `receive`: the start of the requested range */
    bool answers_xml;     /* a response with status 200 may have an error in its body */

    struct http_call http;    /* the response */
    char code[S3_CODE_BYTES]; /* of an error, as "NoSuchUpload" */
    bool is_unsettled;        /* a try without a response may have taken effect */
};
/* Performs a request, with retries, until a final response. ERR_NOT_FOUND (404), ERR_EXISTS (412),
 * ERR_DENIED, ERR_INVALID, ERR_SPACE; ERR_UNAVAILABLE, ERR_TIMEOUT: none within retry_s, or the
 * retry budget is spent; ERR_CORRUPT: the response is invalid. */
int s3_perform(struct bucket *bucket, struct s3_call *call);
void s3_call_free(struct s3_call *call);
/* Appends "&name=value", or "name=value", with the value encoded. */
int s3_query_add(struct s3_call *call, const char *name, const char *value);
/* The key in the bucket for a key of the store: below the prefix. */
void bucket_key(char out[S3_KEY_BYTES], const struct bucket *bucket, const char *key);
int bucket_refuse_read_only(const struct bucket *bucket);
/* ERR_STALE: this process had the store's lock and has lost it. */
int bucket_check_lock(const struct bucket *bucket);
int bucket_make_nonce(char out[NONCE_DIGITS + 1]);
/* Reads an object's headers. ERR_NOT_FOUND. */
int s3_head(struct bucket *bucket, struct http_call *out, const char *key);

/* ---- names.c ---- */

int bucket_publish(struct storage *storage, const char *key, const void *data, size_t bytes);
/* Publishes under a key of the bucket, with more headers; also in a bucket that was opened for
 * reading. */
int bucket_publish_at(struct bucket *bucket, const char *key, const void *data, size_t bytes,
                      const char *header);
/* The same, but replaces an existing object: for objects that only this process writes. */
int bucket_put_at(struct bucket *bucket, const char *key, const void *data, size_t bytes,
                  const char *header);
/* Call it after a try that may have taken effect, or a 412: does the object have this nonce?
 * Returns 0, ERR_EXISTS, ERR_UNSETTLED, or ERR_BUSY: the server reported the object, but it is
 * missing: try again. */
int bucket_settle(struct bucket *bucket, const char *key, const char *nonce, int error);
int bucket_fetch(struct storage *storage, const char *key, void *data, size_t size,
                 uint64_t *out_bytes);
int bucket_list(struct storage *storage, const char *prefix,
                int (*visit)(void *user, const struct storage_entry *entry), void *user);
/* Lists names directly below a prefix of the bucket, which ends with '/' or is "", also reserved
 * ones. */
int bucket_list_at(struct bucket *bucket, const char *prefix,
                   int (*visit)(void *user, const struct storage_entry *entry), void *user);
int bucket_remove(struct storage *storage, const char *key);
int bucket_remove_at(struct bucket *bucket, const char *key);

/* ---- upload.c ---- */

struct s3_upload {
    char id[S3_ID_BYTES];
};
/* `headers` as in s3_call: for the new object. */
int s3_upload_begin(struct bucket *bucket, struct s3_upload *out, const char *key,
                    const char *const *headers, size_t num_headers);
/* Sends one part, counted from 1; `sha256` as in s3_call. out_etag has HTTP_HEADER_BYTES. */
int s3_upload_part(struct bucket *bucket, const struct s3_upload *upload, const char *key,
                   uint32_t number, const struct iovec *data, const char *sha256, char *out_etag);
/* `etags`: `count` texts, `stride` bytes apart. Errors as of s3_perform(); ERR_NOT_FOUND: the
 * upload no longer exists; *out_is_unsettled as in s3_call. */
int s3_upload_complete(struct bucket *bucket, const struct s3_upload *upload, const char *key,
                       const char *etags, size_t stride, uint32_t count, bool is_exclusive,
                       bool *out_is_unsettled);
int s3_upload_abort(struct bucket *bucket, const struct s3_upload *upload, const char *key);

/* ---- race.c ---- */

#define RACE_WRITERS 4u
#define RACE_ROUNDS 2u
/* The largest number of winners in a round, in which one may win. The key must be free, and is free
 * afterwards. */
int bucket_race(struct bucket *bucket, const char *key, bool is_put, uint32_t *out_winners);
/* An incomplete upload: its key in the bucket, its id and when it began. */
struct s3_open_upload {
    const char *key;
    struct s3_upload upload;
    time_t began;
    time_t now; /* the server's time */
};
/* Visits incomplete uploads of all keys that begin with `prefix`. */
int s3_uploads(struct bucket *bucket, const char *prefix,
               int (*visit)(void *user, const struct s3_open_upload *found), void *user);
/* The newest one of that key; id "": none. Lists the uploads of its directory once, until
 * s3_forget_uploads(), which is called after this process has left an upload incomplete. */
int s3_find_upload(struct bucket *bucket, struct s3_upload *out, const char *key);
void s3_forget_uploads(struct bucket *bucket);
/* An existing part. */
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
/* Writes a piece within one part; `sha256`: of the piece, or NULL. */
int object_write(struct bucket *bucket, struct storage_object *object, uint64_t offset,
                 const struct iovec *piece, const char *sha256);
int object_read(struct bucket *bucket, struct storage_object *object, uint64_t offset,
                const struct iovec *data, size_t count);
int object_sync(struct bucket *bucket, struct storage_object *object);
uint64_t object_part_bytes(const struct storage_object *object);
/* May this request begin? If not, its error is set. */
bool object_accepts(struct storage_request *request);

/* ---- requests.c ---- */

int requests_open(struct requests **out, struct bucket *bucket);
void requests_close(struct requests *requests); /* waits for all requests; NULL is allowed */
void bucket_submit(struct storage *storage, struct storage_request *request);

/* ---- lease.c ---- */

int bucket_lock(struct storage *storage);
int bucket_hold(struct storage *storage, struct storage_hold **out, const char *key,
                const void *data, size_t bytes);
void bucket_release(struct storage *storage, struct storage_hold *hold, bool stays);
int bucket_find_holder(struct storage *storage, const char *key);
void keeper_close(struct keeper *keeper); /* NULL is allowed */

/* ---- pace.c ---- */

/* Bytes per second; 0: no limit. `ends_ns` as in storage_options. ERR_MEMORY. */
int pace_open(struct pace **out, int64_t rate, const _Atomic uint64_t *ends_ns);
void pace_close(struct pace *pace); /* NULL is allowed */
/* Waits until `bytes` more may be sent. */
void pace_take(void *pace, size_t bytes);

/* ---- settings.c ---- */

/* Fills empty texts from the environment. */
void settings_complete(struct storage_bucket *settings);

#endif
