/* histogram.c - durations, counted by their length.
 *
 * The bounds are 1 ms, 2 ms, 4 ms, ... to 4194.304 s: each is twice the one before, so a quantile
 * that is read from the counts is at most a factor of two off. A duration that equals a bound
 * counts below it, as Prometheus has it ("le"). */
#include "ckptd/core/histogram.h"

#include <jansson.h>

#include <stdio.h>

void histogram_add(struct histogram *histogram, int64_t ms)
{
    uint32_t bound = 0;
    while (bound < HISTOGRAM_BOUNDS && ms > INT64_C(1) << bound)
        bound++;
    histogram->counts[bound]++;
    histogram->sum_ms += ms > 0 ? (uint64_t)ms : 0;
}

json_t *histogram_describe(const struct histogram *histogram)
{
    json_t *buckets = json_object();
    json_int_t count = 0;
    for (uint32_t i = 0; i <= HISTOGRAM_BOUNDS; i++) {
        char bound[24] = "+Inf";
        if (i < HISTOGRAM_BOUNDS)
            snprintf(bound, sizeof bound, "%.3f", (double)(INT64_C(1) << i) / 1000.0);
        count += (json_int_t)histogram->counts[i];
        json_object_set_new(buckets, bound, json_integer(count));
    }
    return json_pack("{s:I, s:f, s:o}", "count", count, "sum", (double)histogram->sum_ms / 1000.0,
                     "buckets", buckets);
}
