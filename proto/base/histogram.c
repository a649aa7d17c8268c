/* histogram.c - histograms of durations.
 *
 * The bounds are 1 ms, 2 ms, 4 ms, ... to 4194.304 s. Each is twice the one before, so a quantile
 * from the counts is at most a factor of two off. The bounds for requests are 50 us to 209.7152 s.
 * A duration that equals a bound counts below it, as in Prometheus ("le"). */
#include "proto/base/histogram.h"

#include <jansson.h>

#include <stdio.h>

static int64_t bound_us(const struct histogram *histogram, uint32_t index)
{
    return (int64_t)(histogram->least_us > 0 ? histogram->least_us : 1000) << index;
}

void histogram_add_us(struct histogram *histogram, int64_t us)
{
    uint32_t bound = 0;
    while (bound < HISTOGRAM_BOUNDS && us > bound_us(histogram, bound))
        bound++;
    histogram->counts[bound]++;
    histogram->sum_us += us > 0 ? (uint64_t)us : 0;
}

void histogram_add(struct histogram *histogram, int64_t ms)
{
    histogram_add_us(histogram, ms < INT64_MAX / 1000 ? ms * 1000 : INT64_MAX);
}

json_t *histogram_describe(const struct histogram *histogram)
{
    json_t *buckets = json_object();
    json_int_t count = 0;
    for (uint32_t i = 0; i <= HISTOGRAM_BOUNDS; i++) {
        char bound[24] = "+Inf";
        if (i < HISTOGRAM_BOUNDS)
            snprintf(bound, sizeof bound, histogram->least_us > 0 ? "%.5f" : "%.3f",
                     (double)bound_us(histogram, i) / 1e6);
        count += (json_int_t)histogram->counts[i];
        json_object_set_new(buckets, bound, json_integer(count));
    }
    return json_pack("{s:I, s:f, s:o}", "count", count, "sum", (double)histogram->sum_us / 1e6,
                     "buckets", buckets);
}
