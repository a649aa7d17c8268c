/* trainer_grace.c - the time limit for the shutdown of a run.
 *
 * Goal: a last save is begun only if it will end in time, and all ranks know the shortest limit of
 * any of them. Method: times; ranks as threads, of which only one got the request. */
#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "trainer/comm/comm.h"
#include "trainer/save/grace.h"

#include <math.h>
#include <stdatomic.h>

TEST(test_grace__time_runs_from_when_somebody_asks)
{
    assert_true(grace_left(100, 30, 110) == 20);
    assert_true(grace_left(100, 30, 140) == -10);
    assert_true(grace_left(0, 30, 110) == INFINITY);  /* no rank has a limit */
    assert_true(grace_left(100, 0, 110) == INFINITY); /* there is no limit */
}

TEST(test_grace__a_save_is_begun_if_the_longest_fits)
{
    assert_true(grace_allows(20, 20));
    assert_false(grace_allows(19.9, 20));
    assert_true(grace_allows(0.1, 0)); /* none is measured */
    assert_false(grace_allows(0, 0));
    assert_true(grace_allows(INFINITY, 1e6));
}

static atomic_int agreed;

static int ask_one(struct comm *world, void *user)
{
    (void)user;
    double left = world->rank == 2 ? 12.5 : world->rank == 1 ? 30 : INFINITY;
    ERR_TRY(grace_agree(world, &left));
    agreed += left == 12.5;
    left = INFINITY;
    ERR_TRY(grace_agree(world, &left));
    agreed += isinf(left);
    left = world->rank == 0 ? -3 : 1;
    ERR_TRY(grace_agree(world, &left));
    agreed += left == -3;
    return 0;
}

TEST(test_grace__all_ranks_have_the_least_that_any_has)
{
    agreed = 0;
    assert_int_equal(comm_local_run(4, ask_one, NULL), 0);
    assert_int_equal(agreed, 12);
}

SUITE(NULL, NULL)
