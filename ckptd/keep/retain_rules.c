/* retain_rules.c - the rules of the configuration, and when they apply: after a commit, after a
 * save that found no room, once after the start, and after a reload. The local tier comes first, by
 * [retention]; then the far one, by [tier].
 *
 * A checkpoint that the far tier's rules do not keep is not sent there (tiers/queue.c). The best
 * are chosen by their metric, which is in the manifest: so the plan of the local tier reads it,
 * even without such a rule there, and the catalog keeps it. */
#include "ckptd/attempt/attempt.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/policy.h"
#include "ckptd/core/service.h"
#include "ckptd/keep/gc.h"
#include "ckptd/keep/retain_private.h"
#include "ckptd/restore/held.h"
#include "proto/base/report.h"

#include <stdlib.h>
#include <string.h>

#define AGAIN_MS 1000 /* retry interval while rubbish is being removed */

/* True if a plan has begun. */
static bool begin_plan(struct run *run, const struct plan_options *options)
{
    bool has_rule = retain_check(&options->rules) == 0;
    if (!has_rule)
        run->unpruned[options->tier == TIER_FAR] = (struct fault){0};
    if ((!has_rule && !options->only_reads) || run->pruning || run->service->draining)
        return false;
    int error = retain_begin(run, options);
    if (error != 0)
        log_debug("retain", "run %s: %s", run->name, report_line()); /* retried the next time */
    return error == 0;
}

void retain_apply_far(struct run *run)
{
    const struct policy *policy = policy_of(&run->service->policies, run->name);
    const struct plan_options options = {
        .rules = policy_rules(policy, &policy->far), .metric = policy->metric, .tier = TIER_FAR};
    if (tier_has_far(run->service))
        begin_plan(run, &options);
}

void retain_apply(struct run *run)
{
    const struct policy *policy = policy_of(&run->service->policies, run->name);
    struct retain_rules rules = attempt_rules(run);
    struct report_text text;
    report_keep(&text);
    const bool is_for_far = policy->far.best > 0 && tier_has_far(run->service);
    const struct plan_options options = {.rules = rules,
                                         .metric = policy->metric,
                                         .reads_metrics = is_for_far,
                                         .only_reads = is_for_far && retain_check(&rules) != 0};
    run->retain_again = run->pruning != NULL;
    if (!run->retain_again && !begin_plan(run, &options))
        retain_apply_far(run);
    report_restore(&text, 0);
}

/* Rules may have changed since the former ckptd, and a full disk waits for them: without space no
 * commit applies them. Checkpoints that its readers may reopen (restore/held.c) are removed once
 * the readers have not come. */
static void apply_to_all(struct timer *timer)
{
    struct service *service = CONTAINER_OF(timer, struct retention, timer)->service;
    if (gc_is_removing(service)) {
        loop_timer(service->loop, timer, AGAIN_MS);
        return;
    }
    for (struct run *run = service->catalog->runs; run; run = run->next)
        if (run->unreadable.code == 0)
            retain_apply(run);
    if (service->held->timer.armed)
        loop_timer(service->loop, timer, AGAIN_MS);
}

static bool has_rule(const struct policy *policy)
{
    const struct retain_rules local = policy_rules(policy, &policy->local),
                              far = policy_rules(policy, &policy->far);
    return retain_check(&local) == 0 || retain_check(&far) == 0;
}

/* Has any run a rule? */
static bool has_rules(const struct policies *policies)
{
    bool any = has_rule(&policies->all);
    for (uint32_t i = 0; i < policies->num_runs && !any; i++)
        any = has_rule(&policies->runs[i].policy);
    return any;
}

void retain_reloaded(struct service *service)
{
    service->retention->timer.run = apply_to_all;
    loop_timer(service->loop, &service->retention->timer, 0);
}

int retain_open(struct service *service)
{
    struct retention *retention = calloc(1, sizeof *retention);
    if (!retention)
        return report_error(ERR_MEMORY, NULL, "no memory for retention");
    retention->service = service;
    service->retention = retention;
    if (has_rules(&service->policies))
        retain_reloaded(service);
    else
        log_info(
            "retain",
            "no rule is set (retention.keep_last, ...): ckptd removes no checkpoints by itself");
    return 0;
}

void retain_close(struct service *service)
{
    free(service->retention);
    service->retention = NULL;
}
