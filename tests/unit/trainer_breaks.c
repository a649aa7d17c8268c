/* trainer_breaks.c - steps whose numbers are not finite.
 *
 * Goal: they are skipped and counted as the settings say. Method: steps that no rank has made. */
#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "trainer/observe/breaks.h"

#include <math.h>
#include <string.h>

TEST(test_breaks__steps_are_skipped_until_too_many_in_a_row)
{
    static struct config config = {.nonfinite = NONFINITE_SKIP,
                                   .nonfinite_skips_max = 3,
                                   .micro_batches = 6,
                                   .local_batch_size = 2};
    struct breaks b = {.config = &config};
    struct progress finite = {.step = 8, .next_sample = 96, .loss = 2, .grad_norm = 1};
    struct progress broken = finite;
    struct step_break at = {.rank = 5, .stage = 1, .is_loss = true, .leaf = 4};
    broken.grad_norm = (double)INFINITY;
    for (int round = 0; round < 2; round++) {
        assert_true(breaks_is_finite(&b, &finite)); /* a row ends here */
        for (int i = 0; i < 2; i++) {
            assert_false(breaks_is_finite(&b, &broken));
            assert_int_equal(breaks_decide(&b, &broken, &at), 0);
        }
    }
    assert_int_equal(breaks_decide(&b, &broken, &at), ERR_INVALID);
    assert_non_null(strstr(report_line(), "step 8: loss 2, gradient norm inf, first on rank 5, "
                                          "stage 1: the loss of leaf 4, samples 92 to 93"));
    at = (struct step_break){.is_weight = true, .tensor = "norm.weight", .num_tensors = 2};
    assert_true(breaks_is_finite(&b, &finite));
    assert_int_equal(breaks_decide(&b, &broken, &at), ERR_INVALID);
    assert_non_null(strstr(report_line(), "diverged in step 8: loss 2, gradient norm inf, first on "
                                          "rank 0, stage 0: the weights of norm.weight (2 tensors "
                                          "have such)"));
    b.has_updated = false;
    assert_int_equal(breaks_decide(&b, &broken, &at), ERR_INVALID);
    assert_non_null(strstr(report_line(), "the weights that were loaded are not finite"));
    config = (struct config){.nonfinite = NONFINITE_ROLL_BACK,
                             .roll_back_times = 2,
                             .micro_batches = 6,
                             .local_batch_size = 2};
    assert_int_equal(breaks_decide(&b, &broken, &at), ERR_INVALID); /* weights stay broken */
    at = (struct step_break){.is_loss = true};
    broken.jumps.num = 1;
    assert_int_equal(breaks_decide(&b, &broken, &at), 0);
    assert_int_equal(b.bad.first, 84);
    assert_int_equal(b.bad.count, 12);
    broken.jumps.num = 2;
    assert_int_equal(breaks_decide(&b, &broken, &at), ERR_INVALID);
    config.replay_step = 8;
    assert_int_equal(breaks_decide(&b, &broken, &at), 0);
    config.replay_step = 0;
    config.nonfinite = NONFINITE_STOP;
    assert_true(breaks_is_finite(&b, &finite));
    assert_int_equal(breaks_decide(&b, &broken, &at), ERR_INVALID);
}

SUITE(NULL, NULL)
