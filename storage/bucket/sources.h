/* sources.h - private to credentials.c and sources.c: the sources of keys. */
#ifndef HOLDFAST_STORAGE_BUCKET_SOURCES_H
#define HOLDFAST_STORAGE_BUCKET_SOURCES_H

#include "storage/bucket/credentials.h"

/* Allocates whole pages that core dumps omit. NULL: no memory. */
void *secret_allocate(size_t bytes);
void secret_free(void *memory, size_t bytes); /* wiped; NULL is allowed */

struct source {
    const char *name;
    /* ERR_NOT_FOUND: this source is not configured. Fills *out, whose expires_s is 0 before. */
    int (*read)(struct keys *out, const struct storage_bucket *settings);
};
extern const struct source credential_sources[];
extern const size_t num_credential_sources;

#endif
