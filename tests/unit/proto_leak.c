/* proto_leak.c - when a process's own memory is taken for a leak, and when it is too much.
 *
 * Goal: memory that rises window after window is a leak, with its rate; work that comes and goes, a
 * heap that was filled once, and little of it are none. One large request is not too much. Method:
 * samples of invented hours. */
#include "proto/base/leak.h"
#include "tests/unit/suite.h"

#define MIB (UINT64_C(1) << 20)
#define HOUR (2 * LEAK_WINDOW_MS)

/* Samples: each of `count` windows is at `low` once, and rises by `step` from window to window. */
static void pass(struct leak *leak, uint32_t from, uint32_t count, uint64_t low, uint64_t step)
{
    for (uint32_t i = from; i < from + count; i++) {
        leak_note(leak, i * LEAK_WINDOW_MS, low + i * step + 500 * MIB, 0);
        leak_note(leak, i * LEAK_WINDOW_MS + 1000, low + i * step, 0);
        leak_note(leak, (i + 1) * LEAK_WINDOW_MS - 1, low + i * step + 300 * MIB, 0);
    }
}

TEST(test_leak__what_stays_of_each_window_and_rises_is_a_leak_with_its_rate)
{
    struct leak leak = {.num_past = 0};
    pass(&leak, 0, LEAK_WINDOWS, 100 * MIB, 10 * MIB);
    assert_true(leak_rate(&leak) == 0); /* the last window has not ended */
    pass(&leak, LEAK_WINDOWS, 1, 100 * MIB, 10 * MIB);
    assert_true(leak_rate(&leak) == 20.0 * (double)MIB); /* an hour */
    pass(&leak, LEAK_WINDOWS + 1, 40, 100 * MIB, 10 * MIB);
    assert_true(leak_rate(&leak) == 20.0 * (double)MIB); /* the old ones are forgotten */
}

TEST(test_leak__one_window_that_is_no_higher_ends_it)
{
    for (uint32_t flat = 1; flat < LEAK_WINDOWS; flat++) {
        struct leak leak = {.num_past = 0};
        for (uint32_t i = 0; i <= LEAK_WINDOWS; i++)
            leak_note(&leak, i * LEAK_WINDOW_MS, (100 + 20 * (i - (i >= flat))) * MIB, 0);
        assert_true(leak_rate(&leak) == 0);
    }
}

TEST(test_leak__little_of_it_is_none)
{
    for (uint64_t lack = 0; lack < 2; lack++) {
        struct leak leak = {.num_past = 0};
        pass(&leak, 0, LEAK_WINDOWS + 1, 100 * MIB, LEAK_STEP_BYTES - lack);
        assert_int_equal(leak_rate(&leak) > 0, lack == 0);
    }
}

TEST(test_leak__too_much_is_what_every_look_of_a_row_finds)
{
    struct leak leak = {.num_past = 0};
    for (uint32_t i = 1; i < LEAK_LOOKS; i++) {
        leak_note(&leak, i * 1000, 101, 100);
        assert_false(leak_is_over(&leak));
    }
    leak_note(&leak, LEAK_LOOKS * 1000, 100, 100); /* a large request has ended */
    for (uint32_t i = 1; i <= LEAK_LOOKS; i++) {
        assert_false(leak_is_over(&leak));
        leak_note(&leak, HOUR + i, 101, 100);
    }
    assert_true(leak_is_over(&leak));
    leak_note(&leak, 2 * HOUR, UINT64_MAX, 0); /* without a limit */
    assert_false(leak_is_over(&leak));
}

SUITE(NULL, NULL)
