/* trainer_random.c - counter-based random numbers.
 *
 * Goal: the generator is Philox4x32-10 itself, streams are apart, and deviates are normal, however
 * many are drawn at once. Method: the known answers that the authors publish (Random123,
 * kat_vectors); moments and tails of 400,000 deviates against their standard errors. */
#include "tests/unit/suite.h"
#include "trainer/data/random.h"

#include <math.h>
#include <string.h>

#define NUM_DRAWS 400000

static void check_answer(uint64_t counter_high, uint64_t counter, struct random_key key,
                         const uint32_t want[4])
{
    uint32_t got[4];
    random_philox(got, counter_high, counter, key);
    assert_memory_equal(got, want, sizeof(got));
}

TEST(test_random__philox_gives_the_published_answers)
{
    check_answer(0, 0, (struct random_key){{0, 0}},
                 (const uint32_t[4]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    check_answer(UINT64_MAX, UINT64_MAX, (struct random_key){{UINT32_MAX, UINT32_MAX}},
                 (const uint32_t[4]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    /* Words 243f6a88 85a308d3 13198a2e 03707344, the low ones first. */
    check_answer(UINT64_C(0x0370734413198a2e), UINT64_C(0x85a308d3243f6a88),
                 (struct random_key){{0xa4093822, 0x299f31d0}},
                 (const uint32_t[4]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(test_random__streams_differ_by_seed_and_by_name)
{
    struct random_key key = random_key(1, "init/a");
    struct random_key same = random_key(1, "init/a");
    struct random_key other_name = random_key(1, "init/b");
    struct random_key other_seed = random_key(2, "init/a");
    assert_memory_equal(&key, &same, sizeof(key));
    assert_memory_not_equal(&key, &other_name, sizeof(key));
    assert_memory_not_equal(&key, &other_seed, sizeof(key));
}

TEST(test_random__normal_deviates_have_normal_moments_and_tails)
{
    struct random_key key = random_key(7, "moments");
    double sum[5] = {0};
    int beyond_two = 0;
    for (uint64_t i = 0; i < NUM_DRAWS; i++) {
        double value = random_normal(key, i);
        double power = 1;
        for (int j = 1; j < 5; j++)
            sum[j] += power *= value;
        beyond_two += fabs(value) > 2;
    }
    double n = NUM_DRAWS;
    /* Five standard errors: of the mean 1, of the square 2, the cube 15, the fourth power 96. */
    assert_true(fabs(sum[1] / n) < 5 * sqrt(1 / n));
    assert_true(fabs(sum[2] / n - 1) < 5 * sqrt(2 / n));
    assert_true(fabs(sum[3] / n) < 5 * sqrt(15 / n));
    assert_true(fabs(sum[4] / n - 3) < 5 * sqrt(96 / n));
    double tail = 0.0455002639;
    assert_true(fabs(beyond_two / n - tail) < 5 * sqrt(tail * (1 - tail) / n));
}

TEST(test_random__neighbours_are_not_correlated)
{
    struct random_key key = random_key(8, "neighbours");
    double sum = 0;
    for (uint64_t i = 0; i < NUM_DRAWS; i++)
        sum += (double)random_normal(key, i) * random_normal(key, i + 1);
    assert_true(fabs(sum / NUM_DRAWS) < 5 / sqrt(NUM_DRAWS));
}

TEST(test_random__many_at_once_are_the_same_ones)
{
    static float many[4096];
    struct random_key key = random_key(10, "many");
    const uint64_t counts[] = {0, 1, 2, 3, 4, 5, 1000, 4095};
    for (uint64_t at = 0; at < 3 * sizeof(counts) / sizeof(counts[0]); at++) {
        uint64_t first = at % 3, count = counts[at / 3];
        memset(many, 0, sizeof(many));
        random_normals(many, key, first, count);
        for (uint64_t i = 0; i < count; i++)
            assert_memory_equal(&many[i], &(float){random_normal(key, first + i)}, sizeof(float));
        assert_true(many[count] == 0);
    }
    assert_true(isfinite(random_normal(key, UINT64_MAX)));
}

SUITE(NULL, NULL)
