/* histogram.h - how long something took, each time since ckptd started, for Status and Prometheus;
 * see histogram.c. */
#ifndef HOLDFAST_CKPTD_CORE_HISTOGRAM_H
#define HOLDFAST_CKPTD_CORE_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BOUNDS 23u

struct json_t;

/* All zeros: nothing was measured yet. */
struct histogram {
    uint64_t counts[HISTOGRAM_BOUNDS + 1]; /* the last: of what took longer than every bound */
    uint64_t sum_ms;
};

void histogram_add(struct histogram *histogram, int64_t ms);
/* {"count", "sum", "buckets": {"0.001": how many took at most 1 ms, ..., "+Inf": all}}; seconds. */
struct json_t *histogram_describe(const struct histogram *histogram);

#endif
