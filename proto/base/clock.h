/* clock.h - the time, for all programs: monotonic times since a fixed moment before this process,
 * and the time of day. Whole seconds since 1970 are those of time(). */
#ifndef HOLDFAST_PROTO_BASE_CLOCK_H
#define HOLDFAST_PROTO_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define CLOCK_SECOND_NS UINT64_C(1000000000)

/* Nanoseconds on that clock. The functions below read it here, so that a test can move the time. */
uint64_t clock_read(clockid_t clock);

/* CLOCK_MONOTONIC. */
static inline uint64_t clock_ns(void)
{
    return clock_read(CLOCK_MONOTONIC);
}

static inline int64_t clock_ms(void)
{
    return (int64_t)(clock_ns() / 1000000);
}

static inline double clock_seconds(void)
{
    return (double)clock_ns() * 1e-9;
}

/* Since 1970, UTC; it jumps when the clock is set. */
static inline int64_t clock_wall_ms(void)
{
    return (int64_t)(clock_read(CLOCK_REALTIME) / 1000000);
}

static inline double clock_wall_seconds(void)
{
    return (double)clock_read(CLOCK_REALTIME) * 1e-9;
}

/* A deadline for waits on that clock. */
static inline struct timespec clock_after_ns(clockid_t clock, uint64_t ns)
{
    uint64_t at = clock_read(clock) + ns;
    return (struct timespec){(time_t)(at / CLOCK_SECOND_NS), (long)(at % CLOCK_SECOND_NS)};
}

/* Sleeps all of it, also when signals come. */
void clock_sleep_ns(uint64_t ns);

static inline void clock_sleep_ms(uint64_t ms)
{
    clock_sleep_ns(ms * 1000000);
}

static inline void clock_sleep(double seconds)
{
    clock_sleep_ns((uint64_t)(seconds * 1e9));
}

#endif
