/* http.h - one HTTP request and its response, without their meaning. Only http.c uses libcurl.
 *
 * One thread uses a connection at a time; it keeps its socket open for the next call. Redirects are
 * not followed. A transfer without a byte for `stall_s`, a response that ends early, and one that
 * exceeds its room are errors, never less data. Errors: ERR_UNAVAILABLE (no response; `was_sent`
 * tells whether the server may have acted), ERR_CORRUPT (a response of a wrong length), ERR_INVALID
 * (a URL, an authority file), ERR_MEMORY. */
#ifndef HOLDFAST_STORAGE_HTTP_HTTP_H
#define HOLDFAST_STORAGE_HTTP_HTTP_H

#include "proto/base/report.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>
#include <time.h>

#define HTTP_HEADERS_MAX 20u
#define HTTP_HEADER_BYTES 256u
#define HTTP_TEXT_MAX (16u << 20) /* of a response that is kept as a text */

struct http_connection;

/* For all connections of a store. */
struct http_settings {
    const char *authorities; /* "": the system's */
    int64_t stall_s;
    bool no_proxy;
    /* (optional) At that time (clock_ns()) a call under way fails; 0: not yet known. */
    const _Atomic uint64_t *ends_ns;
    /* (optional) Waits until so many more bytes may be sent. */
    void (*pace)(void *user, size_t bytes);
    void *pace_user;
};

struct http_call {
    const char *method, *url;
    const char *headers[HTTP_HEADERS_MAX]; /* "name: value" */
    size_t num_headers;
    const struct iovec *send; /* the body, sent from there */
    size_t num_send;
    const struct iovec *receive; /* gets the whole body of a 200 or 206; or NULL */
    size_t num_receive;

    /* The response; zero before. */
    int status;            /* 0: none */
    bool was_sent;         /* without a response: the server may have received the whole request */
    time_t date;           /* of the server; 0: it sent none */
    time_t changed;        /* Last-Modified; 0: none */
    uint64_t length;       /* Content-Length; for a HEAD that of the object */
    uint64_t whole_length; /* of Content-Range: the number after the '/'; 0: none */
    uint64_t range_start, range_bytes; /* likewise, of the range in this response */
    char etag[HTTP_HEADER_BYTES];      /* without quotes */
    /* x-amz-meta-holdfast-... */
    char nonce[HTTP_HEADER_BYTES], lease[HTTP_HEADER_BYTES], sha256[HTTP_HEADER_BYTES];
    char region[HTTP_HEADER_BYTES]; /* x-amz-bucket-region */
    uint32_t retry_after_s;
    char *text; /* the body, unless `receive` got it; ended by a NUL; http_call_free() */
    size_t text_bytes;
};

/* Call it once per process, before any other call and before threads start; later calls do nothing.
 * ERR_MEMORY. */
int http_init(void);
int http_open(struct http_connection **out, const struct http_settings *settings);
void http_close(struct http_connection *connection); /* NULL is allowed */
/* 0: there is a response, of any status. Overwrites the whole response. */
int http_perform(struct http_connection *connection, struct http_call *call);
/* Has the time of ends_ns come? NULL: never. */
bool http_is_over(const _Atomic uint64_t *ends_ns);
/* Sleeps `ns`, or until then. */
void http_rest(const _Atomic uint64_t *ends_ns, uint64_t ns);
/* Wipes and frees the text. */
void http_call_free(struct http_call *call);

#endif
