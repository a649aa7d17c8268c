/* clock.h - how long something takes. */
#ifndef HOLDFAST_TRAINER_BASE_CLOCK_H
#define HOLDFAST_TRAINER_BASE_CLOCK_H

#include <time.h>

/* Seconds since some moment before this process (CLOCK_MONOTONIC). */
static inline double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#endif
