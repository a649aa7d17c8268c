/* proto_lanes.c - the choice of the next job, when some parties do not answer.
 *
 * Goal: jobs of one lane begin in their order and at most `limit` at once; lanes take turns; lanes
 * that are away come last, have one job each, and together never more than away_max, so one that
 * answers always finds a worker. Method: the turns of a few lanes by hand; then random jobs,
 * compared with recomputed counts. */
#include "proto/base/lanes.h"
#include "tests/unit/suite.h"

#include <stdlib.h>

static struct lane *take(struct lanes *lanes)
{
    struct lane *lane = NULL;
    return lanes_take(lanes, &lane) ? lane : NULL;
}

TEST(test_lanes__a_lane_with_many_jobs_lets_the_others_have_their_turn)
{
    struct lanes lanes;
    struct lane full, small;
    struct lane_link many[4], few[2];
    lanes_init(&lanes, 1);
    lane_init(&full, &lanes, 4);
    lane_init(&small, &lanes, 4);
    for (int i = 0; i < 4; i++)
        lane_put(&full, &many[i]);
    for (int i = 0; i < 2; i++)
        lane_put(&small, &few[i]);
    struct lane *const turns[] = {&full, &small, &full, &small, &full, &full, NULL};
    for (size_t i = 0; i < sizeof turns / sizeof turns[0]; i++)
        assert_ptr_equal(take(&lanes), turns[i]);
}

TEST(test_lanes__those_that_are_away_leave_workers_to_the_others)
{
    enum { AWAY = 100, AWAY_MAX = 8 };
    struct lanes lanes;
    struct lane away[AWAY], here;
    struct lane_link jobs[AWAY][2], job;
    lanes_init(&lanes, AWAY_MAX);
    lane_init(&here, &lanes, 4);
    for (int i = 0; i < AWAY; i++) {
        lane_init(&away[i], &lanes, 4);
        lane_set_away(&away[i], true);
        lane_put(&away[i], &jobs[i][0]);
        lane_put(&away[i], &jobs[i][1]);
    }
    lane_put(&here, &job);
    assert_ptr_equal(take(&lanes), &here);
    for (int i = 0; i < AWAY_MAX; i++)
        assert_ptr_equal(take(&lanes), &away[i]);
    assert_null(take(&lanes));
    lane_done(&away[3]);
    assert_ptr_equal(take(&lanes), &away[AWAY_MAX]);
    lane_set_away(&away[0], false); /* it is back: its second job need not wait for the others */
    assert_ptr_equal(take(&lanes), &away[0]);
    assert_ptr_equal(take(&lanes), &away[AWAY_MAX + 1]);
    assert_null(take(&lanes));
}

/* ---- by chance ---- */

enum { LANES = 12, JOBS = 40, AWAY_MAX = 3, LIMIT = 3 };

struct party {
    struct lane lane;
    struct lane_link jobs[JOBS];
    int put, taken, done;
    bool is_away;
};

static int count_under_way(const struct party *parties, bool is_away)
{
    int count = 0;
    for (int i = 0; i < LANES; i++)
        count += parties[i].is_away == is_away ? parties[i].taken - parties[i].done : 0;
    return count;
}

/* Is there a job that may begin? */
static bool may_any_begin(const struct party *parties)
{
    for (int i = 0; i < LANES; i++) {
        const struct party *party = &parties[i];
        int under_way = party->taken - party->done;
        if (party->put > party->taken && under_way < (party->is_away ? 1 : LIMIT) &&
            (!party->is_away || count_under_way(parties, true) < AWAY_MAX))
            return true;
    }
    return false;
}

static void take_one(struct lanes *lanes, struct party *parties)
{
    struct lane *lane;
    bool may_begin = may_any_begin(parties);
    struct lane_link *job = lanes_take(lanes, &lane);
    assert_int_equal(job != NULL, may_begin);
    if (!job)
        return;
    struct party *party = (struct party *)lane;
    assert_ptr_equal(job, &party->jobs[party->taken++]);
    assert_true(party->taken - party->done <= LIMIT);
}

static void put_one(struct party *party)
{
    if (party->put < JOBS)
        lane_put(&party->lane, &party->jobs[party->put++]);
}

static void end_one(struct party *party)
{
    if (party->taken == party->done)
        return;
    party->done++;
    lane_done(&party->lane);
    assert_int_equal(lane_is_idle(&party->lane), party->put == party->done);
}

static void go_or_come(struct party *party)
{
    party->is_away = rand() % 2;
    lane_set_away(&party->lane, party->is_away);
}

TEST(test_lanes__whatever_happens_a_job_begins_when_it_may)
{
    void (*const happens[])(struct party *) = {put_one, end_one, go_or_come};
    srand(7);
    for (int world = 0; world < 200; world++) {
        struct lanes lanes;
        struct party parties[LANES] = {0};
        lanes_init(&lanes, AWAY_MAX);
        for (int i = 0; i < LANES; i++)
            lane_init(&parties[i].lane, &lanes, LIMIT);
        for (int turn = 0; turn < 1000; turn++) {
            happens[rand() % 3](&parties[rand() % LANES]);
            if (rand() % 3 == 0)
                take_one(&lanes, parties);
        }
    }
}

SUITE(NULL, NULL)
