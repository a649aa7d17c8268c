/* queue.c - finds in the catalog what may drain, for pick.c, which decides. There is no list: the
 * queue follows from the contents of the tiers, the rules, and the waiting clients.
 *
 * Of hundreds of peers few get a copy. So one pass over the checkpoints finds the copies for all
 * peers: each checkpoint that may be copied names its peers. A scan takes at most OLD_MAX
 * checkpoints that lost nodes had: the others follow when these are sent. */
#include "ckptd/tiers/queue.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/copies.h"
#include "ckptd/core/policy.h"
#include "ckptd/core/service.h"
#include "ckptd/machines/pick.h"
#include "proto/base/array.h"
#include "proto/base/report.h"
#include "proto/format/retain.h"

#include <stdlib.h>
#include <string.h>

static struct pick_rule rule_of(const struct config *config, enum tier_index tier)
{
    if (tier != TIER_FAR) /* is_kept has the answer */
        return (struct pick_rule){PICK_ALL, 0};
    return (struct pick_rule){config->tier_every == 0 ? PICK_LAST : PICK_EVERY,
                              (uint64_t)config->tier_every};
}

/* The rules of the far tier, for a plan of all checkpoints of the run. A checkpoint that is not
 * known to be among the best is not copied; if it turns out to be, it is copied later. While no
 * checkpoint has the metric, the far tier's plan is refused and nothing is removed there: then all
 * are kept. */
static bool rules_of(struct retain_rules *out, const struct run *run)
{
    const struct policy *policy = policy_of(&run->service->policies, run->name);
    bool is_known = true, is_there = false;
    *out = policy_rules(policy, &policy->far);
    out->may_remove_most = true;
    if (retain_check(out) != 0 || out->keep_best == 0)
        return retain_check(out) == 0;
    for (const struct checkpoint *c = run->checkpoints; c; c = c->next) {
        is_known = is_known && (c->metric.is_known || c->damaged);
        is_there = is_there || (c->metric.is_there && !c->damaged);
    }
    if (!is_there)
        out->keep_best = 0;
    if (!is_there && out->keep_last == 0) /* some rule; that many stay in any case */
        out->keep_last = 1;
    return is_there || !is_known;
}

/* Sets is_kept: true if the far tier's own rules kept it, if all of the run were there. */
static int mark_kept(struct pick_item *items, uint32_t count, const struct run *run)
{
    struct retain_rules rules;
    struct retain_item *plan = calloc(count + 1, sizeof *plan);
    uint32_t i = 0, removed;
    if (!plan)
        return report_error(ERR_MEMORY, NULL, "no memory for a plan");
    for (const struct checkpoint *c = run->checkpoints; c; c = c->next)
        plan[i++] = (struct retain_item){.step = c->summary.step,
                                         .attempt = c->summary.attempt,
                                         .time = retain_time(c->summary.time),
                                         .has_metric = c->metric.is_there,
                                         .metric = c->metric.value,
                                         .is_pinned = catalog_pin(c) != NULL,
                                         .is_damaged = c->damaged};
    bool has_rules = rules_of(&rules, run);
    int error = has_rules ? retain_plan(plan, count, &rules, &removed) : 0;
    for (i = 0; i < count; i++)
        items[i].is_kept = !has_rules || plan[i].reasons != 0;
    free(plan);
    return error;
}

bool queue_is_part(const struct checkpoint *checkpoint, enum tier_index tier)
{
    return copies_at(checkpoint, tier)->is_there && copies_at(checkpoint, tier)->is_part;
}

bool queue_is_wanted(const struct checkpoint *checkpoint, enum tier_index tier)
{
    if (tier == TIER_LOCAL) /* another tier serves a damaged or missing copy meanwhile */
        return queue_is_part(checkpoint, tier) && checkpoint->is_wanted_replicated;
    return tier == TIER_FAR ? checkpoint->is_wanted_far : checkpoint->is_wanted_replicated;
}

bool queue_is_damaged(const struct checkpoint *checkpoint, enum tier_index tier)
{
    return !tier_is_peer(tier) && copies_at(checkpoint, tier)->is_there &&
           copies_at(checkpoint, tier)->is_damaged;
}

/* This node has a part of it and fetches the rest: copies to others wait for that. */
static bool fetches_rest(const struct checkpoint *checkpoint)
{
    return queue_is_part(checkpoint, TIER_LOCAL) && copies_goes(checkpoint, TIER_LOCAL);
}

/* The copy is there, or another node gets it. A peer mends its own copies. */
static bool is_served(const struct checkpoint *checkpoint, enum tier_index tier)
{
    const bool is_there = copies_at(checkpoint, tier)->is_there;
    if (queue_is_damaged(checkpoint, tier))
        return false;
    if (tier == TIER_LOCAL && queue_is_part(checkpoint, tier))
        return !fetches_rest(checkpoint);
    if (tier == TIER_LOCAL)
        return is_there || !(checkpoint->is_wanted_local ||
                             copies_is_last_in_memory(checkpoint)); /* replica.M5 */
    if (!tier_is_peer(tier))
        return is_there;
    return catalog_has_whole(checkpoint, tier) || !copies_goes(checkpoint, tier) ||
           (queue_is_part(checkpoint, tier) && fetches_rest(checkpoint));
}

/* Does this node make the copies of this checkpoint? With shards on several nodes the first one's
 * node does; if that is lost, a node that has all shards. A copy that this node has removed is not
 * sent back to it. */
static bool sees_to_copies(const struct checkpoint *checkpoint)
{
    if (!checkpoint->is_led_elsewhere)
        return true;
    unsigned leader = checkpoint->places[0];
    bool is_lost = leader == NUM_TIERS || checkpoint->run->service->tiers[leader].is_lost;
    return is_lost && catalog_has_whole(checkpoint, TIER_LOCAL);
}

/* The nearest other tier that answers and has all shards; NUM_TIERS: none. */
static unsigned whole_elsewhere(const struct checkpoint *checkpoint)
{
    for (uint32_t i = 1; i < copies_count(checkpoint); i++) {
        enum tier_index tier = copies_get(checkpoint, i)->tier;
        if (catalog_has_whole(checkpoint, tier) &&
            !checkpoint->run->service->tiers[tier].offline[0])
            return tier;
    }
    return NUM_TIERS;
}

/* Is there a source for the copy in that tier? A damaged part is mended before it is completed. A
 * checkpoint that ranks load is copied into the local tier after the load: the bytes are in memory
 * then and are not fetched again. */
static bool has_source(const struct checkpoint *checkpoint, enum tier_index tier)
{
    const bool is_damaged = queue_is_damaged(checkpoint, tier);
    if (tier != TIER_LOCAL)
        return catalog_has_copy(checkpoint, TIER_LOCAL) && !checkpoint->damaged &&
               sees_to_copies(checkpoint);
    if (queue_is_part(checkpoint, tier) && !is_damaged)
        return !checkpoint->damaged && sees_to_copies(checkpoint) &&
               copies_out_of_reach(checkpoint) == NUM_TIERS;
    if ((checkpoint->places && !is_damaged) || checkpoint->loads > checkpoint->is_awaited)
        return false;
    return whole_elsewhere(checkpoint) != NUM_TIERS;
}

enum tier_index queue_source(const struct checkpoint *checkpoint, enum tier_index tier)
{
    unsigned whole = whole_elsewhere(checkpoint);
    bool is_from_here = tier != TIER_LOCAL || whole == NUM_TIERS ||
                        (queue_is_part(checkpoint, tier) && !queue_is_damaged(checkpoint, tier));
    return is_from_here ? TIER_LOCAL : (enum tier_index)whole;
}

/* Only the newest checkpoint goes to peers: a lost node costs the time since that one, and older
 * copies there only expire by the peer's own rules. Copies that a lost node had are made again. */
static bool is_to_spread(const struct checkpoint *checkpoint, enum tier_index tier,
                         const struct checkpoint *newest)
{
    bool is_spread = tier_is_peer(tier) || (tier == TIER_LOCAL && queue_is_part(checkpoint, tier));
    return !is_spread || checkpoint == newest || copies_were_lost(checkpoint);
}

/* To choose the nodes for a copy is the most expensive test, so it comes last. */
static struct pick_item make_item(const struct checkpoint *c, enum tier_index tier,
                                  const struct checkpoint *newest)
{
    struct pick_item item = {.step = c->summary.step,
                             .is_local = has_source(c, tier),
                             .is_wanted = queue_is_wanted(c, tier) || queue_is_damaged(c, tier),
                             .is_given_up = copies_at(c, tier)->is_given_up,
                             .is_kept = is_to_spread(c, tier, newest)};
    bool may_go = item.is_local && (item.is_wanted || item.is_kept);
    item.is_far = !may_go || is_served(c, tier);
    return item;
}

/* The items of the run's checkpoints, in list order, marked. The caller frees them. NULL: no
 * memory. */
static struct pick_item *make_items(uint32_t *out_count, const struct run *run,
                                    enum tier_index tier)
{
    const struct pick_rule rule = rule_of(run->service->config, tier);
    const struct checkpoint *newest = NULL;
    uint32_t count = 0, i = 0;
    for (const struct checkpoint *c = run->checkpoints; c; c = c->next, count++)
        newest = !newest && has_source(c, tier) ? c : newest;
    struct pick_item *items = calloc(count + 1, sizeof *items);
    for (const struct checkpoint *c = run->checkpoints; c && items; c = c->next)
        items[i++] = make_item(c, tier, newest);
    if (items && tier == TIER_FAR && mark_kept(items, count, run) != 0) {
        free(items);
        items = NULL;
    }
    if (items)
        pick_mark(&rule, items, count);
    *out_count = count;
    return items;
}

/* The run's next checkpoint for that tier, or NULL. */
static struct checkpoint *next_of_run(const struct run *run, enum tier_index tier,
                                      uint64_t *out_left, uint64_t *out_left_bytes)
{
    uint32_t count, left = 0;
    struct pick_item *items = make_items(&count, run, tier);
    /* Without memory the next check retries. */
    int64_t next = items ? pick_next(items, count, &left) : -1;
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
    struct pick_item *items = tier_has_far(run->service) ? make_items(&count, run, TIER_FAR) : NULL;
    /* Without memory all count as wanted there, so that none is removed by mistake. */
    for (struct checkpoint *c = run->checkpoints; c; c = c->next, i++)
        c->goes_far = tier_has_far(run->service) && (!items || items[i].goes);
    free(items);
}

/* ---- to peers ---- */

#define OLD_MAX 64u

/* A checkpoint that goes to a peer. */
struct due {
    struct checkpoint *checkpoint;
    uint32_t next; /* next of the same peer: 1 + index; 0: none */
};

struct queue {
    uint32_t scans; /* nested scans in progress */
    struct due *dues;
    uint32_t num_dues, room_dues;
    uint32_t first[NUM_TIERS], last[NUM_TIERS]; /* by peer, as `next` */
};

int queue_open(struct service *service)
{
    service->queue = calloc(1, sizeof *service->queue);
    return service->queue ? 0 : report_error(ERR_MEMORY, NULL, "no memory for a queue");
}

void queue_close(struct service *service)
{
    if (service->queue)
        free(service->queue->dues);
    free(service->queue);
    service->queue = NULL;
}

/* Without memory the next scan retries. */
static void add_due(struct queue *queue, enum tier_index tier, struct checkpoint *checkpoint)
{
    if (array_reserve(&queue->dues, &queue->room_dues, queue->num_dues, sizeof *queue->dues) != 0)
        return;
    queue->dues[queue->num_dues++] = (struct due){.checkpoint = checkpoint};
    if (queue->first[tier] == 0)
        queue->first[tier] = queue->num_dues;
    else
        queue->dues[queue->last[tier] - 1].next = queue->num_dues;
    queue->last[tier] = queue->num_dues;
}

/* False: no peer gets it. */
static bool add_dues(struct queue *queue, struct checkpoint *checkpoint)
{
    enum tier_index chosen[PLACEMENT_COPIES_MAX];
    uint32_t num = copies_chosen(chosen, checkpoint), before = queue->num_dues;
    for (uint32_t i = 0; i < num; i++)
        if (tier_is_peer(chosen[i]) && !copies_at(checkpoint, chosen[i])->is_given_up &&
            !is_served(checkpoint, chosen[i]))
            add_due(queue, chosen[i], checkpoint);
    return queue->num_dues > before;
}

static void find_dues(struct queue *queue, const struct service *service)
{
    uint32_t num_old = 0;
    for (const struct run *run = service->catalog->runs; run; run = run->next) {
        const struct checkpoint *newest = NULL;
        for (struct checkpoint *c = run->checkpoints; c; c = c->next) {
            if (!has_source(c, TIER_PEER))
                continue;
            newest = newest ? newest : c;
            bool is_old = c != newest && !c->is_wanted_replicated;
            if ((c->is_wanted_replicated || is_to_spread(c, TIER_PEER, newest)) &&
                (!is_old || num_old < OLD_MAX))
                num_old += add_dues(queue, c) && is_old;
        }
    }
}

void queue_begin_scan(const struct service *service)
{
    struct queue *queue = service->queue;
    if (!queue || queue->scans++ > 0)
        return;
    copies_begin_scan(service);
    queue->num_dues = 0;
    memset(queue->first, 0, sizeof queue->first);
    if (service->config->members.count > 0)
        find_dues(queue, service);
}

void queue_end_scan(const struct service *service)
{
    if (service->queue && --service->queue->scans == 0)
        copies_end_scan(service);
}

static bool is_before(const struct checkpoint *a, const struct checkpoint *b, enum tier_index tier)
{
    if (queue_is_wanted(a, tier) != queue_is_wanted(b, tier))
        return queue_is_wanted(a, tier);
    return a->run != b->run &&
           strcmp(a->summary.time, b->summary.time) > 0; /* the newest of all runs first */
}

static struct checkpoint *next_for_peer(const struct queue *queue, enum tier_index tier,
                                        uint64_t *out_left, uint64_t *out_left_bytes)
{
    struct checkpoint *best = NULL;
    for (uint32_t i = queue->first[tier]; i != 0; i = queue->dues[i - 1].next) {
        struct checkpoint *due = queue->dues[i - 1].checkpoint;
        ++*out_left;
        *out_left_bytes += due->summary.bytes;
        if (!best || is_before(due, best, tier))
            best = due;
    }
    return best;
}

struct checkpoint *queue_next(const struct service *service, enum tier_index tier,
                              uint64_t *out_left, uint64_t *out_left_bytes)
{
    struct checkpoint *best = NULL;
    *out_left = *out_left_bytes = 0;
    if (tier_is_peer(tier)) {
        queue_begin_scan(service);
        best =
            service->queue ? next_for_peer(service->queue, tier, out_left, out_left_bytes) : NULL;
        queue_end_scan(service);
        return best;
    }
    for (const struct run *run = service->catalog->runs; run; run = run->next) {
        struct checkpoint *found = next_of_run(run, tier, out_left, out_left_bytes);
        if (found && (!best || is_before(found, best, tier)))
            best = found;
    }
    return best;
}
