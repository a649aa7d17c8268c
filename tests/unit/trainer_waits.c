/* trainer_waits.c - a warning when training waits for samples.
 *
 * Goal: it comes when a too large share begins, and not with every line. Method: shares of
 * successive lines. */
#include "tests/unit/suite.h"
#include "trainer/observe/waits.h"

TEST(test_waits__a_large_share_is_said_when_it_begins)
{
    static struct config config = {.data_wait_max_percent = 10};
    static const struct {
        double percent;
        bool is_said;
    } lines[] = {{10, false}, {11, true}, {90, false}, {9, false}, {11, true}};
    struct waits waits = {.config = &config};
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        assert_int_equal(waits_check(&waits, 1, lines[i].percent, 1), lines[i].is_said);
    config.data_wait_max_percent = 0;
    waits.is_slow = false;
    assert_false(waits_check(&waits, 1, 100, 1));
}

SUITE(NULL, NULL)
