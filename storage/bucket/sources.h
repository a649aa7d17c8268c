/* sources.h - private to credentials.c and sources.c: where keys come from. */
#ifndef HOLDFAST_STORAGE_BUCKET_SOURCES_H
#define HOLDFAST_STORAGE_BUCKET_SOURCES_H

#include "storage/bucket/credentials.h"

/* Memory that no core dump has; whole pages. NULL without room. */
void *secret_allocate(size_t bytes);
void secret_free(void *memory, size_t bytes); /* wiped; NULL is allowed */

struct source {
    const char *name;
    /* ERR_NOT_FOUND: it is not set up here. Fills *out, whose expires_s is 0 before. */
    int (*read)(struct keys *out, const struct storage_bucket *settings);
};
extern const struct source credential_sources[];
extern const size_t num_credential_sources;

#endif
