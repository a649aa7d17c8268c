/* lanes.c - see lanes.h.
 *
 * Two queues of turns: lanes that answer, and lanes that are away. A lane is in one of them while
 * it has a job that its limit lets begin. Each change (a job is put, taken or done; the lane goes
 * away or comes back) removes the lane from its queue. The lane is appended again if it may begin a
 * job. */
#include "proto/base/lanes.h"
#include "proto/base/report.h"

#include <stddef.h>

void lanes_init(struct lanes *lanes, uint32_t away_max)
{
    CHECK(away_max > 0);
    *lanes = (struct lanes){.away_max = away_max};
}

void lane_init(struct lane *lane, struct lanes *lanes, uint32_t limit)
{
    CHECK(limit > 0);
    *lane = (struct lane){.lanes = lanes, .limit = limit};
}

/* Appends the lane to its queue, unless it is queued already or may not begin a job. */
static void await_turn(struct lane *lane)
{
    struct lanes *lanes = lane->lanes;
    uint32_t limit = lane->is_away ? 1 : lane->limit;
    if (lane->is_due || !lane->first || lane->under_way >= limit)
        return;
    lane->is_due = true;
    lane->next = NULL;
    if (lanes->first[lane->is_away])
        lanes->last[lane->is_away]->next = lane;
    else
        lanes->first[lane->is_away] = lane;
    lanes->last[lane->is_away] = lane;
}

/* Removes the lane from its queue. */
static void leave_turn(struct lane *lane)
{
    struct lanes *lanes = lane->lanes;
    struct lane *before = NULL, *at = lanes->first[lane->is_away];
    if (!lane->is_due)
        return;
    for (; at != lane; at = at->next)
        before = at;
    if (before)
        before->next = lane->next;
    else
        lanes->first[lane->is_away] = lane->next;
    if (!lane->next)
        lanes->last[lane->is_away] = before;
    lane->is_due = false;
}

void lane_put(struct lane *lane, struct lane_link *job)
{
    job->next = NULL;
    if (lane->first)
        lane->last->next = job;
    else
        lane->first = job;
    lane->last = job;
    lane->waiting++;
    await_turn(lane);
}

struct lane_link *lanes_take(struct lanes *lanes, struct lane **out)
{
    struct lane *lane = lanes->first[false];
    if (!lane && lanes->away_under_way < lanes->away_max)
        lane = lanes->first[true];
    if (!lane)
        return NULL;
    struct lane_link *job = lane->first;
    leave_turn(lane);
    lane->first = job->next;
    lane->waiting--;
    lane->under_way++;
    lanes->away_under_way += lane->is_away;
    await_turn(lane);
    *out = lane;
    return job;
}

void lane_done(struct lane *lane)
{
    CHECK(lane->under_way > 0);
    lane->under_way--;
    lane->lanes->away_under_way -= lane->is_away;
    await_turn(lane);
}

void lane_set_away(struct lane *lane, bool is_away)
{
    struct lanes *lanes = lane->lanes;
    if (lane->is_away == is_away)
        return;
    leave_turn(lane);
    lane->is_away = is_away;
    if (is_away)
        lanes->away_under_way += lane->under_way;
    else
        lanes->away_under_way -= lane->under_way;
    await_turn(lane);
}
