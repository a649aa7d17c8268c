/* credentials.h - the keys that requests are signed with: found, kept out of sight, renewed.
 *
 * They lie in pages that core dumps leave out and that are wiped before they are given back. No
 * text of an error or of the log has any part of a secret. A source whose keys expire is asked
 * again before they do; while it does not answer, the old ones are used to their end. */
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

/* ERR_DENIED: there are none, and where was looked. `settings` stays the caller's. */
int credentials_open(struct credentials **out, const struct storage_bucket *settings);
void credentials_close(struct credentials *credentials); /* NULL is allowed */
/* For one request: between these two calls the keys do not change. ERR_DENIED, ERR_UNAVAILABLE. */
int credentials_take(struct credentials *credentials, const struct keys **out);
void credentials_drop(struct credentials *credentials);
/* The server did not know these keys any more: they are asked for again, at most once in 10 s. */
void credentials_expire(struct credentials *credentials);
/* "environment", "file", ... */
const char *credentials_source(const struct credentials *credentials);

#endif
