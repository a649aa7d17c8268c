/* proto_histogram.c - durations, counted by their length.
 *
 * Goal: a duration counts at its bound and at every longer one, and at no shorter one; the sum and
 * the number are of all. Method: durations at, below and above each bound, and their form in
 * Status. */
#include "proto/base/histogram.h"
#include "tests/unit/suite.h"

#include <jansson.h>

#include <stdio.h>

static json_int_t count_up_to(const struct histogram *histogram, const char *bound)
{
    json_t *told = histogram_describe(histogram);
    const json_t *count = json_object_get(json_object_get(told, "buckets"), bound);
    json_int_t found = json_is_integer(count) ? json_integer_value(count) : -1;
    json_decref(told);
    return found;
}

/* "0.001", "0.002", ...: the bounds as text. */
static void name_bound(char out[24], uint32_t index)
{
    snprintf(out, 24, "%.3f", (double)(UINT64_C(1) << index) / 1000.0);
}

TEST(test_histogram__what_equals_a_bound_counts_below_it_and_one_ms_more_does_not)
{
    char bound[24], next[24];
    for (uint32_t i = 0; i < HISTOGRAM_BOUNDS; i++) {
        struct histogram at = {.sum_us = 0}, above = {.sum_us = 0};
        name_bound(bound, i);
        name_bound(next, i + 1);
        histogram_add(&at, INT64_C(1) << i);
        histogram_add(&above, (INT64_C(1) << i) + 1);
        assert_int_equal(count_up_to(&at, bound), 1);
        assert_int_equal(count_up_to(&above, bound), 0);
        assert_int_equal(count_up_to(&above, i + 1 < HISTOGRAM_BOUNDS ? next : "+Inf"), 1);
    }
}

TEST(test_histogram__bounds_go_from_a_millisecond_to_more_than_an_hour)
{
    struct histogram histogram = {.sum_us = 0};
    histogram_add(&histogram, 0);
    histogram_add(&histogram, 3600 * 1000);
    histogram_add(&histogram, INT64_MAX / 2);
    assert_int_equal(count_up_to(&histogram, "0.001"), 1);
    assert_int_equal(count_up_to(&histogram, "2097.152"), 1);
    assert_int_equal(count_up_to(&histogram, "4194.304"), 2);
    assert_int_equal(count_up_to(&histogram, "8388.608"), -1);
    assert_int_equal(count_up_to(&histogram, "+Inf"), 3);
}

TEST(test_histogram__bounds_of_requests_go_from_50_us_to_minutes)
{
    struct histogram histogram = {.least_us = HISTOGRAM_REQUEST_US};
    histogram_add_us(&histogram, 50);
    histogram_add_us(&histogram, 51);
    histogram_add_us(&histogram, 209715200);
    histogram_add_us(&histogram, 209715201);
    assert_int_equal(count_up_to(&histogram, "0.00005"), 1);
    assert_int_equal(count_up_to(&histogram, "0.00010"), 2);
    assert_int_equal(count_up_to(&histogram, "209.71520"), 3);
    assert_int_equal(count_up_to(&histogram, "+Inf"), 4);
}

TEST(test_histogram__sum_and_count_are_of_all)
{
    struct histogram histogram = {.sum_us = 0};
    for (int i = 0; i < 3; i++)
        histogram_add(&histogram, 250);
    json_t *told = histogram_describe(&histogram);
    assert_int_equal(json_integer_value(json_object_get(told, "count")), 3);
    assert_true(json_real_value(json_object_get(told, "sum")) == 0.75);
    json_decref(told);
}

SUITE(NULL, NULL)
