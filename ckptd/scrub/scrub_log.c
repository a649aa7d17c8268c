/* scrub_log.c - the order in which the scrub reads the far tier: of the copies that are due, first
 * the one that was verified longest ago.
 *
 * A copy counts as verified when it was sent, when retention read it back, and by the scrub. These
 * times, and the place within the current checkpoint, are in the numbered object (storage.h)
 * "<run>/proven" there:
 *
 *     holdfast-proven 1
 *     place STEP ATTEMPT SHARD BYTE BEGUN        where the scrub continues; may be missing
 *     STEP ATTEMPT TIME                          of each verified copy; seconds since the epoch
 *
 * It is in the far tier, so it survives the node, and ckptds that share the tier do not verify the
 * same copies again. It is read for each run before its first checkpoint, and written every NOTE_MS
 * and after each checkpoint. If two write the same number, one finds it taken: it reads the object
 * and writes again later. An unknown line is ignored; a time in the future proves nothing. */
#include "ckptd/core/catalog.h"
#include "ckptd/core/service.h"
#include "ckptd/scrub/scrub_private.h"
#include "proto/base/checksum.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "storage/numbered.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define HEAD "holdfast-proven 1\n"
#define LINE_BYTES 128u
#define LOG_BYTES_MAX (1u << 20) /* of the object; checkpoints beyond that are read again */
/* A request to a bucket costs as much as this many bytes. */
#define READ_BYTES (4u * CHECKSUM_BLOCK_BYTES)
#define RETRY_MS 600000 /* before a copy that could not be read is tried again */
#define NOTE_MS 30000   /* a crash repeats at most this much reading */
_Static_assert(READ_BYTES > LOG_BYTES_MAX, "the text lies in the scrub's buffer");

/* ---- the log ---- */

/* Writes the log to the buffer. False: no memory. */
static bool write_log(const struct scrub *scrub, const struct run *run)
{
    const struct proven_place *place = &run->proven.place;
    FILE *out = fmemopen(scrub->buffer, READ_BYTES, "w");
    if (!out)
        return false;
    fputs(HEAD, out);
    if (place->attempt > 0)
        fprintf(out, "place %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 "\n",
                place->step, place->attempt, place->shard, place->byte, place->begun);
    for (const struct checkpoint *c = run->checkpoints; c; c = c->next) {
        int64_t proven = c->copies.far.proven;
        if (!c->copies.far.is_there || proven == 0 ||
            ftell(out) > (long)(LOG_BYTES_MAX - LINE_BYTES))
            continue;
        fprintf(out, "%" PRIu64 " %" PRIu64 " %" PRId64 "\n", c->summary.step, c->summary.attempt,
                proven);
    }
    return fclose(out) == 0;
}

static void take_time(struct run *run, uint64_t step, uint64_t attempt, int64_t proven)
{
    struct checkpoint *checkpoint = catalog_find(run, step, attempt);
    struct copy *copy = checkpoint ? &checkpoint->copies.far : NULL;
    if (copy && copy->is_there && proven > copy->proven)
        copy->proven = proven;
}

/* Takes over times from the log that are newer than the known ones. */
static void take_log(struct run *run, const char *text)
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

static void work_fetch(struct job *job)
{
    struct scrub *scrub = CONTAINER_OF(job, struct scrub, job);
    int error = tier_reach(scrub->service, TIER_FAR);
    if (error == 0)
        error = storage_fetch_numbered(scrub_storage(scrub), scrub->folder, &scrub->number,
                                       (char *)scrub->buffer, LOG_BYTES_MAX + 1);
    if (error != 0)
        fault_take(&scrub->fault, error);
}

static void work_keep(struct job *job)
{
    struct scrub *scrub = CONTAINER_OF(job, struct scrub, job);
    int error = tier_reach(scrub->service, TIER_FAR);
    if (error == 0)
        error = storage_publish_numbered(scrub_storage(scrub), scrub->folder, scrub->number,
                                         (const char *)scrub->buffer);
    if (error != 0)
        fault_take(&scrub->fault, error);
}

/* If the log cannot be read, the scrub begins with the known times. */
static void fetched(struct event *event)
{
    struct scrub *scrub = CONTAINER_OF(event, struct scrub, job.done);
    struct run *run = scrub->log_run;
    run->proven.is_known = true;
    if (scrub->fault.code == 0) {
        take_log(run, (const char *)scrub->buffer);
        run->proven.number = scrub->number;
    } else {
        log_warn("scrub", "run %s: could not read which far copies are verified: %s", run->name,
                 scrub->fault.message);
    }
    scrub_wait(scrub, 0);
}

static void kept(struct event *event)
{
    struct scrub *scrub = CONTAINER_OF(event, struct scrub, job.done);
    struct run *run = scrub->log_run;
    /* By another ckptd: read it first, then write again. */
    bool is_taken = scrub->fault.code == ERR_EXISTS;
    run->proven.is_known = !is_taken;
    run->proven.must_keep |= is_taken;
    run->proven.number = scrub->number + (scrub->fault.code == 0);
    scrub->kept_ms = clock_ms();
    if (scrub->fault.code != 0 && !is_taken)
        log_debug("scrub", "run %s: could not store which far copies are verified: %s", run->name,
                  scrub->fault.message);
    scrub_wait(scrub, 0);
}

/* A run whose log was not read yet, or must be written; NULL: none. */
static struct run *find_run(const struct service *service)
{
    for (struct run *run = service->catalog->runs; run; run = run->next)
        for (const struct checkpoint *c = run->checkpoints;
             c && (!run->proven.is_known || run->proven.must_keep); c = c->next)
            if (c->copies.far.is_there)
                return run;
    return NULL;
}

static bool note(struct scrub *scrub)
{
    struct run *run = find_run(scrub->service);
    if (!run || !storage_join(scrub->folder, run->name, "proven"))
        return false;
    scrub->log_run = run;
    scrub->number = run->proven.number;
    if (!run->proven.is_known) {
        scrub_start_job(scrub, work_fetch, fetched);
        return true;
    }
    run->proven.must_keep = false;
    bool is_written = write_log(scrub, run);
    if (is_written)
        scrub_start_job(scrub, work_keep, kept);
    return is_written;
}

/* ---- the next copy ---- */

/* A copy that could not be read is tried again, but after all others that are due. A clock that was
 * set back proves nothing. */
static bool is_due(const struct service *service, const struct copy *copy)
{
    int64_t now = clock_ms(), period = service->config->scrub_period;
    int64_t again = 1000 * period < RETRY_MS ? 1000 * period : RETRY_MS;
    int64_t age = (int64_t)time(NULL) - copy->proven;
    return (copy->proven == 0 || age < 0 || age >= period) &&
           (copy->tried_ms == 0 || copy->tried_ms <= now - again);
}

static bool is_at_place(const struct checkpoint *checkpoint)
{
    const struct proven_place *place = &checkpoint->run->proven.place;
    int64_t age = (int64_t)time(NULL) - place->begun;
    return place->step == checkpoint->summary.step &&
           place->attempt == checkpoint->summary.attempt && age >= 0 &&
           age < checkpoint->run->service->config->scrub_period;
}

static bool is_before(const struct checkpoint *a, const struct checkpoint *b)
{
    const struct copy *one = &a->copies.far, *other = &b->copies.far;
    if (is_at_place(a) != is_at_place(b))
        return is_at_place(a);
    return one->tried_ms != other->tried_ms ? one->tried_ms < other->tried_ms
                                            : one->proven < other->proven;
}

/* The copy that was verified longest ago, and is due; NULL: none. */
static struct checkpoint *find_next(const struct service *service)
{
    struct checkpoint *next = NULL;
    for (struct run *run = service->catalog->runs; run; run = run->next)
        for (struct checkpoint *c = run->checkpoints; c; c = c->next)
            if (catalog_has_copy(c, TIER_FAR) && !c->damaged && is_due(service, &c->copies.far) &&
                (!next || is_before(c, next)))
                next = c;
    return next;
}

static struct scrub_turn next(struct scrub *scrub)
{
    struct checkpoint *checkpoint = scrub->turn.checkpoint;
    if (!checkpoint)
        checkpoint = find_next(scrub->service);
    scrub->run = checkpoint ? checkpoint->run : NULL;
    return (struct scrub_turn){.checkpoint = checkpoint};
}

static void begin(struct scrub *scrub)
{
    const struct proven_place *place = &scrub->run->proven.place;
    bool goes_on = is_at_place(scrub->turn.checkpoint);
    scrub->shard = goes_on ? place->shard : 0;
    scrub->byte = goes_on ? place->byte : 0;
    scrub->begun = goes_on ? place->begun : (int64_t)time(NULL);
}

static void was_read(struct scrub *scrub, enum scrub_outcome outcome)
{
    struct copy *copy = &scrub->turn.checkpoint->copies.far;
    struct proven *proven = &scrub->run->proven;
    proven->place = (struct proven_place){0};
    if (outcome < SCRUB_WHOLE)
        proven->place = (struct proven_place){.step = scrub->summary.step,
                                              .attempt = scrub->summary.attempt,
                                              .shard = scrub->shard,
                                              .byte = scrub->byte,
                                              .begun = scrub->begun};
    if (outcome == SCRUB_WHOLE)
        copy->proven = (int64_t)time(NULL);
    if (outcome == SCRUB_UNREAD)
        copy->tried_ms = clock_ms();
    proven->must_keep |= outcome != SCRUB_GOES_ON || clock_ms() - scrub->kept_ms > NOTE_MS;
    if (outcome != SCRUB_GOES_ON)
        scrub->run = NULL;
}

const struct scrub_order scrub_log = {.tier = TIER_FAR,
                                      .where = " in the far tier",
                                      .read_bytes = READ_BYTES,
                                      .idle_ms = 5000,
                                      .is_shared = true,
                                      .note = note,
                                      .next = next,
                                      .begin = begin,
                                      .was_read = was_read};
