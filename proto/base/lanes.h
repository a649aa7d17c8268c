/* lanes.h - which job a bounded number of workers takes next, when the jobs are those of many
 * parties of which some do not answer. Pure: no thread, no clock, no memory of its own; the caller
 * holds its mutex around every call.
 *
 *     lanes_init(&lanes, 16); lane_init(&lane, &lanes, 4);
 *     lane_put(&lane, &job->link) ──► a worker: lanes_take(&lanes, &lane) ──► lane_done(lane)
 *
 * A lane is a party's queue, first in first out. Lanes take turns, one job each, and a lane has at
 * most `limit` jobs under way. A lane that is away (its party does not answer) has one, comes
 * behind all others, and all such lanes together have at most `away_max`: so workers are left for
 * the parties that answer, however many do not. */
#ifndef HOLDFAST_PROTO_BASE_LANES_H
#define HOLDFAST_PROTO_BASE_LANES_H

#include <stdbool.h>
#include <stdint.h>

/* Embedded in a job. */
struct lane_link {
    struct lane_link *next;
};

struct lane {
    struct lanes *lanes; /* NULL: it has no workers */
    struct lane *next;   /* of those whose turn comes */
    struct lane_link *first, *last;
    uint32_t waiting, under_way, limit;
    bool is_away;
    bool is_due; /* its turn comes */
};

struct lanes {
    struct lane *first[2], *last[2]; /* those that answer, those that are away */
    uint32_t away_under_way, away_max;
};

/* away_max is at least 1. */
void lanes_init(struct lanes *lanes, uint32_t away_max);
void lane_init(struct lane *lane, struct lanes *lanes, uint32_t limit);
void lane_put(struct lane *lane, struct lane_link *job);
/* The next job, which is under way then, and its lane; NULL: none may begin now. */
struct lane_link *lanes_take(struct lanes *lanes, struct lane **out);
/* A job of the lane has ended. */
void lane_done(struct lane *lane);
/* Jobs that wait may begin then: the caller wakes all its workers. */
void lane_set_away(struct lane *lane, bool is_away);
/* Nothing waits and nothing is under way. */
static inline bool lane_is_idle(const struct lane *lane)
{
    return !lane->first && lane->under_way == 0;
}

#endif
