/* trainer_schedule.c - the learning-rate curve.
 *
 * Goal: torchtitan v0.2.2's warm-up, stable, decay curve, so that a configuration means the same
 * here. Method: values worked out by hand from its definition at corners, and shape properties
 * (continuity, monotony, floor) over whole curves. */
#include "tests/unit/suite.h"
#include "trainer/plan/schedule.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct config curve(int64_t total, int64_t warmup, double decay_ratio, enum decay_type type)
{
    return (struct config){.lr = 2.0,
                           .warmup_steps = warmup,
                           .decay_total_steps = total,
                           .decay_ratio = decay_ratio,
                           .min_lr_factor = 0.0,
                           .steps = total,
                           .decay_type = type};
}

static void want(double got, double expected)
{
    assert_true(fabs(got - expected) < 1e-12);
}

TEST(test_schedule__warm_up_rises_by_equal_steps_to_the_peak)
{
    struct config config = curve(100, 4, -1, DECAY_LINEAR);
    want(schedule_lr(&config, 0), 0.5);
    want(schedule_lr(&config, 1), 1.0);
    want(schedule_lr(&config, 2), 1.5);
    want(schedule_lr(&config, 3), 2.0);
    want(schedule_lr(&config, 4), 2.0); /* the one stable step */
}

TEST(test_schedule__decay_follows_its_form_and_never_reaches_zero)
{
    /* T = 10, W = 0, D = 10, S = 1: update s > 0 has progress s / 10. */
    struct config linear = curve(10, 0, -1, DECAY_LINEAR), root = curve(10, 0, -1, DECAY_SQRT),
                  cosine = curve(10, 0, -1, DECAY_COSINE);
    want(schedule_lr(&linear, 0), 2.0);
    want(schedule_lr(&linear, 5), 1.0);
    want(schedule_lr(&linear, 9), 0.2);
    want(schedule_lr(&root, 4), 2.0 * (1 - sqrt(0.4)));
    want(schedule_lr(&cosine, 5), 1.0);
    want(schedule_lr(&cosine, 9), 1.0 + cos(M_PI * 0.9));
}

TEST(test_schedule__a_decay_ratio_leaves_a_plateau)
{
    struct config config = curve(20, 4, 0.25, DECAY_LINEAR); /* D = 5, S = 12 */
    for (int64_t s = 3; s < 16; s++)
        want(schedule_lr(&config, s), 2.0);
    want(schedule_lr(&config, 16), 1.6);
    want(schedule_lr(&config, 19), 0.4);
    struct config clamped = curve(10, 8, 0.9, DECAY_LINEAR); /* D is cut to 2 */
    want(schedule_lr(&clamped, 8), 2.0);
    want(schedule_lr(&clamped, 9), 1.0);
    struct config even = curve(10, 0, 0.25, DECAY_LINEAR); /* round(2.5) is 2 */
    want(schedule_lr(&even, 8), 2.0);
    want(schedule_lr(&even, 9), 1.0);
    struct config up = curve(10, 0, 0.375, DECAY_LINEAR); /* round(3.75) is 4 */
    want(schedule_lr(&up, 6), 2.0);
    want(schedule_lr(&up, 7), 1.5);
}

TEST(test_schedule__the_floor_holds_also_beyond_the_curve)
{
    struct config config = curve(10, 2, -1, DECAY_COSINE);
    config.min_lr_factor = 0.1;
    for (int64_t s = 10; s < 40; s++)
        want(schedule_lr(&config, s), 0.2);
    double last = 2.0;
    for (int64_t s = 2; s < 40; s++) {
        assert_true(schedule_lr(&config, s) <= last);
        assert_true(schedule_lr(&config, s) >= 0.2);
        last = schedule_lr(&config, s);
    }
}

SUITE(NULL, NULL)
