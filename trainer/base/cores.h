/* cores.h - the number of cores on which this process may run. */
#ifndef HOLDFAST_TRAINER_BASE_CORES_H
#define HOLDFAST_TRAINER_BASE_CORES_H

#include <sched.h>
#include <stdint.h>

/* At least 1. */
static inline uint32_t cores_visible(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count > 0 ? (uint32_t)count : 1;
}

#endif
