/* trainer_breaks.c - steps whose numbers are not finite, or out of line.
 *
 * Goal: they are skipped, taken back and counted as the settings say. Method: steps that no rank
 * has made. */
#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "trainer/observe/breaks.h"

#include <math.h>
#include <string.h>

TEST(test_breaks__steps_are_skipped_until_too_many_in_a_row)
{
    static struct config config = {.nonfinite = NONFINITE_SKIP,
                                   .text.nonfinite = "skip",
                                   .nonfinite_skips_max = 3,
                                   .micro_batches = 6,
                                   .local_batch_size = 2};
    struct breaks b = {.config = &config};
    struct progress finite = {.step = 8, .next_sample = 96, .loss = 2, .grad_norm = 1};
    struct progress broken = finite;
    struct step_break at = {.rank = 5, .stage = 1, .is_loss = true, .leaf = 4};
    broken.grad_norm = (double)INFINITY;
    for (int round = 0; round < 2; round++) {
        assert_int_equal(breaks_classify(&b, &finite), STEP_USUAL); /* a row ends here */
        for (int i = 0; i < 2; i++) {
            assert_int_equal(breaks_classify(&b, &broken), STEP_NONFINITE);
            assert_int_equal(breaks_decide(&b, &broken, &at), 0);
        }
    }
    assert_int_equal(breaks_decide(&b, &broken, &at), ERR_INVALID);
    assert_non_null(strstr(report_line(),
                           "in step 8, training.nonfinite = skip does not help: loss 2, "
                           "gradient norm inf, first on rank 5, stage 1: the loss "
                           "of leaf 4, samples 92 to 93"));
    at = (struct step_break){.is_weight = true, .tensor = "norm.weight", .num_tensors = 2};
    assert_int_equal(breaks_classify(&b, &finite), STEP_USUAL);
    assert_int_equal(breaks_decide(&b, &broken, &at), ERR_INVALID);
    assert_non_null(strstr(report_line(), "diverged in step 8: loss 2, gradient norm inf, first on "
                                          "rank 0, stage 0: the weights of norm.weight (2 such "
                                          "tensors)"));
    b.has_updated = false;
    assert_int_equal(breaks_decide(&b, &broken, &at), ERR_INVALID);
    assert_non_null(strstr(report_line(), "the loaded weights are not finite"));
    config = (struct config){.nonfinite = NONFINITE_ROLL_BACK,
                             .roll_back_times = 2,
                             .micro_batches = 6,
                             .local_batch_size = 2};
    assert_int_equal(breaks_decide(&b, &broken, &at), ERR_INVALID); /* weights stay broken */
    at = (struct step_break){.is_loss = true};
    broken.jumps.num = 1;
    assert_int_equal(breaks_decide(&b, &broken, &at), 0);
    assert_int_equal(b.bad.first, 84);
    assert_true(b.last.is_rolled_back && !b.last.is_outlying && isnan(b.last.grad_norm));
    assert_int_equal(broken.broken.num, 4); /* the skips before */
    assert_int_equal(broken.broken.of[3].step, 8);
    assert_false(broken.broken.of[3].is_rolled_back);
    assert_int_equal(b.bad.count, 12);
    broken.jumps.num = 2;
    assert_int_equal(breaks_decide(&b, &broken, &at), ERR_INVALID);
    config.replay_step = 8;
    assert_int_equal(breaks_decide(&b, &broken, &at), 0);
    config.replay_step = 0;
    config.nonfinite = NONFINITE_STOP;
    assert_int_equal(breaks_classify(&b, &finite), STEP_USUAL);
    assert_int_equal(breaks_decide(&b, &broken, &at), ERR_INVALID);
}

static struct config outlying = {.text.outlying = "skip",
                                 .outlying_deviations = 6,
                                 .outlying_window = 16,
                                 .nonfinite_skips_max = 3,
                                 .roll_back_times = 1,
                                 .micro_batches = 6,
                                 .local_batch_size = 2};

/* Steps of losses from 2 to 2.7 and norms from 1 to 1.07. */
static struct progress go(struct breaks *b, uint32_t steps)
{
    struct progress p = {.step = 0};
    for (uint32_t i = 0; i < steps; i++) {
        p.step++;
        p.next_sample += 12;
        p.loss = 2 + 0.1 * (i * 5 % 8);
        p.grad_norm = 1 + 0.01 * (i * 3 % 8);
        assert_int_equal(breaks_classify(b, &p), STEP_USUAL);
    }
    p.step++;
    p.next_sample += 12;
    return p;
}

TEST(test_outliers__a_step_far_above_the_median_is_one_and_does_not_count_itself)
{
    struct breaks b = {.config = &outlying};
    outlying.outlying = OUTLYING_SKIP;
    struct progress p = go(&b, 7), last;
    p.loss = 100; /* half a window is not there yet */
    assert_int_equal(breaks_classify(&b, &p), STEP_USUAL);
    p = go(&b, 8);
    p.loss = 100;
    assert_int_equal(breaks_classify(&b, &p), STEP_OUTLYING);
    p = go(&b, 20);
    assert_int_equal(p.outliers.loss.num, 16); /* the last ones */
    p.loss = 2.35 + 6.1 * 1.4826 * 0.2;        /* the median distance is 0.2 */
    last = p;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(breaks_classify(&b, &p), STEP_OUTLYING);
        assert_memory_equal(&p.outliers.loss, &last.outliers.loss, sizeof(p.outliers.loss));
        assert_int_equal(breaks_decide_outlier(&b, &p), 0);
        assert_int_equal(p.outliers.skipped[i], 21);
        assert_true(p.broken.of[i].is_outlying && p.broken.of[i].loss == p.loss);
    }
    assert_false(b.outlier.is_norm);
    assert_true(fabs(b.outlier.median - 2.35) < 1e-9);
    assert_int_equal(breaks_classify(&b, &p), STEP_OUTLYING);
    assert_int_equal(breaks_decide_outlier(&b, &p), ERR_INVALID); /* the third in a row */
    assert_non_null(strstr(report_line(), "training.outlying = skip does not help: step "
                                          "21 is an outlier again: its loss 4.15"));
    p.loss = 2.35 + 5.9 * 1.4826 * 0.2;
    assert_int_equal(breaks_classify(&b, &p), STEP_USUAL);
    assert_int_equal(b.in_row, 0);
    p.loss = 0; /* far below */
    p.grad_norm = 50;
    assert_int_equal(breaks_classify(&b, &p), STEP_OUTLYING);
    assert_true(b.outlier.is_norm);
}

TEST(test_outliers__the_settings_say_what_becomes_of_one)
{
    struct breaks b = {.config = &outlying};
    outlying.outlying = OUTLYING_WARN;
    struct progress p = go(&b, 20);
    p.grad_norm = 50;
    assert_int_equal(breaks_classify(&b, &p), STEP_WARNED);
    assert_true(p.outliers.norm.loss[15] == 50); /* it updates, so it counts */
    outlying.outlying = OUTLYING_ROLL_BACK;
    assert_int_equal(breaks_classify(&b, &p), STEP_OUTLYING);
    assert_int_equal(breaks_decide_outlier(&b, &p), 0);
    assert_int_equal(b.bad.first, 240);
    assert_int_equal(b.bad.count, 12);
    p.jumps.num = 1;
    assert_int_equal(breaks_decide_outlier(&b, &p), ERR_INVALID);
    outlying.replay_step = p.step;
    assert_int_equal(breaks_decide_outlier(&b, &p), 0);
    outlying.replay_step = 0;
    outlying.outlying = OUTLYING_OFF;
    assert_int_equal(breaks_classify(&b, &p), STEP_USUAL);
    assert_int_equal(p.outliers.norm.num, 0);
}

TEST(test_outliers__a_checkpoint_has_them_to_the_bit_and_anything_else_is_refused)
{
    static const char *const broken[] = {
        "[]",
        "{}",
        "{\"losses\": \"\", \"norms\": \"\"}",
        "{\"losses\": \"3ff0000000000000\", \"norms\": \"\", \"skipped\": []}",
        "{\"losses\": \"3ff\", \"norms\": \"3ff\", \"skipped\": []}",
        "{\"losses\": \"\", \"norms\": \"\", \"skipped\": [-1]}"};
    static struct outliers read;
    struct breaks b = {.config = &outlying};
    outlying.outlying = OUTLYING_SKIP;
    struct progress p = go(&b, 40);
    for (int64_t i = 0; i < 70; i++)
        outliers_skip(&p.outliers, i);
    json_t *json = outliers_json(&p.outliers);
    assert_int_equal(outliers_read(&read, json), 0);
    json_decref(json);
    assert_int_equal(read.num_skipped, 64);
    assert_memory_equal(read.skipped, p.outliers.skipped, sizeof(read.skipped));
    assert_int_equal(read.skipped[0], 6);
    assert_int_equal(read.loss.num, 16);
    assert_memory_equal(read.loss.loss, p.outliers.loss.loss, 16 * sizeof(double));
    assert_memory_equal(read.norm.loss, p.outliers.norm.loss, 16 * sizeof(double));
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        json = json_loads(broken[i], 0, NULL);
        assert_int_equal(outliers_read(&read, json), ERR_CORRUPT);
        json_decref(json);
        assert_int_equal(read.loss.num, 0);
    }
    assert_int_equal(outliers_read(&read, NULL), 0);
}

SUITE(NULL, NULL)
