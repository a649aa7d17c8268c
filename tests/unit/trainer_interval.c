/* trainer_interval.c - how many steps lie between two saves that the trainer chooses itself.
 *
 * Goal: the first save comes soon, later ones at the interval of Daly's formula from the measured
 * figures. A small change of a figure changes nothing. Method: figures whose intervals
 * tests/unit/proto_daly.c has. */
#include "tests/unit/suite.h"
#include "trainer/save/interval.h"

TEST(test_interval__a_start_saves_soon_to_have_something_measured)
{
    struct interval interval = {0};
    assert_false(interval_is_over(&interval, 1000));
    interval_begin(&interval, 100);
    assert_false(interval_is_over(&interval, 100 + INTERVAL_FIRST_STEPS - 1));
    assert_true(interval_is_over(&interval, 100 + INTERVAL_FIRST_STEPS));
    interval_decide(&interval, &(struct daly){.step = 1, .failures = 3600}); /* no save yet */
    interval_decide(&interval, &(struct daly){.wait = 1, .failures = 3600});
    assert_int_equal(interval.steps, 0);
}

TEST(test_interval__saves_come_as_often_as_loses_least_time)
{
    struct interval interval = {0};
    struct daly daly = {.step = 0.5, .wait = 2, .failures = 3600};
    interval_begin(&interval, 10);
    interval_decide(&interval, &daly);
    assert_int_equal(interval.steps, 237);
    assert_false(interval_is_over(&interval, 246));
    assert_true(interval_is_over(&interval, 247));
    interval_begin(&interval, 247);
    assert_false(interval_is_over(&interval, 483));
    daly.durable = daly.wait + 400; /* the disk has become slow */
    interval_decide(&interval, &daly);
    assert_int_equal(interval.steps, 800);
}

TEST(test_interval__a_change_within_a_tenth_is_not_taken)
{
    struct interval interval = {0};
    struct daly daly = {.step = 1, .durable = 100, .wait = 1e-9, .failures = 1};
    interval_decide(&interval, &daly);
    assert_int_equal(interval.steps, 100);
    daly.durable = 110;
    interval_decide(&interval, &daly);
    assert_int_equal(interval.steps, 100);
    daly.durable = 90;
    interval_decide(&interval, &daly);
    assert_int_equal(interval.steps, 100);
    daly.durable = 111;
    interval_decide(&interval, &daly);
    assert_int_equal(interval.steps, 111);
}

SUITE(NULL, NULL)
