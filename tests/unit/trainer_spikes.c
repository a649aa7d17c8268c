/* trainer_spikes.c - losses that leap, and whether they come back.
 *
 * Goal: a spike is found when it begins and named by how it ends; noise, a steep fall and a plateau
 * are none. Method: losses of a seeded generator around a curve that the test gives. */
#include "tests/unit/suite.h"
#include "trainer/observe/spikes.h"

#include <math.h>

#define STEPS 400

static const struct config config = {
    .spike_deviations = 6, .spike_window = 64, .spike_fast_steps = 10, .spike_steps = 100};

/* Of the curve with noise: how many events there are, and the last two. */
static uint32_t follow(double (*curve)(int64_t step), double noise, struct spike last[2])
{
    struct spikes spikes = {.config = &config};
    uint64_t x = 7;
    uint32_t num = 0;
    for (int64_t step = 1; step <= STEPS; step++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        double random = (double)(x >> 40) / (double)(1 << 24) - 0.5;
        struct spike found = spikes_update(&spikes, step, curve(step) + noise * random);
        if (found.kind == SPIKE_NONE)
            continue;
        last[0] = last[1];
        last[1] = found;
        num++;
    }
    return num;
}

static double plateau(int64_t step)
{
    (void)step;
    return 3;
}
static double leap_of_10(int64_t step)
{
    return step >= 200 && step < 210 ? 4 : 3;
}
static double leap_of_11(int64_t step)
{
    return step >= 200 && step < 211 ? 4 : 3;
}
static double leap_for_good(int64_t step)
{
    return step >= 200 ? 4 : 3;
}
static double fall(int64_t step)
{
    return step < 200 ? 8 - 0.01 * (double)step : 0.5;
}
static double broken(int64_t step)
{
    return step == 200 ? (double)NAN : 3;
}

TEST(test_spikes__what_comes_back_is_fast_or_slow)
{
    struct spike last[2];
    assert_int_equal(follow(leap_of_10, 0.1, last), 2);
    assert_int_equal(last[0].kind, SPIKE_BEGINS);
    assert_int_equal(last[0].began, 200);
    assert_true(last[0].median > 2.95 && last[0].median < 3.05);
    assert_int_equal(last[1].kind, SPIKE_FAST);
    assert_int_equal(last[1].began, 200);
    assert_int_equal(last[1].steps, 10);
    assert_true(last[1].most > 3.95 && last[1].most < 4.06);
    assert_int_equal(follow(leap_of_11, 0.1, last), 2);
    assert_int_equal(last[1].kind, SPIKE_SLOW);
    assert_int_equal(last[1].steps, 11);
}

/* Then the level is the new one: it is said once. */
TEST(test_spikes__what_does_not_come_back_lasts)
{
    struct spike last[2];
    assert_int_equal(follow(leap_for_good, 0.1, last), 2);
    assert_int_equal(last[1].kind, SPIKE_LASTS);
    assert_int_equal(last[1].steps, 100);
}

TEST(test_spikes__noise_a_plateau_a_steep_fall_and_a_nan_are_none)
{
    struct spike last[2];
    assert_int_equal(follow(plateau, 0.5, last), 0);
    assert_int_equal(follow(plateau, 1e-6, last), 0);
    assert_int_equal(follow(fall, 0.1, last), 0);
    assert_int_equal(follow(broken, 0.1, last), 0);
}

SUITE(NULL, NULL)
