/* meter.c - counts a store's requests, their bytes and their times; for a bucket also the requests
 * to its server.
 *
 * A request is measured from storage_submit() to storage_done(), so the wait for the device's depth
 * counts, as the caller waits for it, too. Times are counted in buckets of a quarter of an octave
 * of microseconds; a percentile is the upper end of its bucket, at most a quarter too high. After
 * WINDOW requests each bucket is halved, so percentiles are those of the last few thousand. A
 * histogram has all requests, for rates. */
#include "storage/engine/meter.h"
#include "proto/base/clock.h"
#include "storage/engine/measured.h"

#include <pthread.h>
#include <stdlib.h>

#define BUCKETS 124u /* up to 71 minutes */
#define WINDOW 4096u

struct counted {
    uint64_t operations, bytes;
    uint32_t times[BUCKETS], num_times;
    struct histogram seconds;
};

struct storage_meter {
    pthread_mutex_t mutex; /* of the following */
    struct counted of[STORAGE_MEASURES];
    uint32_t in_work;
};

static uint32_t bucket_of(uint64_t us)
{
    if (us < 4)
        return (uint32_t)us;
    uint32_t octave = 63u - (uint32_t)__builtin_clzll(us);
    uint32_t bucket = 4 * (octave - 1) + (uint32_t)(us >> (octave - 2) & 3);
    return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

static double seconds_of(uint32_t bucket)
{
    uint64_t us = bucket < 4 ? bucket + 1 : (5ull + bucket % 4) << (bucket / 4 - 1);
    return (double)us * 1e-6;
}

static double percentile(const struct counted *counted, double part)
{
    double left = part * counted->num_times;
    for (uint32_t i = 0; i < BUCKETS; i++) {
        left -= counted->times[i];
        if (left <= 0 && counted->num_times > 0)
            return seconds_of(i);
    }
    return 0;
}

const char *storage_measure_name(unsigned measure)
{
    static const char *const names[] = {"read", "write", "sync", "get",   "put",
                                        "head", "list",  "post", "delete"};
    _Static_assert(sizeof names / sizeof *names == STORAGE_MEASURES, "a name for each");
    return names[measure];
}

struct storage_meter *storage_meter_new(void)
{
    struct storage_meter *meter = calloc(1, sizeof *meter);
    if (meter == NULL)
        return NULL;
    pthread_mutex_init(&meter->mutex, NULL);
    for (unsigned what = 0; what < STORAGE_MEASURES; what++)
        meter->of[what].seconds.least_us = HISTOGRAM_REQUEST_US;
    return meter;
}

void storage_meter_free(struct storage_meter *meter)
{
    if (meter != NULL)
        pthread_mutex_destroy(&meter->mutex);
    free(meter);
}

void storage_meter_begin(struct storage_meter *meter, struct storage_request *request)
{
    request->meter = meter;
    if (meter == NULL)
        return;
    request->begun_us = clock_ns() / 1000;
    pthread_mutex_lock(&meter->mutex);
    meter->in_work++;
    pthread_mutex_unlock(&meter->mutex);
}

static void count(struct counted *counted, uint64_t bytes, uint64_t us)
{
    counted->operations++;
    counted->bytes += bytes;
    histogram_add_us(&counted->seconds, (int64_t)us);
    counted->times[bucket_of(us)]++;
    if (++counted->num_times < WINDOW)
        return;
    counted->num_times = 0;
    for (uint32_t i = 0; i < BUCKETS; i++)
        counted->num_times += counted->times[i] /= 2;
}

void storage_done(struct storage_request *request)
{
    struct storage_meter *meter = request->meter;
    if (meter != NULL) {
        uint64_t us = clock_ns() / 1000 - request->begun_us;
        bool has_bytes = request->error == 0 && request->op != STORAGE_SYNC;
        pthread_mutex_lock(&meter->mutex);
        count(&meter->of[request->op], has_bytes ? request->bytes : 0, us);
        meter->in_work--;
        pthread_mutex_unlock(&meter->mutex);
    }
    request->done(request);
}

void storage_meter_count(struct storage_meter *meter, enum storage_measure what, uint64_t us)
{
    if (meter == NULL)
        return;
    pthread_mutex_lock(&meter->mutex);
    count(&meter->of[what], 0, us);
    pthread_mutex_unlock(&meter->mutex);
}

void storage_measured(struct storage *storage, struct storage_measured *out)
{
    struct storage_meter *meter = ((struct storage_base *)(void *)storage)->meter;
    *out = (struct storage_measured){0};
    if (meter == NULL)
        return;
    pthread_mutex_lock(&meter->mutex);
    out->in_work = meter->in_work;
    for (unsigned what = 0; what < STORAGE_MEASURES; what++) {
        const struct counted *of = &meter->of[what];
        out->of[what] = (struct storage_measured_op){.operations = of->operations,
                                                     .bytes = of->bytes,
                                                     .p50_seconds = percentile(of, 0.5),
                                                     .p99_seconds = percentile(of, 0.99),
                                                     .seconds = of->seconds};
    }
    pthread_mutex_unlock(&meter->mutex);
}
