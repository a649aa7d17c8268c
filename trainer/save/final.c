/* final.c - the last save, and the time for it (see snapshot.h).
 *
 * Pending saves and the last save share checkpoint.final_seconds, by rank 0's clock. This time
 * begins with the last save, or when rank 0 is asked to stop while it waits for another save. A
 * call of libckpt that has begun is not interrupted (ckpt.h has its bounds). The trainer tries the
 * last save until it is durable or the time is over. Temporary errors (no free image, no ckptd) may
 * occur any number of times, other errors FINAL_TRIES times. With checkpoint.durability = "bucket"
 * the trainer also waits, in the same time, until ckptd has the checkpoint in its remote tier.
 *
 * A request to stop may have a grace time (grace.h). It limits checkpoint.final_seconds. The
 * trainer begins a last save only if the longest save of this start fits into the remaining time.
 * Otherwise it only waits for saves that ckptd has accepted, and makes no further step
 * (snapshot_has_time). */
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/config/switches.h"
#include "trainer/save/grace.h"
#include "trainer/save/private.h"

#include <inttypes.h>
#include <math.h>

#define DURABLE_SECONDS 600.0 /* for one save; after that it has failed */
#define FINAL_PAUSE_AT_LEVEL 0.05
#define FINAL_TRIES 10              /* errors of the last save that are not temporary */
#define FINAL_PAUSE_SECONDS_MIN 1.0 /* between two tries, doubling */
#define FINAL_PAUSE_SECONDS_MAX 4.0

/* ---- deadlines ---- */

/* The grace time left for this rank; INFINITY: no limit. */
static double own_grace_left(const struct snapshot *s)
{
    double asked_at = s->asked_at != NULL ? s->asked_at() : 0;
    double left = grace_left(asked_at, (double)s->config->grace_seconds, clock_seconds());
    return s->ckpt != NULL ? fmin(left, ckpt_asked_within(s->ckpt)) : left;
}

static void begin_end(struct snapshot *s)
{
    double now = clock_seconds();
    if (s->deadline == 0)
        s->deadline = now + (double)s->config->final_seconds;
    s->deadline = fmin(s->deadline, now + own_grace_left(s));
}

double snapshot_seconds_left(struct snapshot *s, double start)
{
    if ((s->want_stop != NULL && *s->want_stop != 0) || (snapshot_asked(s) & SWITCHES_STOP) != 0)
        begin_end(s);
    return fmax(0, (s->deadline != 0 ? s->deadline : start + DURABLE_SECONDS) - clock_seconds());
}

/* All ranks agree on the time by which the run should have ended. */
static int agree_on_grace(struct snapshot *s)
{
    double left = own_grace_left(s);
    ERR_TRY(grace_agree(s->mesh->world, &left));
    s->grace_end = clock_seconds() + left;
    return 0;
}

/* Rank 0: the duration of the longest save of this start until it had checkpoint.durability, or of
 * an unfinished save so far. */
static double longest_save(struct snapshot *s)
{
    snapshot_poll_pending(s);
    double now = clock_seconds(), longest = s->times.longest_save_seconds;
    if (s->num_pending > 0)
        longest = fmax(longest, now - s->pending[0].since);
    return s->spreading.step >= 0 ? fmax(longest, now - s->spreading.since) : longest;
}

/* All ranks: ERR_TIMEOUT if a save begun now ends too late. */
static int check_time(struct snapshot *s, double end)
{
    uint32_t first;
    bool is_over = false;
    if (snapshot_is_rank_0(s))
        is_over = !grace_allows(end - clock_seconds(), isinf(s->grace_end) ? 0 : longest_save(s));
    return parallel_agree_quietly(s->mesh->world, is_over ? ERR_TIMEOUT : 0, &first);
}

int snapshot_has_time(struct snapshot *s, bool *out)
{
    *out = true;
    if (!snapshot_is_taken(s))
        return 0;
    ERR_TRY(agree_on_grace(s));
    if (isinf(s->grace_end))
        return 0;
    int rc = check_time(s, s->grace_end);
    *out = rc == 0;
    return rc == ERR_TIMEOUT ? 0 : rc;
}

/* ---- the last save ---- */

/* Tries the last save once, until it is durable or has failed. If the step is committed or being
 * written already, it only waits: an answer of ckptd may have been lost. */
static int try_final(struct snapshot *s, const struct progress *p)
{
    int rc = snapshot_begin_save(s, p, clock_seconds());
    if (rc == 0)
        rc = snapshot_end_copy(s);
    else if (rc == ERR_EXISTS)
        snapshot_add_pending(s, p->step, clock_seconds());
    return rc == 0 || rc == ERR_EXISTS ? snapshot_wait_pending(s) : rc;
}

/* True for a temporary error, which says nothing about the save. */
static bool may_pass(int rc)
{
    return rc == ERR_BUSY || rc == ERR_UNAVAILABLE || rc == ERR_TIMEOUT;
}

/* Rank 0: waits until the last checkpoint has its configured durability. */
static int await_level(struct snapshot *s, int64_t step)
{
    int rc = ERR_TIMEOUT;
    log_info("checkpoint", "waiting for step %" PRId64 " to be durable (%s), at most %.0f s", step,
             s->config->text.durability, snapshot_seconds_left(s, clock_seconds()));
    while (may_pass(rc) && clock_seconds() < s->deadline) {
        rc = ckpt_save_wait_for(s->ckpt, (uint64_t)step, snapshot_level(s), ASK_MS);
        if (may_pass(rc) && rc != ERR_TIMEOUT)
            clock_sleep(FINAL_PAUSE_AT_LEVEL);
    }
    if (rc == 0)
        log_info("checkpoint", "step %" PRId64 " is durable (%s)", step,
                 ckpt_save_durability(s->ckpt));
    return rc;
}

/* All ranks; call when the last checkpoint is durable on the node. */
static int end_at_level(struct snapshot *s, int64_t step)
{
    uint32_t first;
    if (snapshot_level(s) == CKPT_LEVEL_LOCAL)
        return 0;
    int rc = snapshot_is_rank_0(s) ? await_level(s, step) : 0;
    if (rc != 0)
        rc = report_error(err_retry(rc) ? rc : ERR_ABORTED, "start the run again",
                          "the last checkpoint, of step %" PRId64
                          ", is on the node's disk, but not durable as checkpoint.durability = "
                          "\"%s\" requires: %s",
                          step, s->config->text.durability, report_line());
    return parallel_agree_quietly(s->mesh->world, rc, &first);
}

/* Waits until the last checkpoint is durable. `rc`: the result of the last try. */
static int save_last(struct snapshot *s, const struct progress *p, int rc)
{
    double pause = FINAL_PAUSE_SECONDS_MIN;
    for (int tries = 0; tries < FINAL_TRIES && s->durable_step != p->step;
         tries += may_pass(rc) ? 0 : 1) {
        int over = check_time(s, s->deadline);
        if (over != 0)
            return over;
        rc = try_final(s, p);
        if (rc == ERR_STALE)
            return rc;
        if (rc == 0)
            continue;
        clock_sleep(pause);
        pause = fmin(2 * pause, FINAL_PAUSE_SECONDS_MAX);
    }
    return rc;
}

static int fail_last(const struct snapshot *s, int64_t step, int rc)
{
    bool is_late = clock_seconds() >= s->deadline || rc == ERR_TIMEOUT;
    rc = report_error(err_retry(rc) ? rc : ERR_ABORTED, "start the run again when ckptd can save",
                      "the last checkpoint, of step %" PRId64 ", could not be saved%s", step,
                      !is_late              ? ""
                      : isinf(s->grace_end) ? " within checkpoint.final_seconds"
                                            : " before the deadline");
    if (!snapshot_is_rank_0(s))
        report_clear(); /* report it once */
    return rc;
}

/* The time does not suffice to save the step: no save is begun. */
static void leave_unsaved(struct snapshot *s, int64_t step)
{
    if (snapshot_is_rank_0(s))
        log_warn(
            "checkpoint",
            "step %" PRId64
            " is not saved: %.1f s are left until the deadline, and the longest save took %.1f s",
            step, s->grace_end - clock_seconds(), longest_save(s));
}

/* Call before the last save of the run's last step: leaves moments out if the configuration says
 * so. */
static int drop_moments(struct snapshot *s, int64_t step)
{
    if (!s->config->last_save_model_only || step != s->config->steps)
        return 0;
    if (snapshot_is_rank_0(s))
        log_warn("checkpoint", "the last checkpoint will have no optimizer state "
                               "(checkpoint.last_save_model_only)");
    return snapshot_leave_moments_out(s);
}

int snapshot_save_final(struct snapshot *s, const struct progress *p)
{
    if (!snapshot_is_taken(s))
        return 0;
    snapshot_measure_step(s, p->step);
    ckpt_save_last(s->ckpt);
    ERR_TRY(agree_on_grace(s));
    begin_end(s);
    s->deadline = fmin(s->deadline, s->grace_end);
    int rc = snapshot_end_copy(s);
    if (rc == ERR_STALE)
        return rc;
    rc = snapshot_wait_pending(s);
    if (s->durable_step == p->step)
        return end_at_level(s, p->step);
    int late = isinf(s->grace_end) ? 0 : check_time(s, s->deadline);
    if (late == ERR_TIMEOUT) {
        leave_unsaved(s, p->step);
        return 0;
    }
    ERR_TRY(late);
    ERR_TRY(snapshot_compare(s, p->step));
    ERR_TRY(drop_moments(s, p->step));
    rc = save_last(s, p, rc);
    if (rc == ERR_STALE)
        return rc;
    return s->durable_step == p->step ? end_at_level(s, p->step) : fail_last(s, p->step, rc);
}
