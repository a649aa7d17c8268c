/* lanes.h - selects the next job for a bounded number of workers. The jobs belong to many parties,
 * some of which do not answer. Pure: no thread, no clock, no allocation; the caller holds its mutex
 * around every call.
 *
 *     lanes_init(&lanes, 16); lane_init(&lane, &lanes, 4);
 *     lane_put(&lane, &job->link) ──► a worker: lanes_take(&lanes, &lane) ──► lane_done(lane)
 *
 * A lane is a party's queue, first in first out. Lanes take turns, one job each, and a lane has at
 * most `limit` jobs under way. A lane that is away (its party does not answer) has one, and comes
 * after all others. All away lanes together have at most `away_max` jobs under way, so workers stay
 * free for the parties that answer. */
#ifndef HOLDFAST_PROTO_BASE_LANES_H
#define HOLDFAST_PROTO_BASE_LANES_H

#include <stdbool.h>
#include <stdint.h>

/* Embedded in a job. */
struct lane_link {
    struct lane_link *next;
};

struct lane {
    struct lanes *lanes; /* NULL: no workers serve it */
    struct lane *next;   /* in the queue of turns */
    struct lane_link *first, *last;
    uint32_t waiting, under_way, limit;
    bool is_away;
    bool is_due; /* it is in the queue of turns */
};

struct lanes {
    struct lane *first[2], *last[2]; /* lanes that answer, lanes that are away */
    uint32_t away_under_way, away_max;
};

/* away_max is at least 1. */
void lanes_init(struct lanes *lanes, uint32_t away_max);
void lane_init(struct lane *lane, struct lanes *lanes, uint32_t limit);
void lane_put(struct lane *lane, struct lane_link *job);
/* Takes the next job, which is then under way, and its lane. NULL: none may begin now. */
struct lane_link *lanes_take(struct lanes *lanes, struct lane **out);
/* A job of the lane has ended. */
void lane_done(struct lane *lane);
/* More waiting jobs may begin after this: the caller wakes all its workers. */
void lane_set_away(struct lane *lane, bool is_away);
/* No job waits or is under way. */
static inline bool lane_is_idle(const struct lane *lane)
{
    return !lane->first && lane->under_way == 0;
}

#endif
