/* mark.c - a text is a valid mark when writing its parsed fields again gives the same bytes. */
#include "proto/format/mark.h"

#include "proto/base/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void mark_write(char out[MARK_BYTES_MAX], const struct shard_identity *identity, uint64_t boot_id)
{
    int length = snprintf(
        out, MARK_BYTES_MAX,
        "{\"format\":\"holdfast-unfinished\",\"version\":1,\"run\":\"%s\",\"step\":%" PRIu64
        ",\"attempt\":%" PRIu64 ",\"nonce\":\"%s\",\"boot_id\":\"%016" PRIx64 "\"}\n",
        identity->run, identity->step, identity->attempt, identity->nonce, boot_id);
    CHECK(length > 0 && length < (int)MARK_BYTES_MAX);
}

void mark_write_part(char out[MARK_BYTES_MAX], const struct shard_identity *identity,
                     const char *coordinator)
{
    int length =
        snprintf(out, MARK_BYTES_MAX,
                 "{\"format\":\"holdfast-part\",\"version\":1,\"run\":\"%s\",\"step\":%" PRIu64
                 ",\"attempt\":%" PRIu64 ",\"nonce\":\"%s\",\"coordinator\":\"%s\"}\n",
                 identity->run, identity->step, identity->attempt, identity->nonce, coordinator);
    CHECK(length > 0 && length < (int)MARK_BYTES_MAX);
}

bool mark_read_part(struct shard_identity *out, char out_coordinator[MARK_NODE_BYTES],
                    const char *directory, const char *text)
{
    char again[MARK_BYTES_MAX], key[MARK_BYTES_MAX];
    memset(out, 0, sizeof *out);
    int count = sscanf(text,
                       "{\"format\":\"holdfast-part\",\"version\":1,\"run\":\"%127[A-Za-z0-9._-]\","
                       "\"step\":%" SCNu64 ",\"attempt\":%" SCNu64
                       ",\"nonce\":\"%32[0-9a-f]\",\"coordinator\":\"%32[A-Za-z0-9._-]\"",
                       out->run, &out->step, &out->attempt, out->nonce, out_coordinator);
    if (count != 5 || !shard_run_is_valid(out->run) || !shard_nonce_is_valid(out->nonce))
        return false;
    mark_write_part(again, out, out_coordinator);
    return strcmp(again, text) == 0 &&
           shard_dir_key(key, sizeof key, out->run, out->step, out->attempt) == 0 &&
           strcmp(directory, key) == 0;
}

bool mark_is_of(const char *directory, const char *text)
{
    struct shard_identity found = {0};
    char again[MARK_BYTES_MAX], key[MARK_BYTES_MAX];
    uint64_t boot_id = 0;
    int count =
        sscanf(text,
               "{\"format\":\"holdfast-unfinished\",\"version\":1,\"run\":\"%127[A-Za-z0-9._-]\","
               "\"step\":%" SCNu64 ",\"attempt\":%" SCNu64
               ",\"nonce\":\"%32[0-9a-f]\",\"boot_id\":\"%16" SCNx64,
               found.run, &found.step, &found.attempt, found.nonce, &boot_id);
    if (count != 5 || !shard_run_is_valid(found.run) || !shard_nonce_is_valid(found.nonce))
        return false;
    mark_write(again, &found, boot_id);
    return strcmp(again, text) == 0 &&
           shard_dir_key(key, sizeof key, found.run, found.step, found.attempt) == 0 &&
           strcmp(key, directory) == 0;
}
