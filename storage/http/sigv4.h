/* sigv4.h - AWS Signature Version 4 of one HTTP request.
 *
 * Source: AWS, "Authenticating Requests: Using the Authorization Header (AWS Signature Version 4)",
 * Amazon S3 API Reference. Pure: it reads no clock and no environment. */
#ifndef HOLDFAST_STORAGE_HTTP_SIGV4_H
#define HOLDFAST_STORAGE_HTTP_SIGV4_H

#include <stddef.h>
#include <time.h>

#define SIGV4_HEADERS_MAX 16u
#define SIGV4_DATE_BYTES 17u /* "20130524T000000Z" and its NUL */
#define SIGV4_AUTHORIZATION_BYTES 1024u

struct sigv4_header {
    const char *name;  /* lower case */
    const char *value; /* without blanks at its ends, or in a row */
};

struct sigv4_request {
    const char *method;
    const char *path;  /* as sent: percent-encoded, "/" first */
    const char *query; /* as sent: encoded, sorted by name, "name=" without a value; or "" */
    const char *payload_sha256; /* in hexadecimal */
    const char *region, *service;
    const char *date; /* of sigv4_date(): the value of x-amz-date */
    /* All of them are signed. "host" must be one, for S3 also "x-amz-content-sha256". Any order. */
    struct sigv4_header headers[SIGV4_HEADERS_MAX];
    size_t num_headers;
};

void sigv4_date(char out[SIGV4_DATE_BYTES], time_t time);
/* Appends the percent-encoded text to `out`, which has `size` bytes with its NUL; keeps '/' if
 * `keeps_slash`. ERR_INVALID: it does not fit. */
int sigv4_encode(char *out, size_t size, const char *text, int keeps_slash);
/* The value of the header Authorization. ERR_INVALID: too long. Wipes the values derived from the
 * secret key. */
int sigv4_sign(char out[SIGV4_AUTHORIZATION_BYTES], const struct sigv4_request *request,
               const char *access_key, const char *secret_key);

#endif
