/* pick.c - the order in which checkpoints go to the remote tier. There is no list: the queue is the
 * set of checkpoints that the local tier has and the remote one lacks, so it survives a crash of
 * ckptd.
 *
 * First come checkpoints that a client waits for, then the newest: a lost node costs the time since
 * the newest checkpoint in the remote tier. A checkpoint that retention removes leaves the queue.
 * One that the rules of the remote tier remove again never enters it. The newest whole checkpoint
 * is "the last"; pick chooses it again after every transfer. */
#include "ckptd/machines/pick.h"

static bool is_picked(const struct pick_rule *rule, const struct pick_item *item, bool is_newest)
{
    if (rule->what == PICK_EVERY)
        return item->step % rule->every == 0;
    return rule->what == PICK_ALL || is_newest;
}

void pick_mark(const struct pick_rule *rule, struct pick_item *items, uint32_t count)
{
    bool is_newest = true;
    for (uint32_t i = 0; i < count; i++) {
        struct pick_item *item = &items[i];
        bool is_wished = item->is_kept && item->is_local && is_picked(rule, item, is_newest);
        item->goes = !item->is_given_up && (item->is_wanted || is_wished);
        is_newest = is_newest && !item->is_local;
    }
}

int64_t pick_next(const struct pick_item *items, uint32_t count, uint32_t *out_left)
{
    int64_t next = -1;
    *out_left = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct pick_item *item = &items[i];
        if (!item->goes || !item->is_local || item->is_far)
            continue;
        ++*out_left;
        if (next < 0 || (item->is_wanted && !items[next].is_wanted))
            next = i;
    }
    return next;
}
