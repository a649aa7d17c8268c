/* digests.c - compares the tokens of repeated steps (see digests.h). */
#include "trainer/observe/digests.h"
#include "proto/base/checksum.h"
#include "proto/base/json.h"
#include "proto/base/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int put_digest(struct digests *d, int64_t step, const struct digest_line *line)
{
    uint64_t at = (uint64_t)(step - d->after) - 1;
    if (at >= DIGESTS_MAX)
        return 0;
    if (at >= d->num) {
        struct digest_line *of = realloc(d->of, (size_t)(at + 1) * 2 * sizeof(*of));
        if (of == NULL)
            return report_error(ERR_MEMORY, NULL, "no memory for the digests of %u steps", d->num);
        memset(of + d->num, 0, ((size_t)(at + 1) * 2 - d->num) * sizeof(*of));
        d->of = of;
        d->num = (uint32_t)(at + 1) * 2;
    }
    d->of[at] = *line;
    return 0;
}

static int take_step(struct digests *d, const json_t *line)
{
    const char *digits = json_string_value(json_object_get(line, "tokens_digest"));
    int64_t step = json_integer_value(json_object_get(line, "step"));
    struct digest_line of = {
        .attempt = (uint64_t)json_integer_value(json_object_get(line, "attempt")),
        .next_sample = (uint64_t)json_integer_value(json_object_get(line, "last_sample")) + 1,
        .is_there = true};
    if (digits == NULL || strlen(digits) != CHECKSUM_DIGITS ||
        !checksum_parse(&of.digest, digits) || step <= d->after)
        return 0;
    return put_digest(d, step, &of);
}

/* Most lines are of earlier steps, and are skipped without parsing. */
static bool is_later(const struct digests *d, const char *line)
{
    static const char key[] = "\"step\": ";
    const char *at = strstr(line, key);
    return at != NULL && strtoll(at + strlen(key), NULL, 10) > d->after;
}

/* *is_ours: the lines are of this run. */
static int take_line(struct digests *d, const char *line, size_t length, const char *run,
                     bool *is_ours)
{
    json_t *json = NULL;
    json_error_t reason;
    bool is_start = strstr(line, "\"start_step\": ") != NULL;
    if (!is_start && (!*is_ours || !is_later(d, line)))
        return 0;
    if (json_read(&json, line, length, &reason) == ERR_MEMORY)
        return ERR_MEMORY;
    const char *of = json_string_value(json_object_get(json, "run"));
    if (is_start)
        *is_ours = of != NULL && strcmp(of, run) == 0;
    int rc = is_start ? 0 : take_step(d, json);
    json_decref(json);
    return rc;
}

int digests_read(struct digests *d, const char *path, const char *run, int64_t after)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    bool is_ours = true;
    int rc = 0;
    digests_free(d);
    d->after = after;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    while (rc == 0 && (length = getline(&line, &room, file)) > 0)
        rc = take_line(d, line, (size_t)length, run, &is_ours);
    free(line);
    fclose(file);
    return rc;
}

void digests_free(struct digests *d)
{
    free(d->of);
    d->of = NULL;
    d->num = 0;
}

int64_t digests_compare(struct digests *d, const struct progress *p, uint64_t samples)
{
    uint64_t at = (uint64_t)(p->step - d->after) - 1;
    if (p->step <= d->after || at >= d->num)
        return -1;
    const struct digest_line *then = &d->of[at];
    if (!then->is_there || then->next_sample != p->next_sample || then->digest == p->tokens_digest)
        return -1;
    if (!d->has_warned)
        log_warn("data",
                 "step %" PRId64 ": samples %" PRIu64 " to %" PRIu64
                 " have other tokens than attempt %" PRIu64 " had (digest %016" PRIx64
                 ", now %016" PRIx64
                 "): the data were changed, and the run's losses from here on are not those of an "
                 "undisturbed run; later such steps are named in metrics.jsonl_file only",
                 p->step, p->next_sample - samples, p->next_sample - 1, then->attempt, then->digest,
                 p->tokens_digest);
    d->has_warned = true;
    return (int64_t)then->attempt;
}
