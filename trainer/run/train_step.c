/* train_step.c - one training step of a rank (see train_step.h). */
#include "trainer/run/train_step.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/comm/comm.h"
#include "trainer/comm/flight.h"
#include "trainer/plan/schedule.h"
#include "trainer/run/optimizer.h"
#include "trainer/run/replay.h"
#include "trainer/run/timeouts.h"
#include "trainer/run/trace.h"

/* A step under way, and the progress after it. */
struct step_made {
    struct rank *r;
    struct progress next;
    bool is_skipped;  /* its numbers are not finite, or out of line: no update */
    bool is_too_late; /* no time to save it: no update, and the step is not made */
};

/* Decides whether a step updates the weights if its numbers are not finite or out of line. */
static int decide_update(struct step_made *made)
{
    struct rank *r = made->r;
    struct step_break at;
    enum step_kind kind = breaks_classify(&r->breaks, &made->next);
    made->is_skipped = kind == STEP_OUTLYING || kind == STEP_NONFINITE;
    if (kind == STEP_WARNED || kind == STEP_OUTLYING)
        metrics_outlier(r->metrics, made->next.step, &r->breaks.outlier);
    if (kind == STEP_OUTLYING)
        ERR_TRY(breaks_decide_outlier(&r->breaks, &made->next));
    if (kind == STEP_NONFINITE) {
        ERR_TRY(parallel_find_break(r->parallel, &at));
        ERR_TRY(breaks_decide(&r->breaks, &made->next, &at));
    }
    const struct broken_step *last = &r->breaks.last;
    if (made->is_skipped && last->step == made->next.step && !last->is_rolled_back)
        metrics_left_out(r->metrics, last);
    return 0;
}

/* Called when loss and norm are known. */
static int decide(void *user, const struct step_result *result)
{
    struct step_made *made = user;
    struct rank *r = made->r;
    struct progress *next = &made->next;
    const struct config *config = r->config;
    double lr = schedule_lr(config, next->schedule_update);
    uint64_t samples = trainer_config_samples(config, next->step);
    next->step++;
    next->schedule_update++;
    next->next_sample += samples;
    next->tokens += samples * (uint64_t)config->seq_len;
    next->loss = result->loss;
    next->grad_norm = result->grad_norm;
    next->tokens_digest = result->tokens_digest;
    if (config->replay_blame && next->step == config->replay_step)
        ERR_TRY(replay_blame(r, next));
    if (result->stop || (result->seen & SWITCHES_STOP)) {
        bool has_time;
        ERR_TRY(snapshot_has_time(r->snapshot, &has_time));
        made->is_skipped = made->is_too_late = !has_time;
        if (!has_time)
            return 0;
    }
    ERR_TRY(decide_update(made));
    if (made->is_skipped)
        return 0;
    next->optimizer_update++;
    snapshot_phase(r->snapshot, true); /* the update is limited by memory bandwidth */
    optimizer_begin(parallel_state(r->parallel), parallel_lane(r->parallel), config,
                    &(struct optimizer_step){next->optimizer_update, lr, next->grad_norm});
    return 0;
}

static void update(void *user, uint32_t block)
{
    const struct step_made *made = user;
    struct rank *r = made->r;
    if (!made->is_skipped)
        optimizer_update(parallel_state(r->parallel), r->kernels, parallel_lane(r->parallel),
                         block);
}

static bool post_copy(void *user, uint32_t block, const struct op *op)
{
    return snapshot_post_copy(user, block, op);
}

static void wait_copy(void *user, uint32_t block, struct lane *lane)
{
    snapshot_wait_copy(user, block, lane);
}

static unsigned poll_switches(void *user)
{
    const struct step_made *made = user;
    struct switches *switches = &made->r->switches;
    struct snapshot *snapshot = made->r->snapshot;
    unsigned seen = snapshot_asked(snapshot);
    seen |= switches_memory_is_short(switches) ? SWITCH_MEMORY : 0;
    if (made->r->world->rank == 0) {
        seen |= switches_poll(switches, snapshot_times(snapshot)->longest_save_seconds);
        seen |= snapshot_is_due(snapshot, made->r->progress.step + 1) ? SWITCH_SAVE : 0;
    }
    return seen;
}

int train_step(struct rank *r, struct step_result *out, bool *out_stop)
{
    if (r->progress.step + 1 == r->config->replay_step)
        replay_as_first_made(r);
    struct step_made made = {.r = r, .next = r->progress};
    made.next.next_sample = jumps_pass(&r->progress.jumps, r->progress.next_sample);
    struct step_copies copies = {post_copy, wait_copy, r->snapshot};
    struct step_input input = {.ahead = r->ahead,
                               .first_sample = made.next.next_sample,
                               .step = r->progress.step + 1,
                               .want_stop = r->want_stop,
                               .poll_switches = poll_switches,
                               .decide = decide,
                               .update = update,
                               .user = &made,
                               .copies = &copies};
    timeouts_set(r->world->flight, r->config, r->has_stepped ? TIMEOUT_TRAIN : TIMEOUT_INIT);
    snapshot_begins_step(r->snapshot, r->progress.step + 1);
    if (r->world->flight != NULL)
        flight_clear_sums(r->world->flight);
    double began = clock_seconds(), called = flight_called_seconds(r->world->flight);
    int rc = trace_step(r->trace, r->parallel, &input, out);
    if (r->has_stepped) /* the first step warms up */
        stragglers_add(&r->stragglers, clock_seconds() - began,
                       flight_called_seconds(r->world->flight) - called);
    timeouts_set(r->world->flight, r->config, TIMEOUT_SERVER);
    r->has_stepped = true;
    snapshot_phase(r->snapshot, false);
    ERR_TRY(rc);
    *out_stop = out->stop || (out->seen & SWITCHES_STOP);
    out->is_dropped = out->is_dropped || made.is_too_late;
    if (out->is_dropped)
        return 0;
    parallel_params_updated(r->parallel);
    if (r->breaks.bad.count > 0)
        return rank_roll_back(r);
    r->progress = made.next;
    return 0;
}

int train_step_made(struct rank *r, const struct step_result *result)
{
    struct straggler late;
    metrics_step(r->metrics, &r->progress, result, snapshot_times(r->snapshot));
    timeouts_set(r->world->flight, r->config, TIMEOUT_TRAIN); /* this step has no waits for ckptd */
    int rc =
        stragglers_compare(&r->stragglers, parallel_mesh_of(r->parallel), r->progress.step, &late);
    timeouts_set(r->world->flight, r->config, TIMEOUT_SERVER);
    ERR_TRY(rc);
    if (late.num_late > 0)
        metrics_straggler(r->metrics, r->progress.step, &late);
    return 0;
}
