/* scrub_pass.c - the order in which the scrub reads the node's own disk: a pass over every run's
 * checkpoints, oldest first.
 *
 * The cursor of a run is a small object that is written again, under the next number, after each
 * checkpoint and every CURSOR_MS; then the older one is removed. A restart continues from the
 * newest readable one; without one it starts again. The cursor names a checkpoint, not a list
 * index, as checkpoints come and go meanwhile. A pass over a run begins scrub.period_s after the
 * end of the former one, and reads the checkpoints that exist then; of several runs the one that
 * has waited longest is next. A jump of the clock can only delay that, by one period at most.
 * proto/format/retain.h has the format of the object.
 *
 * The cursor also shows which checkpoints were read back since their commit: all not newer than the
 * newest verified one, except for a stretch in which the disk did not return all data, or a tool
 * has added a checkpoint (scrub_expect). A later start may not know of that damage, as a read error
 * leaves no note. The stretch ends with the first pass that misses nothing.
 *
 * A checkpoint that a tool found damaged is read before all others, even before the cursor, which
 * stays meanwhile. In a run without a verified checkpoint the newest is read first in the same way,
 * as retention needs it soonest. The result of such a read is noted beside the checkpoint
 * (proto/format/verified.h). */
#include "ckptd/core/catalog.h"
#include "ckptd/core/service.h"
#include "ckptd/scrub/scrub_private.h"
#include "proto/base/checksum.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/format/flaw.h"
#include "proto/format/retain.h"
#include "storage/store/store.h"

#include <jansson.h>

#include <inttypes.h>
#include <time.h>

#define CURSOR_MS 30000 /* a crash repeats at most this much reading */

static bool is_older(const struct checkpoint *checkpoint, uint64_t attempt, uint64_t step)
{
    const struct manifest_summary *summary = &checkpoint->summary;
    return summary->attempt != attempt ? summary->attempt < attempt : summary->step < step;
}

/* Was it read before the others of this pass? */
static bool was_first(const struct scrub *scrub, const struct checkpoint *checkpoint)
{
    return checkpoint->summary.attempt == scrub->first_attempt &&
           checkpoint->summary.step == scrub->first_step && checkpoint->copies.local.proven != 0;
}

/* The oldest checkpoint of this pass after the cursor that is not known to be damaged, or NULL. */
static struct checkpoint *find_next(const struct scrub *scrub)
{
    const struct scrub_cursor *cursor = &scrub->run->scrubbed;
    struct checkpoint *next = NULL;
    for (struct checkpoint *c = scrub->run->checkpoints; c; c = c->next) {
        if (is_older(c, cursor->attempt, cursor->step))
            break; /* the list is newest first */
        if (catalog_has_copy(c, TIER_LOCAL) && !was_first(scrub, c) &&
            is_older(c, scrub->last_attempt, scrub->last_step + 1))
            next = c;
    }
    return next;
}

/* The newest of the run, while no checkpoint of it is known to be whole, or NULL. A read in
 * progress continues: else a run that saves faster than this reads never has one. */
static struct checkpoint *find_newest(const struct scrub *scrub)
{
    struct checkpoint *newest = NULL;
    for (struct checkpoint *c = scrub->run->checkpoints; c && !scrub->has_no_newest; c = c->next) {
        if (catalog_is_read_back(c))
            return NULL;
        if (!catalog_has_copy(c, TIER_LOCAL))
            continue;
        if (!newest || (c == scrub->turn.checkpoint && scrub->turn.is_aside))
            newest = c;
    }
    return newest;
}

/* A checkpoint of any run that a tool found damaged, or NULL. */
static struct checkpoint *find_suspect(const struct scrub *scrub)
{
    for (const struct run *run = scrub->service->catalog->runs; run; run = run->next)
        for (struct checkpoint *c = run->checkpoints; c; c = c->next)
            if (c->is_suspect && catalog_has_copy(c, TIER_LOCAL))
                return c;
    return NULL;
}

static bool is_due(struct run *run, int64_t now)
{
    struct scrub_cursor *cursor = &run->scrubbed;
    if (cursor->ended > now)
        cursor->ended = now;
    return run->checkpoints && (run->scrub_asked || cursor->begun != 0 || cursor->ended == 0 ||
                                now - cursor->ended >= run->service->config->scrub_period);
}

/* First the run that an operator asked for, then the one that has waited longest. */
static bool goes_before(const struct run *a, const struct run *b)
{
    return a->scrub_asked != b->scrub_asked ? a->scrub_asked
                                            : a->scrubbed.ended < b->scrubbed.ended;
}

static void find_run(struct scrub *scrub)
{
    for (struct run *run = scrub->service->catalog->runs; run; run = run->next)
        if (is_due(run, time(NULL)) && (!scrub->run || goes_before(run, scrub->run)))
            scrub->run = run;
    scrub->has_no_newest = false;
    scrub->first_attempt = 0;
    if (scrub->run) {
        scrub->last_attempt = scrub->run->checkpoints->summary.attempt;
        scrub->last_step = scrub->run->checkpoints->summary.step;
    }
}

/* The checkpoint was not read, and this pass will not reach it again. */
static void except(struct run *run, const struct manifest_summary *summary)
{
    scrub_cursor_except(&run->scrubbed, summary->step, summary->attempt);
    run->scrubbed.missed = 1;
}

/* A later start does not know that these are damaged: there was an error without proof. */
static void except_doubtful(struct run *run)
{
    for (const struct checkpoint *c = run->checkpoints; c; c = c->next)
        if (c->damaged && !catalog_has_flaw(c, FLAW_DAMAGED))
            except(run, &c->summary);
}

static void end_pass(struct scrub *scrub)
{
    struct scrub_cursor *cursor = &scrub->run->scrubbed;
    except_doubtful(scrub->run);
    struct scrub_cursor next = {.ended = time(NULL),
                                .proven_attempt = cursor->proven_attempt,
                                .proven_step = cursor->proven_step,
                                .number = cursor->number};
    if (cursor->missed || scrub->run->adopting != 0) {
        next.unread_attempt = cursor->unread_attempt;
        next.unread_step = cursor->unread_step;
        next.last_unread_attempt = cursor->last_unread_attempt;
        next.last_unread_step = cursor->last_unread_step;
    }
    *cursor = next;
    scrub->run->scrub_asked = false;
    scrub->passes++;
    scrub->must_keep = true;
    log_info("scrub",
             "run %s: every checkpoint was read; since ckptd's start %" PRIu64 " checkpoints, "
             "%" PRIu64 " bytes, %" PRIu64 " damaged",
             scrub->run->name, scrub->checkpoints_read, scrub->bytes_read, scrub->damaged);
}

static struct scrub_turn next(struct scrub *scrub)
{
    struct checkpoint *found = find_suspect(scrub);
    if (found)
        return (struct scrub_turn){found, true};
    if (!scrub->run)
        find_run(scrub);
    if (!scrub->run)
        return (struct scrub_turn){0};
    found = find_newest(scrub);
    if (found) {
        scrub->first_attempt = found->summary.attempt;
        scrub->first_step = found->summary.step;
        return (struct scrub_turn){found, true};
    }
    found = find_next(scrub);
    if (!found && !scrub->turn.checkpoint)
        end_pass(scrub);
    return (struct scrub_turn){found, false};
}

/* The cursor reaches the checkpoint. */
static void begin(struct scrub *scrub)
{
    struct scrub_cursor *cursor = &scrub->turn.checkpoint->run->scrubbed;
    const struct manifest_summary *summary = &scrub->summary;
    scrub->shard = scrub->byte = 0;
    if (scrub->turn.is_aside)
        return;
    if (cursor->attempt == summary->attempt && cursor->step == summary->step) {
        scrub->shard = cursor->shard;
        scrub->byte = cursor->block * CHECKSUM_BLOCK_BYTES;
    }
    cursor->attempt = summary->attempt;
    cursor->step = summary->step;
    if (cursor->begun == 0)
        cursor->begun = time(NULL);
}

/* Every block matched its checksum: retention may rely on it, and List shows it. A checkpoint read
 * out of order says nothing about older ones: it has its own note. */
static void note_whole(const struct scrub *scrub)
{
    struct checkpoint *checkpoint = scrub->turn.checkpoint;
    struct scrub_cursor *cursor = &checkpoint->run->scrubbed;
    if (scrub->turn.is_aside) {
        checkpoint->copies.local.proven = time(NULL);
        return;
    }
    except_doubtful(checkpoint->run);
    if (!is_older(checkpoint, cursor->proven_attempt, cursor->proven_step)) {
        cursor->proven_attempt = scrub->summary.attempt;
        cursor->proven_step = scrub->summary.step;
    }
}

static void was_read(struct scrub *scrub, enum scrub_outcome outcome)
{
    struct checkpoint *checkpoint = scrub->turn.checkpoint;
    struct scrub_cursor *cursor = &checkpoint->run->scrubbed;
    bool is_over = outcome >= SCRUB_WHOLE, is_aside = scrub->turn.is_aside;
    if (is_over)
        checkpoint->is_suspect = false;
    if (outcome == SCRUB_WHOLE)
        note_whole(scrub);
    if (outcome == SCRUB_UNREAD && is_aside)
        scrub->has_no_newest = true; /* the pass reads it later */
    else if (outcome == SCRUB_UNREAD)
        except(checkpoint->run, &scrub->summary);
    if (is_aside)
        return;
    /* The next one of this attempt, or of a later one. */
    cursor->step = scrub->summary.step + is_over;
    cursor->shard = is_over ? 0 : scrub->shard;
    cursor->block = is_over ? 0 : scrub->byte / CHECKSUM_BLOCK_BYTES;
    scrub->must_keep |= outcome != SCRUB_GOES_ON || clock_ms() - scrub->kept_ms >= CURSOR_MS;
}

/* ---- the cursor in the store ---- */

/* It uses up the next number, even after an error. The pass may already have passed the place of a
 * checkpoint that a tool is adding now. */
static struct scrub_cursor take_cursor(struct run *run)
{
    struct scrub_cursor cursor = run->scrubbed;
    cursor.missed |= run->adopting != 0 && run->service->scrub;
    run->scrubbed.number++;
    return cursor;
}

static void work_keep(struct job *job)
{
    struct scrub *scrub = CONTAINER_OF(job, struct scrub, job);
    int error = store_put_cursor(scrub_storage(scrub), scrub->run->name, &scrub->cursor);
    if (error != 0)
        fault_take(&scrub->fault, error);
}

static void kept(struct event *event)
{
    struct scrub *scrub = CONTAINER_OF(event, struct scrub, job.done);
    if (scrub->fault.code != 0)
        log_warn("scrub", "run %s: could not store the position of the scrub: %s", scrub->run->name,
                 scrub->fault.message);
    scrub->kept_ms = clock_ms();
    scrub->must_keep = false;
    if (scrub->run->scrubbed.begun == 0) /* its pass is over */
        scrub->run = NULL;
    scrub_wait(scrub, 0);
}

static bool note(struct scrub *scrub)
{
    if (!scrub->must_keep)
        return false;
    scrub->cursor = take_cursor(scrub->run);
    scrub_start_job(scrub, work_keep, kept);
    return true;
}

const struct scrub_order scrub_pass = {.tier = TIER_LOCAL,
                                       .where = "",
                                       .read_bytes = CHECKSUM_BLOCK_BYTES,
                                       .idle_ms = 60000,
                                       .note = note,
                                       .next = next,
                                       .begin = begin,
                                       .was_read = was_read};

bool scrub_expect(struct scrub_cursor *out, struct run *run, const struct manifest_summary *summary)
{
    CHECK(run->adopting != 0);
    if (run->checkpoints || run->scrubbed.number != 0)
        scrub_cursor_brought(&run->scrubbed, summary->step, summary->attempt);
    if (run->scrubbed.number == 0)
        return false; /* the disk has no note that anything was read back */
    *out = take_cursor(run);
    return true;
}

void scrub_brought(struct run *run, const struct manifest_summary *summary)
{
    if (run->scrubbed.last_unread_attempt != 0)
        scrub_cursor_brought(&run->scrubbed, summary->step, summary->attempt);
}

/* How many bytes of whole checkpoints the pass over the run has read. */
static void measure(const struct scrub *scrub, uint64_t *out_bytes, uint64_t *out_read)
{
    const struct scrub_cursor *cursor = &scrub->run->scrubbed;
    for (const struct checkpoint *c = scrub->run->checkpoints; c; c = c->next) {
        if (!catalog_has_copy(c, TIER_LOCAL) ||
            !is_older(c, scrub->last_attempt, scrub->last_step + 1))
            continue;
        *out_bytes += c->summary.bytes;
        if (is_older(c, cursor->attempt, cursor->step))
            *out_read += c->summary.bytes;
    }
}

json_t *scrub_pass_describe(const struct service *service, const struct scrub *scrub)
{
    const struct run *run = scrub ? scrub->run : NULL, *oldest = NULL;
    uint64_t bytes = 0, bytes_read = 0;
    if (run)
        measure(scrub, &bytes, &bytes_read);
    for (const struct run *one = service->catalog->runs; one; one = one->next)
        if (one->checkpoints && (!oldest || one->scrubbed.ended < oldest->scrubbed.ended))
            oldest = one;
    /* The oldest end of a pass over a run: null if one was never read whole. */
    int64_t ended = oldest ? oldest->scrubbed.ended : 0;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:o}", "pass_bytes", (json_int_t)bytes,
                     "pass_bytes_read", (json_int_t)bytes_read, "rate",
                     (json_int_t)service->config->scrub_rate, "attempt",
                     (json_int_t)(run ? run->scrubbed.attempt : 0), "passes",
                     (json_int_t)(scrub ? scrub->passes : 0), "all_read_at",
                     ended ? json_integer(ended) : json_null());
}
