/* trainer_preflight.c - which ranks are fit, and how fast they reach each other.
 *
 * Goal: a rank that is far below the others is slow, one with a problem is broken, whatever its
 * rates, and what was not tried makes nobody slow. What a call's payload is on the bus is as
 * nccl-tests have it. Method: findings as ranks would send them, times as they would measure. */
#include "tests/unit/suite.h"
#include "trainer/run/links.h"
#include "trainer/run/preflight.h"

static const struct finding good = {.copy_rate = 20e9, .product_rate = 600e12, .link_rate = 50e9};

TEST(test_preflight__a_rank_below_the_others_is_slow)
{
    struct finding all[] = {good, good, good, good};
    enum fitness of[4];
    preflight_judge(of, all, 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(of[i], FIT);
    all[2].product_rate = 0.69 * good.product_rate;
    all[3].link_rate = 0.71 * good.link_rate;
    preflight_judge(of, all, 4);
    assert_int_equal(of[1], FIT);
    assert_int_equal(of[2], SLOW);
    assert_int_equal(of[3], FIT);
}

TEST(test_preflight__a_problem_is_broken_and_what_was_not_tried_is_not_slow)
{
    struct finding all[] = {good, good, good};
    for (uint32_t i = 0; i < 3; i++)
        all[i].link_rate = 0;
    all[0] = (struct finding){.problem = "the device: there is none"};
    enum fitness of[3];
    preflight_judge(of, all, 3);
    assert_int_equal(of[0], BROKEN);
    assert_int_equal(of[1], FIT);
    assert_int_equal(of[2], FIT);
}

TEST(test_links__the_bus_carries_what_nccl_tests_say)
{
    assert_true(links_bus_factor(LINK_RING, 8) == 1);
    assert_true(links_bus_factor(LINK_ALL_GATHER, 8) == 0.875);
    assert_true(links_bus_factor(LINK_ALL_TO_ALL, 2) == 0.5);
    assert_true(links_bus_factor(LINK_SUM, 8) == 1.75);
}

TEST(test_links__the_median_is_not_moved_by_one_slow_call)
{
    double seconds[] = {3, 1, 900, 2, 4};
    struct link_times times = links_times(seconds, 5);
    assert_true(times.least == 1 && times.median == 3 && times.p99 == 900);
    assert_true(links_times(seconds, 1).p99 == 1);
}

SUITE(NULL, NULL)
