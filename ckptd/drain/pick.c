/* pick.c - the order of the drain. The queue is no list of its own: it is what the local tier has
 * and the far one lacks, so it survives whatever ckptd does not.
 *
 * First what somebody waits for, then the newest: what a lost node costs is the time since the
 * newest checkpoint that is far, and older ones only matter less. A checkpoint that retention
 * removes meanwhile has left the queue by itself. The newest whole one is "the last", whoever
 * comes later; it is looked at again after every transfer. */
#include "ckptd/drain/pick.h"

bool pick_goes(const struct pick_rule *rule, const struct pick_item *item, bool is_newest)
{
    if (item->is_wanted || rule->what == PICK_ALL)
        return true;
    return rule->what == PICK_LAST ? is_newest : item->step % rule->every == 0;
}

int64_t pick_next(const struct pick_rule *rule, const struct pick_item *items, uint32_t count,
                  uint32_t *out_left)
{
    int64_t next = -1;
    bool is_newest = true;
    *out_left = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct pick_item *item = &items[i];
        if (!item->is_local)
            continue;
        bool goes = pick_goes(rule, item, is_newest) && !item->is_far && !item->is_given_up;
        is_newest = false;
        if (!goes)
            continue;
        ++*out_left;
        if (next < 0 || (item->is_wanted && !items[next].is_wanted))
            next = i;
    }
    return next;
}
