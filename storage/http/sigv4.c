/* sigv4.c - AWS Signature Version 4 in four steps: canonical request, string to sign, key,
 * signature.
 *
 *   canonical = method \n path \n query \n name:value\n... \n names \n hash of the payload
 *   to sign   = "AWS4-HMAC-SHA256" \n date \n day/region/service/aws4_request \n sha256(canonical)
 *   key       = hmac(hmac(hmac(hmac("AWS4" + secret, day), region), service), "aws4_request")
 *   signature = hmac(key, to sign)
 *
 * Source: AWS, as sigv4.h says. The secret and the keys are on the stack during the call and are
 * wiped. */
#include "storage/http/sigv4.h"

#include "proto/base/report.h"
#include "storage/http/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCOPE_BYTES 192u
#define CANONICAL_BYTES 16384u
#define SECRET_BYTES_MAX 256u
#define DAY_DIGITS 8

void sigv4_date(char out[SIGV4_DATE_BYTES], time_t time)
{
    struct tm utc;
    gmtime_r(&time, &utc);
    strftime(out, SIGV4_DATE_BYTES, "%Y%m%dT%H%M%SZ", &utc);
}

static int is_unreserved(unsigned char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

int sigv4_encode(char *out, size_t size, const char *text, int keeps_slash)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t at = strlen(out);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        int is_plain = is_unreserved(c) || (keeps_slash && c == '/');
        if (at + (is_plain ? 1 : 3) >= size)
            return report_error(ERR_INVALID, NULL, "a name is too long for a request");
        if (is_plain) {
            out[at++] = (char)c;
        } else {
            out[at++] = '%';
            out[at++] = digits[c >> 4];
            out[at++] = digits[c & 15];
        }
    }
    out[at] = '\0';
    return 0;
}

static int compare_headers(const void *left, const void *right)
{
    return strcmp(((const struct sigv4_header *)left)->name,
                  ((const struct sigv4_header *)right)->name);
}

/* "host;range;x-amz-date", sorted as the headers are. */
static void join_names(char out[SIGV4_AUTHORIZATION_BYTES], const struct sigv4_request *request)
{
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < request->num_headers && at < SIGV4_AUTHORIZATION_BYTES; i++)
        at += (size_t)snprintf(out + at, SIGV4_AUTHORIZATION_BYTES - at, "%s%s", i > 0 ? ";" : "",
                               request->headers[i].name);
}

static int hash_canonical(char out[HASH_SHA256_HEX], const struct sigv4_request *request,
                          const char *names)
{
    unsigned char sum[HASH_SHA256_BYTES];
    char *text = malloc(CANONICAL_BYTES);
    if (text == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to sign a request");
    size_t at = (size_t)snprintf(text, CANONICAL_BYTES, "%s\n%s\n%s\n", request->method,
                                 request->path, request->query);
    for (size_t i = 0; i < request->num_headers && at < CANONICAL_BYTES; i++)
        at += (size_t)snprintf(text + at, CANONICAL_BYTES - at, "%s:%s\n", request->headers[i].name,
                               request->headers[i].value);
    if (at < CANONICAL_BYTES)
        at += (size_t)snprintf(text + at, CANONICAL_BYTES - at, "\n%s\n%s", names,
                               request->payload_sha256);
    int error = at < CANONICAL_BYTES
                    ? hash_sha256(sum, &(struct iovec){text, at}, 1)
                    : report_error(ERR_INVALID, NULL, "a request is too long to be signed");
    if (error == 0)
        hash_hex(out, sum, sizeof sum);
    explicit_bzero(text, CANONICAL_BYTES); /* the headers may include a session token */
    free(text);
    return error;
}

static int make_key(unsigned char key[HASH_SHA256_BYTES], const struct sigv4_request *request,
                    const char *secret_key)
{
    char secret[SECRET_BYTES_MAX + 5];
    int length = snprintf(secret, sizeof secret, "AWS4%s", secret_key);
    int error = length < (int)sizeof secret
                    ? hash_hmac(key, secret, (size_t)length, request->date, DAY_DIGITS)
                    : report_error(ERR_INVALID, NULL, "a secret key is longer than %u bytes",
                                   SECRET_BYTES_MAX);
    const char *const steps[] = {request->region, request->service, "aws4_request"};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && error == 0; i++)
        error = hash_hmac(key, key, HASH_SHA256_BYTES, steps[i], strlen(steps[i]));
    explicit_bzero(secret, sizeof secret);
    return error;
}

int sigv4_sign(char out[SIGV4_AUTHORIZATION_BYTES], const struct sigv4_request *request,
               const char *access_key, const char *secret_key)
{
    struct sigv4_request sorted = *request;
    char names[SIGV4_AUTHORIZATION_BYTES], canonical[HASH_SHA256_HEX], scope[SCOPE_BYTES];
    char to_sign[SCOPE_BYTES + 128], signature[HASH_SHA256_HEX];
    unsigned char key[HASH_SHA256_BYTES] = {0}, sum[HASH_SHA256_BYTES];
    CHECK(request->num_headers <= SIGV4_HEADERS_MAX);
    qsort(sorted.headers, sorted.num_headers, sizeof sorted.headers[0], compare_headers);
    join_names(names, &sorted);
    int length = snprintf(scope, sizeof scope, "%.*s/%s/%s/aws4_request", DAY_DIGITS, request->date,
                          request->region, request->service);
    if (length >= (int)sizeof scope)
        return report_error(ERR_INVALID, NULL, "the region \"%s\" is too long", request->region);
    ERR_TRY(hash_canonical(canonical, &sorted, names));
    length = snprintf(to_sign, sizeof to_sign, "AWS4-HMAC-SHA256\n%s\n%s\n%s", request->date, scope,
                      canonical);
    CHECK(length < (int)sizeof to_sign);
    int error = make_key(key, request, secret_key);
    if (error == 0)
        error = hash_hmac(sum, key, sizeof key, to_sign, (size_t)length);
    explicit_bzero(key, sizeof key);
    if (error != 0)
        return error;
    hash_hex(signature, sum, sizeof sum);
    length = snprintf(out, SIGV4_AUTHORIZATION_BYTES,
                      "AWS4-HMAC-SHA256 Credential=%s/%s,SignedHeaders=%s,Signature=%s", access_key,
                      scope, names, signature);
    return length < (int)SIGV4_AUTHORIZATION_BYTES
               ? 0
               : report_error(ERR_INVALID, NULL, "the signature of a request is too long");
}
