/* credentials.h - the keys that sign requests: found, protected, renewed.
 *
 * Core dumps omit their pages, which are wiped before they are freed. No error or log text has any
 * part of a secret. A source with expiring keys is read again before they expire; while it does not
 * answer, the old ones are used until then. */
#ifndef HOLDFAST_STORAGE_BUCKET_CREDENTIALS_H
#define HOLDFAST_STORAGE_BUCKET_CREDENTIALS_H

#include "storage/bucket/options.h"
#include "storage/storage.h"

#define CREDENTIALS_TOKEN_BYTES 8192u

struct keys {
    char access_key[256], secret_key[256], token[CREDENTIALS_TOKEN_BYTES];
    int64_t expires_s; /* of the monotonic clock; 0: never */
};

struct credentials;

/* ERR_DENIED: there are none; the text lists the searched places. `settings` stays the caller's. */
int credentials_open(struct credentials **out, const struct storage_bucket *settings);
void credentials_close(struct credentials *credentials); /* NULL is allowed */
/* Call these around one request: in between the keys do not change. ERR_DENIED, ERR_UNAVAILABLE. */
int credentials_take(struct credentials *credentials, const struct keys **out);
void credentials_drop(struct credentials *credentials);
/* The server rejected these keys: reads their source again, at most once in 10 s. */
void credentials_expire(struct credentials *credentials);
/* "environment", "file", ... */
const char *credentials_source(const struct credentials *credentials);

#endif
