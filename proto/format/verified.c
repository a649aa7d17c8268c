/* verified.c - writes and reads the result of the last verification. */
#include "proto/format/verified.h"

#include "proto/base/json.h"
#include "proto/base/report.h"
#include "proto/format/origin.h"
#include "proto/format/retain.h"
#include "proto/format/shard.h"

#include <stdio.h>
#include <string.h>

static const char *const known_names[] = {
    [VERIFIED_UNKNOWN] = "unknown", [VERIFIED_WHOLE] = "whole", [VERIFIED_DAMAGED] = "damaged"};

const char *verified_known_name(enum verified_known known)
{
    return known_names[known];
}

int verified_key(char *out, size_t size, const struct manifest_summary *summary)
{
    char directory[256];
    ERR_TRY(
        shard_dir_key(directory, sizeof directory, summary->run, summary->step, summary->attempt));
    return snprintf(out, size, "%s/" VERIFIED_NAME, directory) < (int)size
               ? 0
               : report_error(ERR_INVALID, NULL, "the key of a note in %s is too long", directory);
}

static enum verified_known find_known(const struct verified *result, enum verified_known before)
{
    if (result->damages > 0)
        return VERIFIED_DAMAGED;
    return result->percent >= 100 ? VERIFIED_WHOLE : before;
}

void verified_write(char out[VERIFIED_BYTES_MAX], const struct manifest_summary *summary,
                    const struct verified *result, const struct verified *before)
{
    char now[32];
    manifest_now(now);
    snprintf(out, VERIFIED_BYTES_MAX,
             "{\"nonce\":\"%s\",\"time\":\"%s\",\"percent\":%.17g,\"seed\":%lld,"
             "\"damages\":%llu,\"known\":\"%s\"}\n",
             summary->nonce, now, result->percent, (long long)result->seed,
             (unsigned long long)result->damages, known_names[find_known(result, before->known)]);
}

int verified_read(struct verified *out, const char *text, size_t bytes,
                  const struct manifest_summary *summary)
{
    json_error_t reason;
    json_t *root = NULL;
    *out = (struct verified){0};
    int error = json_read(&root, text, bytes, &reason);
    if (error != 0)
        return error == ERR_MEMORY ? error : ERR_NOT_FOUND;
    const char *nonce = json_string_value(json_object_get(root, "nonce"));
    const char *time_text = json_string_value(json_object_get(root, "time"));
    const char *known = json_string_value(json_object_get(root, "known"));
    bool is_it = nonce && time_text && strcmp(nonce, summary->nonce) == 0 &&
                 strlen(time_text) < sizeof out->time;
    if (is_it) {
        strcpy(out->time, time_text);
        out->percent = json_number_value(json_object_get(root, "percent"));
        out->seed = json_integer_value(json_object_get(root, "seed"));
        out->damages = (uint64_t)json_integer_value(json_object_get(root, "damages"));
        out->known = VERIFIED_UNKNOWN;
        for (int i = VERIFIED_WHOLE; known && i <= VERIFIED_DAMAGED; i++)
            if (strcmp(known, known_names[i]) == 0)
                out->known = (enum verified_known)i;
        out->known = find_known(out, out->known);
    }
    json_decref(root);
    if (is_it && out->percent > 0 && out->percent <= 100 && retain_time(out->time) > 0)
        return 0;
    *out = (struct verified){0};
    return ERR_NOT_FOUND;
}
