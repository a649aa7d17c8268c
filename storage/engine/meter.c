/* meter.c - how many requests a store has carried out, of how many bytes, and in what time.
 *
 * A request is measured from storage_submit() to storage_done(), so the wait for the device's depth
 * counts: it is what the caller waits. Times lie in buckets of a quarter of an octave of
 * microseconds; a percentile is the upper end of its bucket, at most a quarter too high. When
 * WINDOW requests have been counted each bucket is halved, so percentiles are those of the last few
 * thousand. */
#include "storage/engine/meter.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define BUCKETS 124u /* up to 71 minutes */
#define WINDOW 4096u

struct counted {
    uint64_t operations, bytes;
    uint32_t times[BUCKETS], num_times;
};

struct storage_meter {
    pthread_mutex_t mutex; /* of what follows */
    struct counted of[STORAGE_OPS];
    uint32_t in_work;
};

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

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

struct storage_meter *storage_meter_new(void)
{
    struct storage_meter *meter = calloc(1, sizeof *meter);
    if (meter != NULL)
        pthread_mutex_init(&meter->mutex, NULL);
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
    request->begun_us = now_us();
    pthread_mutex_lock(&meter->mutex);
    meter->in_work++;
    pthread_mutex_unlock(&meter->mutex);
}

static void count(struct counted *counted, const struct storage_request *request, uint64_t us)
{
    counted->operations++;
    counted->bytes += request->error == 0 && request->op != STORAGE_SYNC ? request->bytes : 0;
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
        uint64_t us = now_us() - request->begun_us;
        pthread_mutex_lock(&meter->mutex);
        count(&meter->of[request->op], request, us);
        meter->in_work--;
        pthread_mutex_unlock(&meter->mutex);
    }
    request->done(request);
}

void storage_measured(struct storage *storage, struct storage_measured *out)
{
    struct storage_meter *meter = ((struct storage_base *)(void *)storage)->meter;
    *out = (struct storage_measured){0};
    if (meter == NULL)
        return;
    pthread_mutex_lock(&meter->mutex);
    out->in_work = meter->in_work;
    for (uint32_t op = 0; op < STORAGE_OPS; op++)
        out->of[op] = (struct storage_measured_op){.operations = meter->of[op].operations,
                                                   .bytes = meter->of[op].bytes,
                                                   .p50_seconds = percentile(&meter->of[op], 0.5),
                                                   .p99_seconds = percentile(&meter->of[op], 0.99)};
    pthread_mutex_unlock(&meter->mutex);
}
