/* proto_daly.c - how often to save.
 *
 * Goal: the interval is Daly's, in whole steps, no shorter than a save needs to be durable, and
 * none costs less. Method: values worked out by hand from the equations; a search over all steps.
 */
#include "proto/base/daly.h"
#include "tests/unit/suite.h"

#include <math.h>

TEST(test_daly__the_interval_is_that_of_the_equation)
{
    /* sqrt(2 * 600 * 86400) = 10182.34, times 1 + 0.0589256 / 3 + 0.0034722 / 9, minus 600 */
    struct daly daly = {.step = 1, .wait = 600, .failures = 86400};
    assert_true(daly_best(&daly).steps == 9786);
    daly = (struct daly){.step = 0.5, .wait = 2, .failures = 3600}; /* 120 * 1.0055864 - 2 */
    assert_true(daly_best(&daly).steps == 237);
    assert_true(daly_best(&daly).seconds == 118.5);
}

TEST(test_daly__saves_that_take_longer_than_the_job_lasts_come_once_a_failure)
{
    struct daly daly = {.step = 1, .wait = 200, .failures = 100};
    assert_true(daly_best(&daly).steps == 100);
    daly.step = 1000; /* and a step is the least */
    assert_true(daly_best(&daly).steps == 1);
}

TEST(test_daly__no_interval_is_shorter_than_it_takes_until_a_save_is_durable)
{
    struct daly daly = {.step = 1, .wait = 0.01, .durable = 60.5, .failures = 3600};
    assert_true(daly_best(&daly).steps == 61);
    daly.durable = 5;
    assert_true(daly_best(&daly).steps == 8); /* sqrt(72) */
}

/* The times of a checkpoint, and options, may be any. */
TEST(test_daly__a_step_that_takes_no_time_has_an_interval_with_a_number)
{
    struct daly daly = {.step = 1e-300, .wait = 1, .failures = 86400};
    struct daly_cost cost = daly_cost(&daly, 1e18), best = daly_best(&daly);
    assert_true(cost.steps == 1e15 && best.steps == 1e15);
    assert_true(cost.overhead >= 0 && cost.overhead <= 1);
    assert_true(best.overhead >= 0 && best.overhead <= 1);
}

TEST(test_daly__no_other_interval_costs_less)
{
    struct daly daly = {.step = 0.5, .wait = 3, .durable = 9, .failures = 7200, .restart = 300};
    struct daly_cost best = daly_best(&daly);
    double least = 1;
    for (int steps = 1; steps < 4 * (int)best.steps; steps++)
        least = fmin(least, daly_cost(&daly, steps * daly.step).overhead);
    assert_true(best.overhead <= 1.0001 * least);
    /* 1 - t / (M e^(R/M) (e^((t+D)/M) - 1)) of t = 100 s, with 306 s for R */
    struct daly_cost cost = daly_cost(&daly, 100);
    assert_true(fabs(cost.overhead - (1 - 100 / (7200 * exp(0.0425) * expm1(103.0 / 7200)))) <
                1e-12);
    assert_true(fabs(cost.saves - 3.0 / 103) < 1e-12);
}

SUITE(NULL, NULL)
