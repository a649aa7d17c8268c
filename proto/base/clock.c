/* clock.c - reads the time, and sleeps. */
#include "proto/base/clock.h"

uint64_t clock_read(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * CLOCK_SECOND_NS + (uint64_t)now.tv_nsec;
}

void clock_sleep_ns(uint64_t ns)
{
    struct timespec left = {(time_t)(ns / CLOCK_SECOND_NS), (long)(ns % CLOCK_SECOND_NS)};
    while (nanosleep(&left, &left) != 0)
        continue;
}
