/* histogram.h - durations of repeated work, counted for Status and Prometheus; see histogram.c. */
#ifndef HOLDFAST_PROTO_BASE_HISTOGRAM_H
#define HOLDFAST_PROTO_BASE_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BOUNDS 23u
#define HISTOGRAM_REQUEST_US 50u /* least_us for requests to a disk or a server */

struct json_t;

/* All zeros: empty. */
struct histogram {
    uint64_t counts[HISTOGRAM_BOUNDS + 1]; /* the last: durations above every bound */
    uint64_t sum_us;
    uint32_t least_us; /* the first bound; 0: a millisecond */
};

void histogram_add(struct histogram *histogram, int64_t ms);
void histogram_add_us(struct histogram *histogram, int64_t us);
/* {"count", "sum", "buckets": {"0.001": how many took at most 1 ms, ..., "+Inf": all}}; seconds. */
struct json_t *histogram_describe(const struct histogram *histogram);

#endif
