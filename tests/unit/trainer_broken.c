/* trainer_broken.c - the list of steps that were skipped or rolled back.
 *
 * Goal: a checkpoint keeps it, and what it has no room for are the oldest skips. Method: lists made
 * by hand, written and read. */
#include "tests/unit/suite.h"
#include "trainer/record/broken.h"

#include <math.h>

static struct broken_steps steps, read;

static void add(int64_t step, bool is_rolled_back)
{
    struct broken_step of = {.step = step,
                             .is_outlying = is_rolled_back,
                             .is_rolled_back = is_rolled_back,
                             .samples = {(uint64_t)step * 6, 6},
                             .loss = 1.0 / 3,
                             .grad_norm = (double)NAN,
                             .why = "loss \"inf\""};
    broken_add(&steps, &of);
}

TEST(test_broken__a_checkpoint_has_them_and_an_older_one_has_none)
{
    steps.num = 0;
    add(8, true);
    add(9, false);
    json_t *json = broken_json(&steps);
    char *text = json_dumps(json, json_shortest(json));
    json_decref(json);
    json = json_loads(text, 0, NULL);
    free(text);
    broken_read(&read, json);
    json_decref(json);
    assert_int_equal(read.num, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const struct broken_step *of = &read.of[i];
        assert_int_equal(of->step, 8 + i);
        assert_string_equal(broken_kind(of), i == 0 ? "outlying" : "nonfinite");
        assert_string_equal(broken_policy(of), i == 0 ? "roll_back" : "skip");
        assert_int_equal(of->samples.first, 48 + 6 * i);
        assert_int_equal(of->samples.count, 6);
        assert_true(of->loss == 1.0 / 3 && isnan(of->grad_norm));
        assert_string_equal(of->why, "loss \"inf\"");
    }
    assert_ptr_equal(broken_find(&read, 8, 48), &read.of[0]);
    assert_null(broken_find(&read, 8, 54));
    assert_null(broken_find(&read, 9, 54)); /* skipped, not made again */
    broken_read(&read, NULL);
    assert_int_equal(read.num, 0);
}

TEST(test_broken__entries_of_another_form_are_passed_over)
{
    static const struct {
        int64_t step;
        const char *kind;
        int64_t first, last;
    } of[] = {{0, "outlying", 0, 5},
              {3, "late", 0, 5},
              {4, "outlying", 6, 5},
              {6, "outlying", -1, INT64_MAX},
              {5, "outlying", 6, 11}};
    json_t *json = json_pack("[{} i]", 7);
    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
        json_array_append_new(json,
                              json_pack("{sI ss ss sI sI ss}", "step", of[i].step, "kind",
                                        of[i].kind, "policy", "skip", "first_sample", of[i].first,
                                        "last_sample", of[i].last, "reason", ""));
    broken_read(&read, json);
    json_decref(json);
    assert_int_equal(read.num, 1);
    assert_int_equal(read.of[0].step, 5);
}

TEST(test_broken__a_full_list_drops_the_oldest_skip_and_a_way_back_those_made_again)
{
    steps.num = 0;
    add(1, true);
    for (int64_t i = 2; i <= BROKEN_STEPS_MAX + 1; i++)
        add(i, false);
    assert_int_equal(steps.num, BROKEN_STEPS_MAX);
    assert_int_equal(steps.of[0].step, 1);
    assert_int_equal(steps.of[1].step, 3);
    broken_cut(&steps, 4);
    assert_int_equal(steps.num, 3);
    assert_int_equal(steps.of[2].step, 4);
    broken_cut(&steps, 0);
    assert_int_equal(steps.num, 1);
    assert_int_equal(steps.of[0].step, 1);
    for (int64_t i = 2; i <= BROKEN_STEPS_MAX + 1; i++)
        add(i, true);
    assert_int_equal(steps.num, BROKEN_STEPS_MAX);
    assert_int_equal(steps.of[0].step, 2);
}

SUITE(NULL, NULL)
