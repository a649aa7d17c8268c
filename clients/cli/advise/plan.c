/* plan.c - the decisions of advise (see plan.h). */
#include "clients/cli/advise/plan.h"

#include <math.h>

#define COUNT_MAX 1e9 /* checkpoints; ckptd takes no more of a rule */

/* ---- failures ---- */

/* Did its ranks leave with a save, or when that was copied? */
static bool has_ended(const struct plan_failures *failures)
{
    return failures->ended != 0 && failures->saved != 0 &&
           failures->ended - failures->saved <= PLAN_END_SECONDS;
}

/* `is_followed`: another start came after it. */
static void end_start(struct plan_failures *failures, bool is_followed)
{
    if (failures->begin == 0)
        return;
    failures->trained += (double)(failures->last - failures->begin);
    failures->lost += failures->is_lost;
    failures->unexplained +=
        is_followed && !failures->is_lost && !failures->is_stopped && !has_ended(failures);
    failures->begin = 0;
}

/* A save long after the end: the ranks had left a ckptd that was restarted. */
static void note_save(struct plan_failures *failures, int64_t at)
{
    if (failures->ended != 0 && at - failures->ended > PLAN_END_SECONDS)
        failures->ended = 0;
    failures->saved = at;
}

void plan_failures_note(struct plan_failures *failures, enum plan_event event, int64_t at)
{
    if (event == PLAN_OTHER || at <= 0)
        return;
    if (event == PLAN_START)
        end_start(failures, true);
    if (failures->begin == 0) {
        failures->begin = failures->last = at;
        failures->saved = failures->ended = 0;
        failures->is_lost = failures->is_stopped = false;
        failures->starts++;
    }
    if (event == PLAN_SAVE)
        note_save(failures, at);
    else if (event == PLAN_COPY && failures->ended == 0)
        failures->saved = at;
    else if (event == PLAN_END)
        failures->ended = at;
    if (at > failures->last && event != PLAN_STOP && event != PLAN_COPY)
        failures->last = at;
    failures->is_lost |= event == PLAN_LOST && !failures->is_stopped;
    failures->is_stopped |= event == PLAN_STOP;
}

void plan_failures_end(struct plan_failures *failures)
{
    end_start(failures, false);
}

double plan_failures_mean(const struct plan_failures *failures, bool *out_is_assumed)
{
    uint64_t count = failures->lost + failures->unexplained;
    *out_is_assumed = count == 0 && failures->starts > 0;
    if (count > 0)
        return failures->trained / (double)count;
    return failures->starts > 0 ? fmax(failures->trained, PLAN_FAILURE_MIN) : 0;
}

/* ---- retention ---- */

double plan_full(const struct plan_disk *disk, double interval)
{
    return disk->room >= 0 && interval > 0 ? (disk->room + disk->trash) / disk->bytes * interval
                                           : -1;
}

struct plan_retention plan_retention(const struct plan_disk *disk)
{
    const double least = PLAN_KEEP_MIN, beside = 1 + PLAN_KEPT_BESIDE; /* 1: the one being saved */
    const double enough = fmin(fmax(ceil(PLAN_REACH / disk->interval) + 1, least), COUNT_MAX);
    double all = disk->room + disk->held + disk->trash;
    double fit = fmin(floor(all / disk->bytes), COUNT_MAX), keep = enough;
    struct plan_retention plan = {.is_limited = disk->room >= 0, .has_space = true};
    if (plan.is_limited) {
        plan.fit = (uint64_t)fit;
        plan.has_space = fit >= least + 1;
        plan.missing = plan.has_space ? 0 : (least + 1) * disk->bytes - all;
        keep = fmin(enough, fmax(fit - beside, least));
        plan.trash = fmin(fmax(fit - beside - keep, 0) * disk->interval, PLAN_REACH);
    }
    plan.keep_last = (uint64_t)keep;
    plan.reach = (keep - 1) * disk->interval;
    plan.full = plan_full(disk, disk->interval);
    return plan;
}

/* ---- copies ---- */

/* A tier that is slower than the saves copies only the newest: one copy may just have begun when a
 * newer save comes, and is followed by that one's. */
static double lost_with(const struct plan_tier *tier, double interval)
{
    if (!tier->is_there)
        return -1;
    return interval + (tier->copy <= interval ? 1 : 2) * tier->copy;
}

struct plan_copies plan_copies(const struct plan_copying *copying)
{
    const struct plan_tier *peer = &copying->peer, *far = &copying->far;
    struct plan_copies plan = {
        .lost = {[PLAN_LOCAL] = copying->trained,
                 [PLAN_PEER] = lost_with(peer, copying->interval),
                 [PLAN_FAR] = lost_with(far, copying->interval)},
        .is_every = far->copy <= copying->interval,
        .replicas = copying->replicas > 2 ? copying->replicas : 2,
        .is_there = true,
    };
    bool can_peer = peer->is_there && peer->copy < copying->failures;
    bool can_far = far->is_there && far->copy < copying->failures;
    if (can_peer && (!can_far || plan.lost[PLAN_PEER] <= plan.lost[PLAN_FAR])) {
        plan.place = PLAN_PEER;
    } else if (can_far) {
        plan.place = PLAN_FAR;
    } else if (peer->is_there || far->is_there) {
        plan.place = PLAN_LOCAL;
        plan.is_slow = true;
    } else if (copying->trained > copying->interval) {
        plan.place = copying->has_nodes ? PLAN_PEER : PLAN_FAR;
        plan.is_there = false;
    }
    return plan;
}
