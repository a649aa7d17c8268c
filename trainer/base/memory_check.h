/* memory_check.h - checks that memory suffices for a start's allocations. */
#ifndef HOLDFAST_TRAINER_BASE_MEMORY_CHECK_H
#define HOLDFAST_TRAINER_BASE_MEMORY_CHECK_H

#include "trainer/base/memory_plan.h"

/* Bytes that this process may still take: MemAvailable and free swap, bounded by the limits of its
 * control groups (versions 1 and 2). `root`: "", or a folder with proc and sys for tests.
 * UINT64_MAX: the system does not say. */
uint64_t memory_check_available(const char *root);
/* The most available memory without swap: the machine's memory, bounded by the same limits. */
uint64_t memory_check_capacity(const char *root);

/* Memory of this process in bytes; 0: the system does not say. */
struct memory_check_taken {
    uint64_t peak; /* resident, since the start or since memory_check_forget_peak() */
    uint64_t own;  /* not of a file, and not shared with ckptd; swapped out or not */
};
struct memory_check_taken memory_check_taken(const char *root);
void memory_check_forget_peak(const char *root);

/* The kind of memory, and so the part of a plan. A machine that computes on CPUs has the whole
 * plan. */
enum memory_check_of { MEMORY_MACHINE, MEMORY_GPU, MEMORY_HOST_OF_GPU };
/* Memory of a GPU's libraries outside plans, in bytes: once, and for each rank. */
struct memory_beside {
    uint64_t once, each;
};
struct memory_need {
    const struct memory *plan;
    enum memory_check_of of;
    uint32_t num_ranks; /* of this plan, on this machine */
    struct memory_beside beside;
};
/* ERR_INVALID: the need exceeds the available memory; the message has the plan's largest parts.
 * Allocates nothing. */
int memory_check(const struct memory_need *need, uint64_t available);
/* The same for a GPU's memory, before the rank allocates any. Ranks that are threads of this
 * process take the GPUs in turn; a process has a GPU alone: num_threads is 1. ERR_UNAVAILABLE. */
int memory_check_device(const struct memory *plan, const struct memory_beside *beside,
                        struct device *device, uint32_t num_threads);

#endif
