/* ckptd_together.c - the checkpoint that ranks load together (ckptd/restore/together.h).
 *
 * Goal: together.L1 to L5 at the head of together.c. Method: the decisions themselves, with a clock
 * of the test; clients_ckpt.c tests them through a ckptd. */
#include "ckptd/restore/together.h"
#include "tests/unit/suite.h"

#include <stdlib.h>

static const struct together_choice step_9 = {9, 2}, step_8 = {8, 2};

/* Two ranks, both of which load step 9. */
static int open_two(void **state)
{
    struct together *together = together_new(NULL, 2, 2);
    if (!together || together_open(together, 0, TOGETHER_GONE, false) != TOGETHER_CHOOSE)
        return -1;
    together_choose(together, 0, step_9);
    *state = together;
    return together_open(together, 1, TOGETHER_WHOLE, true) == TOGETHER_JOIN ? 0 : -1;
}

static int free_two(void **state)
{
    free(*state);
    return 0;
}

static enum together_word has_9(struct together *together, uint32_t rank, int64_t ms)
{
    return together_has(together, rank, step_9, TOGETHER_WHOLE, ms);
}

#define TOGETHER_TEST(name) TEST_WITH(struct together *together, name, open_two, free_two)

TOGETHER_TEST(test_together__ranks_go_on_when_the_last_has_it)
{
    assert_int_equal(has_9(together, 0, 0), TOGETHER_WAIT);
    assert_int_equal(has_9(together, 0, 10 * TOGETHER_WAIT_MS), TOGETHER_WAIT); /* it loads */
    assert_int_equal(has_9(together, 1, 10 * TOGETHER_WAIT_MS), TOGETHER_AGREED);
    assert_false(together_is_over(together));
    /* Damage that is found now changes nothing. */
    assert_int_equal(together_has(together, 0, step_9, TOGETHER_DAMAGED, 0), TOGETHER_AGREED);
    assert_true(together_is_over(together));
}

TOGETHER_TEST(test_together__damage_sends_all_to_the_step_before)
{
    assert_int_equal(has_9(together, 0, 0), TOGETHER_WAIT);
    together_fail(together, 1, step_9, TOGETHER_DAMAGED);
    assert_int_equal(together_open(together, 1, TOGETHER_DAMAGED, false), TOGETHER_CHOOSE);
    together_choose(together, 1, step_8);
    assert_int_equal(together_has(together, 1, step_8, TOGETHER_WHOLE, 1), TOGETHER_WAIT);
    assert_int_equal(together_has(together, 0, step_9, TOGETHER_DAMAGED, 1), TOGETHER_AGAIN);
    together_fail(together, 0, step_9, TOGETHER_DAMAGED); /* its load of step 9 ends */
    assert_int_equal(together_open(together, 0, TOGETHER_WHOLE, true), TOGETHER_JOIN);
    assert_int_equal(together_has(together, 1, step_8, TOGETHER_WHOLE, 2), TOGETHER_WAIT);
    assert_int_equal(together_has(together, 0, step_8, TOGETHER_WHOLE, 2), TOGETHER_AGREED);
    assert_int_equal(together_has(together, 1, step_8, TOGETHER_WHOLE, 2), TOGETHER_AGREED);
}

TOGETHER_TEST(test_together__no_rank_goes_on_from_what_is_found_damaged_while_it_waits)
{
    assert_int_equal(has_9(together, 0, 0), TOGETHER_WAIT);
    assert_int_equal(together_has(together, 1, step_9, TOGETHER_DAMAGED, 1), TOGETHER_AGAIN);
    assert_int_equal(together_has(together, 0, step_9, TOGETHER_DAMAGED, 1), TOGETHER_AGAIN);
}

/* Rank 1 comes after rank 0 has continued. */
TOGETHER_TEST(test_together__a_rank_that_comes_late_gets_the_same_or_an_error)
{
    together_choose(together, 0, step_9);
    assert_int_equal(has_9(together, 0, 5), TOGETHER_WAIT);
    assert_int_equal(has_9(together, 0, TOGETHER_WAIT_MS + 4), TOGETHER_WAIT);
    assert_int_equal(has_9(together, 0, TOGETHER_WAIT_MS + 5), TOGETHER_AGREED);
    assert_int_equal(together_open(together, 1, TOGETHER_WHOLE, true), TOGETHER_JOIN);
    together_fail(together, 1, step_9, TOGETHER_DAMAGED);
    assert_int_equal(together_open(together, 1, TOGETHER_DAMAGED, false), TOGETHER_REFUSED);
    /* All load anew, whichever rank is first. */
    assert_int_equal(together_open(together, 1, TOGETHER_DAMAGED, false), TOGETHER_CHOOSE);
    together_choose(together, 1, step_8);
    assert_int_equal(together_open(together, 0, TOGETHER_WHOLE, true), TOGETHER_JOIN);
}

/* Rank 0 loads alone, and a newer one is committed before all load. */
TOGETHER_TEST(test_together__what_one_rank_loaded_long_ago_binds_no_other)
{
    together_choose(together, 0, step_8);
    assert_int_equal(together_has(together, 0, step_8, TOGETHER_WHOLE, 0), TOGETHER_WAIT);
    assert_int_equal(together_has(together, 0, step_8, TOGETHER_WHOLE, TOGETHER_WAIT_MS),
                     TOGETHER_AGREED);
    assert_int_equal(together_open(together, 1, TOGETHER_WHOLE, false), TOGETHER_CHOOSE);
    together_choose(together, 1, step_9);
    assert_int_equal(together_has(together, 0, step_8, TOGETHER_WHOLE, 0), TOGETHER_AGAIN);
}

TOGETHER_TEST(test_together__a_rank_that_failed_is_not_waited_for)
{
    assert_int_equal(has_9(together, 0, 0), TOGETHER_WAIT);
    together_fail(together, 1, step_8, TOGETHER_WHOLE); /* an older load of it ends late */
    assert_int_equal(has_9(together, 0, 0), TOGETHER_WAIT);
    together_fail(together, 1, step_9, TOGETHER_WHOLE);
    assert_int_equal(has_9(together, 0, 0), TOGETHER_AGREED);
    assert_true(together_is_over(together));
}

SUITE(NULL, NULL)
