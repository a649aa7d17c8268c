/* mark_bed.h - the mark of unfinished work (proto/format/mark.h), put beside shards as a writer
 * does. */
#ifndef HOLDFAST_TESTS_MARK_BED_H
#define HOLDFAST_TESTS_MARK_BED_H

#include "proto/format/mark.h"
#include "tests/unit/suite.h"

#include <stdint.h>
#include <stdio.h>

static inline void mark_text(char out[MARK_BYTES_MAX], const char *run, uint64_t step,
                             uint64_t attempt)
{
    struct shard_identity identity = {
        .step = step, .attempt = attempt, .nonce = "0123456789abcdef0123456789abcdef"};
    snprintf(identity.run, sizeof identity.run, "%s", run);
    mark_write(out, &identity, 1);
}

/* Into the directory of the step, which is in the directory `store`. */
static inline void put_mark(const char *store, const char *run, uint64_t step, uint64_t attempt)
{
    char text[MARK_BYTES_MAX], key[300], path[700];
    mark_text(text, run, step, attempt);
    assert_int_equal(shard_dir_key(key, sizeof key, run, step, attempt), 0);
    snprintf(path, sizeof path, "%s/%s/" MARK_NAME, store, key);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

#endif
