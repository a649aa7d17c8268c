/* origin.c - the run that saved a checkpoint; see origin.h. */
#include "proto/format/origin.h"

#include "proto/base/json.h"
#include "proto/base/report.h"

#include <stdio.h>
#include <string.h>

#define FORMAT_NAME "holdfast-origin"

void origin_write(char out[ORIGIN_BYTES_MAX], const char *run, const char *nonce)
{
    int length =
        snprintf(out, ORIGIN_BYTES_MAX,
                 "{\"format\":\"" FORMAT_NAME "\",\"run\":\"%s\",\"nonce\":\"%s\"}\n", run, nonce);
    CHECK(length > 0 && length < (int)ORIGIN_BYTES_MAX);
}

int origin_key(char *out, size_t size, const struct manifest_summary *summary)
{
    ERR_TRY(shard_dir_key(out, size, summary->run, summary->step, summary->attempt));
    size_t used = strlen(out);
    if (size - used <= strlen("/" ORIGIN_NAME))
        return report_error(ERR_INVALID, NULL, "the key of a file in %s does not fit", out);
    strcpy(out + used, "/" ORIGIN_NAME);
    return 0;
}

static bool is_new_shard(const char *name)
{
    char shard[256];
    size_t length = strlen(name), suffix = strlen(SHARD_NEW_SUFFIX);
    if (length < suffix || length >= sizeof(shard) ||
        strcmp(name + length - suffix, SHARD_NEW_SUFFIX) != 0)
        return false;
    memcpy(shard, name, length - suffix);
    shard[length - suffix] = '\0';
    return shard_is_file_name(shard);
}

bool origin_is_member(const char *name)
{
    return shard_is_file_name(name) || is_new_shard(name) || strcmp(name, ORIGIN_NAME) == 0 ||
           strcmp(name, VERIFIED_NAME) == 0 || strcmp(name, MANIFEST_DAMAGED_NAME) == 0 ||
           strcmp(name, PLACES_NAME) == 0;
}

void origin_rename(struct manifest_summary *summary, const char *run)
{
    if (strcmp(summary->run, run) == 0 || strlen(run) >= sizeof(summary->run))
        return;
    memcpy(summary->origin, summary->run, sizeof(summary->origin));
    strcpy(summary->run, run);
}

int origin_check(const char *text, size_t bytes, const struct manifest_summary *summary)
{
    json_error_t reason;
    json_t *root = NULL;
    int error = json_read(&root, text, bytes, &reason);
    if (error == ERR_MEMORY)
        return error;
    const char *format = json_string_value(json_object_get(root, "format"));
    const char *run = json_string_value(json_object_get(root, "run"));
    const char *nonce = json_string_value(json_object_get(root, "nonce"));
    if (format == NULL || run == NULL || nonce == NULL || strcmp(format, FORMAT_NAME) != 0)
        error = report_error(ERR_CORRUPT, "ckpt-cli adopt writes it anew",
                             "its " ORIGIN_NAME " is not one");
    else if (strcmp(run, summary->run) != 0 || strcmp(nonce, summary->nonce) != 0)
        error = report_error(ERR_CORRUPT, "ckpt-cli adopt writes it anew",
                             "its " ORIGIN_NAME " is of another checkpoint, of run %.127s", run);
    json_decref(root);
    return error;
}
