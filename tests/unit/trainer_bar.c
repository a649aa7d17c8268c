/* trainer_bar.c - the progress line of a run.
 *
 * Goal: the line has step, share and remaining time, in readable units. Method: a table. */
#include "tests/unit/suite.h"
#include "trainer/observe/bar.h"

TEST(test_bar__says_what_is_left)
{
    static const struct {
        int64_t step, steps;
        double step_seconds;
        const char *want;
    } rows[] = {
        {1, 40, 2, "step 1 of 40 [....................] 2 %, 2.00 s a step, 78 s left"},
        {30, 100, 10, "step 30 of 100 [######..............] 30 %, 10.00 s a step, 12 min left"},
        {500, 1000, 60, "step 500 of 1000 [##########..........] 50 %, 60.00 s a step, 8.3 h left"},
        {0, 1000, 864,
         "step 0 of 1000 [....................] 0 %, 864.00 s a step, 10.0 days left"},
        {9, 9, 0.25, "step 9 of 9 [####################] 100 %, 0.25 s a step, 0 s left"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[BAR_TEXT_MAX];
        bar_print(text, rows[i].step, rows[i].steps, rows[i].step_seconds);
        assert_string_equal(text, rows[i].want);
    }
}

SUITE(NULL, NULL)
