/* clock.h - measures time. */
#ifndef HOLDFAST_TRAINER_BASE_CLOCK_H
#define HOLDFAST_TRAINER_BASE_CLOCK_H

#include <time.h>

/* Seconds since a fixed moment before this process (CLOCK_MONOTONIC). */
static inline double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void clock_sleep(double seconds)
{
    long whole = (long)seconds;
    nanosleep(&(struct timespec){whole, (long)((seconds - (double)whole) * 1e9)}, NULL);
}

#endif
