/* scrub.c - the scrub of a tier: ckptd reads its committed checkpoints again once per
 * scrub.period_s, at scrub.rate, and compares each block with its checksum. The node's own disk has
 * a scrub, and so has the far tier.
 *
 *   timer ──► choose the next ──► worker: leased; manifest, table and shard opened if they are
 *     ▲                           │     not; some blocks read and hashed (scrub_read.c)
 *     └── after the pause that ───┴──► damage: catalog_damage(), and another tier mends it; else
 *         scrub.rate requires          the place is stored, so that the next ckptd continues there
 *
 * The tier's order chooses the next checkpoint and stores the place: passes over a run on the disk
 * (scrub_pass.c); in the far tier, which others read as well, the copy that was verified longest
 * ago (scrub_log.c).
 *
 * It reads into its own buffer, one read at a time, and never through the pool, so it takes no
 * memory from others. On the disk it pauses while a save is in work or a load is open, but for at
 * most YIELD_MS_MAX before each job, so that it progresses slowly in a busy ckptd.
 *
 * Neither retention nor a prune removes the checkpoint that is being read. Else a run that saves
 * and removes faster than the scrub reads never has a verified checkpoint, and the rule that keeps
 * the last of those keeps nothing. In the far tier a lease keeps other nodes' retention from it; a
 * checkpoint that they removed before is no damage. The identity of the store is checked before
 * each checkpoint and each note (core/store_identity.c): checkpoints missing in another store are
 * no damage either. A tier that does not answer is tried again later.
 *
 * An operator can start a pass at once, of one run or of all that have checkpoints, or pause the
 * scrub of all tiers until the next start of it or of ckptd. When paused it holds no checkpoint;
 * its place is stored. */
#include "ckptd/scrub/scrub.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/restore/loads.h"
#include "ckptd/scrub/scrub_private.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "storage/store/store.h"

#include <jansson.h>

#include <inttypes.h>
#include <stdlib.h>

#define IDLE_MS_MIN 200    /* between two searches for a checkpoint that is due, at least */
#define YIELD_MS 200       /* between two checks whether ckptd is idle */
#define YIELD_MS_MAX 10000 /* then it continues anyway */
#define FAULT_MS 500       /* after an error, which may affect all checkpoints */

/* ---- turns ---- */

static void end_turn(struct scrub *scrub)
{
    catalog_unlease(scrub->turn.checkpoint);
    scrub->turn = (struct scrub_turn){0};
}

static void closed(struct event *event)
{
    struct scrub *scrub = CONTAINER_OF(event, struct scrub, job.done);
    scrub->order->was_read(scrub, SCRUB_STOPPED);
    end_turn(scrub);
    scrub_wait(scrub, 0);
}

/* Is the worker's error one of the checkpoint? */
static enum scrub_outcome outcome_of(const struct scrub *scrub)
{
    int code = scrub->fault.code;
    if (code == 0)
        return scrub->is_read ? SCRUB_WHOLE : SCRUB_GOES_ON;
    bool is_damage = code == ERR_CORRUPT || code == ERR_NOT_FOUND ||
                     (code == ERR_IO && !scrub->order->is_shared);
    return is_damage && !scrub->proves_nothing ? SCRUB_DAMAGED : SCRUB_UNREAD;
}

static void was_read(struct event *event)
{
    struct scrub *scrub = CONTAINER_OF(event, struct scrub, job.done);
    struct checkpoint *checkpoint = scrub->turn.checkpoint;
    enum scrub_outcome outcome = outcome_of(scrub);
    scrub->bytes_read += scrub->bytes;
    scrub->checkpoints_read += outcome == SCRUB_WHOLE;
    scrub->damaged += outcome == SCRUB_DAMAGED;
    scrub->order->was_read(scrub, outcome);
    if (outcome == SCRUB_DAMAGED && catalog_has_copy(checkpoint, scrub->order->tier))
        catalog_damage(checkpoint, scrub->order->tier, &scrub->fault);
    if (outcome == SCRUB_UNREAD)
        log_warn("scrub", "run %s, step %" PRIu64 " was not read%s: %s", checkpoint->run->name,
                 checkpoint->summary.step, scrub->order->where, scrub->fault.message);
    if (outcome != SCRUB_GOES_ON)
        end_turn(scrub);
    scrub->rest_ms = (int64_t)(scrub->bytes * 1000 / (uint64_t)scrub->service->config->scrub_rate);
    if (scrub->fault.code != 0 && scrub->rest_ms < FAULT_MS)
        scrub->rest_ms = FAULT_MS;
    scrub_wait(scrub, 0);
}

static void start_read(struct scrub *scrub, struct scrub_turn turn)
{
    if (!scrub->turn.checkpoint) {
        scrub->turn = turn;
        scrub->summary = turn.checkpoint->summary;
        catalog_lease(turn.checkpoint);
        scrub->order->begin(scrub);
    }
    scrub->bytes = 0;
    scrub->is_read = scrub->proves_nothing = false;
    scrub_start_job(scrub, scrub_work_read, was_read);
}

/* ---- the next step ---- */

/* True if a client waits for the disk or the workers. */
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
    int64_t now = clock_ms();
    if (scrub->order->is_shared || !is_busy(scrub->service)) {
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

static void rest(struct scrub *scrub)
{
    int64_t ms = 1000 * scrub->service->config->scrub_period, most = scrub->order->idle_ms;
    scrub->rests = true;
    scrub_wait(scrub, ms < IDLE_MS_MIN ? IDLE_MS_MIN : ms < most ? ms : most);
}

static void continue_scrub(struct timer *timer)
{
    struct scrub *scrub = CONTAINER_OF(timer, struct scrub, timer);
    struct service *service = scrub->service;
    bool is_paused = service->scrub->is_paused;
    struct scrub_turn next = {0};
    scrub->rests = false;
    if (service->draining || service->offline[0])
        return;
    if (service->tiers[scrub->order->tier].offline[0] && !scrub->turn.checkpoint) {
        rest(scrub);
        return;
    }
    if (scrub->order->note(scrub))
        return;
    if (scrub->rest_ms > 0 && !is_paused) {
        scrub_wait(scrub, scrub->rest_ms);
        scrub->rest_ms = 0;
        return;
    }
    if (!is_paused)
        next = scrub->order->next(scrub);
    if (scrub->turn.checkpoint &&
        (scrub->turn.checkpoint != next.checkpoint || scrub->turn.is_aside != next.is_aside))
        scrub_start_job(scrub, scrub_work_close, closed);
    else if (scrub->must_keep)
        scrub_wait(scrub, 0);
    else if (!next.checkpoint)
        rest(scrub);
    else if (must_yield(scrub))
        scrub_wait(scrub, YIELD_MS);
    else
        start_read(scrub, next);
}

/* ---- life ---- */

static int open_order(struct scrub **out, struct service *service, const struct scrub_order *order)
{
    void *buffer = NULL;
    struct scrub *scrub = calloc(1, sizeof *scrub);
    if (!scrub || posix_memalign(&buffer, STORAGE_ALIGN, order->read_bytes) != 0) {
        free(scrub);
        return report_error(ERR_MEMORY, NULL, "no memory for the scrub%s", order->where);
    }
    scrub->order = order;
    scrub->service = service;
    scrub->buffer = buffer;
    scrub->timer.run = continue_scrub;
    scrub->rests = true;
    *out = scrub;
    scrub_wait(scrub, service->config->scrub_start_ms);
    return 0;
}

int scrub_open(struct service *service)
{
    for (struct run *run = service->catalog->runs; run; run = run->next)
        ERR_TRY(store_read_cursor(&run->scrubbed, service->storage, run->name));
    if (service->config->scrub_rate == 0)
        return 0;
    ERR_TRY(open_order(&service->scrub, service, &scrub_pass));
    return tier_has_far(service) ? open_order(&service->far_scrub, service, &scrub_log) : 0;
}

static void close_order(struct scrub *scrub)
{
    if (!scrub)
        return;
    scrub_close_checkpoint(scrub);
    free(scrub->buffer);
    free(scrub);
}

void scrub_close(struct service *service)
{
    close_order(service->scrub);
    close_order(service->far_scrub);
    service->scrub = service->far_scrub = NULL;
}

/* ---- calls of an operator ---- */

static int request_pass(bool *out_is_elsewhere, struct service *service,
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
    if (!scrub->is_working) /* the scrub of the far tier sees it at its next step */
        scrub_wait(scrub, 0);
    return 0;
}

void scrub_call(struct service *service, struct rpc_call *call,
                const Holdfast__V1__ScrubRequest *request)
{
    Holdfast__V1__ScrubReply reply = HOLDFAST__V1__SCRUB_REPLY__INIT;
    bool is_elsewhere = false;
    int error = service_check_open(service);
    if (error == 0)
        error = request_pass(&is_elsewhere, service, request);
    reply.elsewhere = is_elsewhere;
    if (error == 0)
        rpc_call_reply(call, &reply.base);
    else
        rpc_call_fail(call, error);
}

/* In a shared tier it is paused once it holds no checkpoint there and has stored its place. */
static const char *find_doing(const struct scrub *scrub)
{
    bool is_paused = scrub->service->scrub->is_paused;
    if (is_paused && (scrub->rests || !scrub->order->is_shared))
        return "paused";
    return scrub->run || is_paused ? "reading" : "waiting";
}

static json_t *describe(const struct scrub *scrub, uint64_t step)
{
    const struct scrub off = {0};
    const struct scrub *one = scrub ? scrub : &off;
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "doing", scrub ? find_doing(scrub) : "off",
                     "run", one->run ? one->run->name : "", "step", (json_int_t)step, "bytes_read",
                     (json_int_t)one->bytes_read, "checkpoints_read",
                     (json_int_t)one->checkpoints_read, "damaged", (json_int_t)one->damaged);
}

json_t *scrub_describe(const struct service *service)
{
    const struct scrub *scrub = service->scrub;
    json_t *out = describe(scrub, scrub && scrub->run ? scrub->run->scrubbed.step : 0);
    json_t *pass = scrub_pass_describe(service, scrub);
    json_object_update(out, pass);
    json_decref(pass);
    return out;
}

json_t *scrub_describe_far(const struct service *service)
{
    const struct scrub *scrub = service->far_scrub;
    return scrub ? describe(scrub, scrub->run ? scrub->summary.step : 0) : json_null();
}
