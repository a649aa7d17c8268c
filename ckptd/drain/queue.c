/* queue.c - what is to drain, read off the catalog for pick.c, which decides. There is no list: the
 * queue is what the tiers hold, what the rules say, and who waits. */
#include "ckptd/drain/queue.h"
#include "ckptd/catalog.h"
#include "ckptd/checkpoint.h"
#include "ckptd/config.h"
#include "ckptd/drain/pick.h"
#include "ckptd/service.h"
#include "proto/report.h"
#include "proto/retain.h"

#include <stdlib.h>
#include <string.h>

static struct pick_rule rule_of(const struct config *config)
{
    enum pick_what what = strcmp(config->tier_what, "all") == 0    ? PICK_ALL
                          : strcmp(config->tier_what, "last") == 0 ? PICK_LAST
                                                                   : PICK_EVERY;
    return (struct pick_rule){what, (uint64_t)config->tier_every};
}

/* Sets is_kept: would the far tier's own rules keep it, were all of the run there? */
static int mark_kept(struct pick_item *items, uint32_t count, const struct run *run)
{
    const struct config *config = run->service->config;
    const struct retain_rules rules = {.keep_last = (uint32_t)config->tier_keep_last,
                                       .keep_every = (uint64_t)config->tier_keep_every,
                                       .keep_within = (uint64_t)config->tier_keep_within,
                                       .may_remove_most = true};
    struct retain_item *plan = calloc(count + 1, sizeof *plan);
    uint32_t i = 0, removed;
    if (!plan)
        return report_error(ERR_MEMORY, NULL, "no memory for a plan");
    for (const struct checkpoint *c = run->checkpoints; c; c = c->next)
        plan[i++] = (struct retain_item){.step = c->summary.step,
                                         .attempt = c->summary.attempt,
                                         .time = retain_time(c->summary.time),
                                         .is_pinned = c->pinned,
                                         .is_damaged = c->damaged};
    bool has_rules = retain_check(&rules) == 0;
    int error = has_rules ? retain_plan(plan, count, &rules, &removed) : 0;
    for (i = 0; i < count; i++)
        items[i].is_kept = !has_rules || plan[i].reasons != 0;
    free(plan);
    return error;
}

/* The run's, in the order of its list, marked; to be freed. NULL: no memory. */
static struct pick_item *make_items(uint32_t *out_count, const struct run *run)
{
    const struct pick_rule rule = rule_of(run->service->config);
    uint32_t count = 0, i = 0;
    for (const struct checkpoint *c = run->checkpoints; c; c = c->next)
        count++;
    struct pick_item *items = calloc(count + 1, sizeof *items);
    for (const struct checkpoint *c = run->checkpoints; c && items; c = c->next)
        items[i++] = (struct pick_item){.step = c->summary.step,
                                        .is_local = catalog_has_copy(c, TIER_LOCAL) && !c->damaged,
                                        .is_far = c->copies[TIER_FAR].is_there,
                                        .is_wanted = c->is_wanted_far,
                                        .is_given_up = c->given_up[0] != '\0'};
    if (items && mark_kept(items, count, run) != 0) {
        free(items);
        items = NULL;
    }
    if (items)
        pick_mark(&rule, items, count);
    *out_count = count;
    return items;
}

/* What of the run goes next, or NULL. */
static struct checkpoint *next_of_run(const struct run *run, uint64_t *out_left,
                                      uint64_t *out_left_bytes)
{
    uint32_t count, left = 0;
    struct pick_item *items = make_items(&count, run);
    int64_t next = items ? pick_next(items, count, &left) : -1; /* without memory: the next look */
    free(items);
    struct checkpoint *found = run->checkpoints;
    for (int64_t at = 0; at < next; at++)
        found = found->next;
    *out_left += left;
    if (next >= 0)
        *out_left_bytes += left * found->summary.bytes;
    return next >= 0 ? found : NULL;
}

void queue_plan(struct run *run)
{
    uint32_t count, i = 0;
    struct pick_item *items = tier_has_far(run->service) ? make_items(&count, run) : NULL;
    /* Without memory all are to go: none is removed for want of it. */
    for (struct checkpoint *c = run->checkpoints; c; c = c->next, i++)
        c->goes_far = tier_has_far(run->service) && (!items || items[i].goes);
    free(items);
}

static bool is_before(const struct checkpoint *a, const struct checkpoint *b)
{
    if (a->is_wanted_far != b->is_wanted_far)
        return a->is_wanted_far;
    return strcmp(a->summary.time, b->summary.time) > 0; /* the newest of all runs */
}

struct checkpoint *queue_next(const struct service *service, uint64_t *out_left,
                              uint64_t *out_left_bytes)
{
    struct checkpoint *best = NULL;
    *out_left = *out_left_bytes = 0;
    for (const struct run *run = service->catalog->runs; run; run = run->next) {
        struct checkpoint *found = next_of_run(run, out_left, out_left_bytes);
        if (found && (!best || is_before(found, best)))
            best = found;
    }
    return best;
}
