/* scrub_log.c - when each checkpoint of a run was proven in the far tier, and where the scrub of
 * that tier stands, as the numbered object (storage.h) "<run>/proven" there:
 *
 *     holdfast-proven 1
 *     place STEP ATTEMPT SHARD BYTE BEGUN        where the scrub goes on; may be missing
 *     STEP ATTEMPT TIME                          of each that was proven; seconds since the epoch
 *
 * It lies in the far tier, so it outlives the node, and what one ckptd has proven need not be read
 * by the others that share the tier. Of two that write the same number one finds it taken: it reads
 * what is there and writes again, later. A line that nobody understands says nothing; a time in the
 * future proves nothing (remote_scrub.c). */
#include "ckptd/keep/scrub_log.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "proto/base/report.h"
#include "storage/storage.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD "holdfast-proven 1\n"
#define LINE_BYTES 128u

char *scrub_log_write(const struct run *run)
{
    const struct proven_place *place = &run->proven.place;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return NULL;
    fputs(HEAD, out);
    if (place->attempt > 0)
        fprintf(out, "place %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 "\n",
                place->step, place->attempt, place->shard, place->byte, place->begun);
    for (const struct checkpoint *c = run->checkpoints; c; c = c->next) {
        int64_t proven = c->copies.far.proven;
        if (!c->copies.far.is_there || proven == 0 ||
            ftell(out) > (long)(SCRUB_LOG_BYTES_MAX - LINE_BYTES))
            continue;
        fprintf(out, "%" PRIu64 " %" PRIu64 " %" PRId64 "\n", c->summary.step, c->summary.attempt,
                proven);
    }
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

static void take_time(struct run *run, uint64_t step, uint64_t attempt, int64_t proven)
{
    struct checkpoint *checkpoint = catalog_find(run, step, attempt);
    struct copy *copy = checkpoint ? &checkpoint->copies.far : NULL;
    if (copy && copy->is_there && proven > copy->proven)
        copy->proven = proven;
}

void scrub_log_take(struct run *run, const char *text)
{
    struct proven_place place = {0};
    uint64_t step, attempt;
    int64_t proven;
    if (strncmp(text, HEAD, strlen(HEAD)) != 0)
        return;
    for (const char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        if (sscanf(line, "%" SCNu64 " %" SCNu64 " %" SCNd64, &step, &attempt, &proven) == 3)
            take_time(run, step, attempt, proven);
        else if (sscanf(line, "place %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNd64,
                        &place.step, &place.attempt, &place.shard, &place.byte, &place.begun) == 5)
            run->proven.place = place;
    }
}

static int key_of(char out[STORAGE_KEY_MAX + 1], const char *run)
{
    return storage_join(out, run, "proven") ? 0
                                            : report_error(ERR_INVALID, NULL, "a key is too long");
}

int scrub_log_fetch(struct storage *storage, const char *run, uint64_t *out_number, char **out_text)
{
    char key[STORAGE_KEY_MAX + 1];
    *out_text = malloc(SCRUB_LOG_BYTES_MAX + 1);
    if (!*out_text)
        return report_error(ERR_MEMORY, NULL, "no memory for what was proven of a run");
    ERR_TRY(key_of(key, run));
    return storage_fetch_numbered(storage, key, out_number, *out_text, SCRUB_LOG_BYTES_MAX + 1);
}

int scrub_log_keep(struct storage *storage, const char *run, uint64_t number, const char *text)
{
    char key[STORAGE_KEY_MAX + 1];
    ERR_TRY(key_of(key, run));
    return storage_publish_numbered(storage, key, number, text);
}
