/* scrub.c - the scrub: a pass over every run's checkpoints, oldest first, each block read from the
 * disk and held against its checksum.
 *
 *   timer ──► which block is next? ──► worker: manifest, table and shard opened where they are not,
 *     ▲                                   │    some blocks read and hashed
 *     └── as long as scrub.rate asks for ─┴──► damage: quarantine; else the cursor moves on
 *
 * It reads with a buffer of its own, one block, and never through the pool, so it takes memory from
 * nobody. While a save is in work or a load is open it stands still, for at most YIELD_MS_MAX
 * before each job, so that a busy daemon is scrubbed too, but slowly.
 *
 * The cursor of a run is a small object that is written anew, under the next number, when a
 * checkpoint was read and every CURSOR_MS; then the older one is removed. A restart goes on from
 * the newest that can be read, and without one begins again. It names the place, not a list index:
 * checkpoints come and go meanwhile. A pass over a run begins scrub.period_s after the end of the
 * one before, and reads what was there then; of several runs that which has waited longest is next.
 * A clock that jumps can only delay that, by one period at most.
 *
 * The cursor also tells what was read back since it was committed: what is not newer than the
 * newest that was found whole, but for a stretch of which the disk did not give all, or in which a
 * tool has brought a checkpoint (scrub_expect). Who looks may not know of that damage: an error of
 * a read leaves no note. The stretch goes with the first pass that misses nothing.
 *
 * An operator starts a pass at once, of one run or of all that have checkpoints, or pauses the
 * scrub until the next start of it or of ckptd. Paused, it holds no checkpoint; the cursor keeps
 * its place.
 *
 * Where a tool has found damage, that checkpoint is read before all others, also behind the cursor,
 * which keeps its place meanwhile. In a run of which none is known whole yet the newest is read
 * first in the same way: retention counts on it soonest. What was read so is noted beside it
 * (proto/format/verified.h).
 *
 * What is read stays until it is read whole: neither retention nor a prune takes it. A run that
 * saves and removes faster than this reads would otherwise never have one that was read back, and
 * the rule that keeps the last of those would keep nothing. */
#include "ckptd/keep/scrub.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/keep/scrub_private.h"
#include "ckptd/restore/loads.h"
#include "ckptd/run/coordinator.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/format/retain.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define IDLE_MS 60000      /* between two looks for a run that is due, or a period, */
#define IDLE_MS_MIN 200    /* but not more often than this */
#define YIELD_MS 200       /* between two looks whether the daemon is at rest */
#define YIELD_MS_MAX 10000 /* then it goes on all the same */
#define FAULT_MS 500       /* after an error: what is wrong may be so with all of them */
#define CURSOR_MS 30000    /* what a crash makes it read again, at most */

/* ---- what is next ---- */

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

/* The oldest of this pass that the cursor has not passed and that is not known to be damaged, or
 * NULL. */
static struct checkpoint *find_next(const struct scrub *scrub)
{
    const struct scrub_cursor *cursor = &scrub->run->scrubbed;
    struct checkpoint *next = NULL;
    for (struct checkpoint *c = scrub->run->checkpoints; c; c = c->next) {
        if (is_older(c, cursor->attempt, cursor->step))
            break; /* they are newest first */
        if (catalog_has_copy(c, TIER_LOCAL) && !was_first(scrub, c) &&
            is_older(c, scrub->last_attempt, scrub->last_step + 1))
            next = c;
    }
    return next;
}

/* The newest of the run, while nobody knows of any that it is whole, or NULL. What is being read so
 * is read on: a run that saves faster than this reads would never have one. */
static struct checkpoint *find_newest(const struct scrub *scrub)
{
    struct checkpoint *newest = NULL;
    for (struct checkpoint *c = scrub->run->checkpoints; c && !scrub->has_no_newest; c = c->next) {
        if (catalog_is_read_back(c))
            return NULL;
        if (!catalog_has_copy(c, TIER_LOCAL))
            continue;
        if (!newest || (c == scrub->held && scrub->is_aside))
            newest = c;
    }
    return newest;
}

/* What a tool found damaged, in any run, or NULL. */
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

/* What somebody asked for, then what has waited longest. */
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

/* NULL: of none. */
static void hold(struct scrub *scrub, struct checkpoint *checkpoint)
{
    if (scrub->held)
        scrub->held->is_scrubbed = false;
    scrub->held = checkpoint;
    if (checkpoint)
        checkpoint->is_scrubbed = true;
}

/* It was not read, and this pass will not come to it again. */
static void except(struct run *run, const struct manifest_summary *summary)
{
    scrub_cursor_except(&run->scrubbed, summary->step, summary->attempt);
    run->scrubbed.missed = 1;
}

/* A later start does not know that these are damaged: there was an error and no proof. */
static void except_doubtful(struct run *run)
{
    for (const struct checkpoint *c = run->checkpoints; c; c = c->next)
        if (c->damaged && !c->damage_is_proven)
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
    scrub->state.passes++;
    scrub->must_save = true;
    log_info("scrub",
             "run %s: every checkpoint was read; since ckptd's start %" PRIu64 " checkpoints, "
             "%" PRIu64 " bytes, %" PRIu64 " damaged",
             scrub->run->name, scrub->state.checkpoints, scrub->state.bytes, scrub->state.damaged);
}

/* ---- jobs ---- */

/* Until the next thing to do; nothing is under way. */
static void wait_ms(struct scrub *scrub, int64_t ms)
{
    scrub->is_working = false;
    loop_timer(scrub->service->loop, &scrub->timer, ms);
}

static void saved(struct event *event)
{
    struct scrub *scrub = CONTAINER_OF(event, struct scrub, job.done);
    if (scrub->fault.code != 0)
        log_warn("scrub", "run %s: where the scrub stands could not be kept: %s", scrub->run->name,
                 scrub->fault.message);
    scrub->saved_ms = loop_now_ms();
    scrub->must_save = false;
    if (scrub->run->scrubbed.begun == 0) /* its pass is over */
        scrub->run = NULL;
    wait_ms(scrub, 0);
}

static void start_job(struct scrub *scrub, void (*work)(struct job *), void (*done)(struct event *))
{
    scrub->fault = (struct fault){0};
    scrub->job = (struct job){.work = work, .done.run = done};
    scrub->is_working = true;
    loop_work(scrub->service->loop, &scrub->job);
}

/* The worker met an error: is it the checkpoint's? */
static void judge(struct scrub *scrub)
{
    const struct fault *fault = &scrub->fault;
    struct checkpoint *checkpoint =
        catalog_find(scrub->read_run, scrub->summary.step, scrub->summary.attempt);
    if (!checkpoint || strcmp(checkpoint->summary.nonce, scrub->summary.nonce) != 0)
        return; /* removed while it was read */
    checkpoint->is_suspect = false;
    if (fault->code != ERR_CORRUPT && fault->code != ERR_NOT_FOUND && fault->code != ERR_IO) {
        log_warn("scrub", "run %s, step %" PRIu64 " was not read: %s", scrub->read_run->name,
                 scrub->summary.step, fault->message);
        if (!scrub->is_aside)
            except(scrub->run, &scrub->summary);
        scrub->has_no_newest |= scrub->is_aside; /* the pass comes to it */
        return;
    }
    scrub->state.damaged++;
    if (!checkpoint->damaged)
        catalog_damage(checkpoint, TIER_LOCAL, fault);
}

/* Every block was as its checksum says: retention may count on it, and List says so. What was read
 * aside says nothing of those before it: it has a note of its own. */
static void note_proven(struct scrub *scrub)
{
    struct scrub_cursor *cursor = &scrub->read_run->scrubbed;
    const struct manifest_summary *summary = &scrub->summary;
    struct checkpoint *checkpoint = catalog_find(scrub->read_run, summary->step, summary->attempt);
    if (!checkpoint || strcmp(checkpoint->summary.nonce, summary->nonce) != 0)
        return;
    checkpoint->is_suspect = false;
    if (scrub->is_aside) {
        checkpoint->copies.local.proven = time(NULL);
        return;
    }
    except_doubtful(scrub->run);
    if (!is_older(checkpoint, cursor->proven_attempt, cursor->proven_step)) {
        cursor->proven_attempt = summary->attempt;
        cursor->proven_step = summary->step;
    }
}

static void move_cursor(struct scrub *scrub, bool is_over)
{
    struct scrub_cursor *cursor = &scrub->run->scrubbed;
    cursor->shard = scrub->at.shard;
    cursor->block = scrub->at.block;
    if (is_over) {
        cursor->step = scrub->summary.step + 1; /* the next of this attempt, or of a later one */
        cursor->shard = cursor->block = 0;
    }
    if (is_over || loop_now_ms() - scrub->saved_ms >= CURSOR_MS)
        scrub->must_save = true;
}

static void was_read(struct event *event)
{
    struct scrub *scrub = CONTAINER_OF(event, struct scrub, job.done);
    bool is_over = scrub->fault.code != 0 || scrub->is_read;
    scrub->state.bytes += scrub->bytes;
    scrub->state.checkpoints += scrub->is_read;
    if (scrub->fault.code != 0)
        judge(scrub);
    else if (scrub->is_read)
        note_proven(scrub);
    if (is_over)
        hold(scrub, NULL);
    if (!scrub->is_aside)
        move_cursor(scrub, is_over);
    int64_t ms = (int64_t)(scrub->bytes * 1000 / (uint64_t)scrub->service->config->scrub_rate);
    wait_ms(scrub, scrub->fault.code != 0 && ms < FAULT_MS ? FAULT_MS : ms);
}

/* The cursor comes to it. */
static void place_cursor(struct scrub_cursor *cursor, const struct manifest_summary *summary)
{
    if (cursor->attempt != summary->attempt || cursor->step != summary->step ||
        cursor->shard >= summary->shards)
        cursor->shard = cursor->block = 0;
    cursor->attempt = summary->attempt;
    cursor->step = summary->step;
    if (cursor->begun == 0)
        cursor->begun = time(NULL);
}

static void start_read(struct scrub *scrub, struct checkpoint *checkpoint, bool is_aside)
{
    const struct manifest_summary *summary = &checkpoint->summary;
    bool goes_on = scrub->manifest && scrub->is_aside == is_aside &&
                   strcmp(scrub->summary.nonce, summary->nonce) == 0;
    if (!is_aside)
        place_cursor(&checkpoint->run->scrubbed, summary);
    if (!goes_on)
        scrub_close_checkpoint(scrub);
    hold(scrub, checkpoint);
    scrub->read_run = checkpoint->run;
    scrub->summary = *summary;
    scrub->is_aside = is_aside;
    scrub->is_read = false;
    if (!is_aside)
        scrub->at = checkpoint->run->scrubbed;
    else if (!goes_on)
        scrub->at = (struct scrub_cursor){0};
    start_job(scrub, scrub_work_read, was_read);
}

/* Somebody waits for the disk or for the workers. */
static bool is_busy(const struct service *service)
{
    for (const struct run *run = service->catalog->runs; run; run = run->next)
        if (run->coordinator->saves || run->coordinator->opening.call)
            return true;
    for (int64_t i = 0; i < service->config->limit_sessions; i++)
        if (service->loads->rows[i].number != 0)
            return true;
    return false;
}

static bool must_yield(struct scrub *scrub)
{
    int64_t now = loop_now_ms();
    if (!is_busy(scrub->service)) {
        scrub->yielded_ms = 0;
        return false;
    }
    if (scrub->yielded_ms == 0)
        scrub->yielded_ms = now;
    if (now - scrub->yielded_ms < YIELD_MS_MAX)
        return true;
    scrub->yielded_ms = now;
    return false;
}

static void go_on(struct timer *timer)
{
    struct scrub *scrub = CONTAINER_OF(timer, struct scrub, timer);
    struct service *service = scrub->service;
    if (service->draining || service->offline[0])
        return;
    if (scrub->is_paused && !scrub->must_save) {
        hold(scrub, NULL);
        return; /* scrub_call goes on */
    }
    if (must_yield(scrub)) {
        wait_ms(scrub, YIELD_MS);
        return;
    }
    if (scrub->must_save) {
        scrub_take_note(&scrub->note, scrub->run);
        start_job(scrub, scrub_work_save, saved);
        return;
    }
    struct checkpoint *suspect = find_suspect(scrub);
    if (suspect) {
        start_read(scrub, suspect, true);
        return;
    }
    if (!scrub->run)
        find_run(scrub);
    if (!scrub->run) {
        int64_t period_ms = 1000 * service->config->scrub_period;
        wait_ms(scrub, period_ms < IDLE_MS_MIN ? IDLE_MS_MIN
                       : period_ms < IDLE_MS   ? period_ms
                                               : IDLE_MS);
        return;
    }
    struct checkpoint *newest = find_newest(scrub);
    struct checkpoint *next = newest ? newest : find_next(scrub);
    if (newest) {
        scrub->first_attempt = newest->summary.attempt;
        scrub->first_step = newest->summary.step;
    }
    if (next) {
        start_read(scrub, next, newest != NULL);
        return;
    }
    hold(scrub, NULL);
    scrub_close_checkpoint(scrub);
    end_pass(scrub);
    wait_ms(scrub, 0);
}

/* ---- life ---- */

int scrub_open(struct service *service)
{
    void *buffer = NULL;
    for (struct run *run = service->catalog->runs; run; run = run->next)
        ERR_TRY(scrub_read_cursor(run));
    if (service->config->scrub_rate == 0)
        return 0;
    struct scrub *scrub = calloc(1, sizeof *scrub);
    if (!scrub || posix_memalign(&buffer, STORAGE_ALIGN, CHECKSUM_BLOCK_BYTES) != 0) {
        free(scrub);
        return report_error(ERR_MEMORY, NULL, "no memory for the scrub");
    }
    scrub->service = service;
    scrub->buffer = buffer;
    scrub->timer.run = go_on;
    service->scrub = scrub;
    wait_ms(scrub, service->config->scrub_start_ms);
    return 0;
}

void scrub_close(struct service *service)
{
    struct scrub *scrub = service->scrub;
    if (!scrub)
        return;
    scrub_close_checkpoint(scrub);
    free(scrub->buffer);
    free(scrub);
    service->scrub = NULL;
}

bool scrub_expect(struct scrub_note *out, struct run *run, const struct manifest_summary *summary)
{
    CHECK(run->adopting != 0);
    if (run->checkpoints || run->scrubbed.number != 0)
        scrub_cursor_brought(&run->scrubbed, summary->step, summary->attempt);
    if (run->scrubbed.number == 0)
        return false; /* nothing on the disk says that anything was read back */
    scrub_take_note(out, run);
    return true;
}

void scrub_brought(struct run *run, const struct manifest_summary *summary)
{
    if (run->scrubbed.last_unread_attempt != 0)
        scrub_cursor_brought(&run->scrubbed, summary->step, summary->attempt);
}

/* ---- what an operator asks for ---- */

static int ask(bool *out_is_elsewhere, struct service *service,
               const Holdfast__V1__ScrubRequest *request)
{
    struct scrub *scrub = service->scrub;
    struct run *run = NULL;
    struct checkpoint *suspect = NULL;
    if (!scrub)
        return report_error(ERR_INVALID, "set it, and start ckptd again",
                            "the scrub is off: scrub.rate is 0");
    if (request->run[0])
        ERR_TRY(run_find(&run, service, request->run, false));
    if (run && request->attempt != 0)
        suspect = catalog_find(run, request->step, request->attempt);
    *out_is_elsewhere = suspect && !catalog_has_copy(suspect, TIER_LOCAL);
    if (suspect && !*out_is_elsewhere)
        suspect->is_suspect = true;
    scrub->is_paused = request->action == HOLDFAST__V1__SCRUB_ACTION__SCRUB_PAUSE;
    log_info("scrub", scrub->is_paused ? "paused" : "started");
    for (struct run *one = service->catalog->runs; one && !scrub->is_paused; one = one->next)
        one->scrub_asked |= !run || one == run;
    if (!scrub->is_working)
        wait_ms(scrub, 0);
    return 0;
}

void scrub_call(struct service *service, struct rpc_call *call,
                const Holdfast__V1__ScrubRequest *request)
{
    Holdfast__V1__ScrubReply reply = HOLDFAST__V1__SCRUB_REPLY__INIT;
    bool is_elsewhere = false;
    int error = service_check_open(service);
    if (error == 0)
        error = ask(&is_elsewhere, service, request);
    reply.elsewhere = is_elsewhere;
    if (error == 0)
        rpc_call_reply(call, &reply.base);
    else
        rpc_call_fail(call, error);
}

bool scrub_is_paused(const struct service *service)
{
    return service->scrub && service->scrub->is_paused;
}

/* How far the pass over the run is: whole checkpoints. */
static void measure_pass(struct scrub_state *out, const struct scrub *scrub)
{
    const struct scrub_cursor *cursor = &scrub->run->scrubbed;
    for (const struct checkpoint *c = scrub->run->checkpoints; c; c = c->next) {
        if (!catalog_has_copy(c, TIER_LOCAL) ||
            !is_older(c, scrub->last_attempt, scrub->last_step + 1))
            continue;
        out->pass_bytes += c->summary.bytes;
        if (is_older(c, cursor->attempt, cursor->step))
            out->pass_bytes_read += c->summary.bytes;
    }
}

void scrub_state(struct scrub_state *out, const struct service *service)
{
    const struct scrub *scrub = service->scrub;
    bool first = true;
    *out = scrub ? scrub->state : (struct scrub_state){0};
    out->run = scrub && scrub->run ? scrub->run->name : "";
    out->doing = !scrub ? "off" : scrub->is_paused ? "paused" : scrub->run ? "reading" : "waiting";
    if (scrub && scrub->run)
        measure_pass(out, scrub);
    if (scrub && scrub->run) {
        out->step = scrub->run->scrubbed.step;
        out->attempt = scrub->run->scrubbed.attempt;
    }
    for (const struct run *run = service->catalog->runs; run; run = run->next) {
        if (run->checkpoints && (first || run->scrubbed.ended < out->ended)) {
            out->ended = run->scrubbed.ended;
            first = false;
        }
    }
}
