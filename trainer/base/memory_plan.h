/* memory_plan.h - the static memory plan: every large buffer of a rank, placed before the first
 * step.
 *
 * The step's code takes and gives back named buffers:
 *
 *     float *gate = memory_take(memory, "gate", layer, bytes);
 *     ...
 *     memory_give(memory, "gate", layer);
 *
 * First the step is walked without arithmetic (a dry run). While that records, take() answers NULL
 * and the plan notes when each buffer is born and given back. memory_commit() then places buffers
 * so that those whose lives do not meet may share addresses, allocates, and from there on take()
 * answers the same address for the same (name, index), step after step; nothing is allocated while
 * training runs. A (name, index) may be taken again after it was given: a life more. A buffer that
 * is never given back lives for the whole run and shares with nobody.
 *
 * Names must be string constants (compared by content; the pointer is kept). Addresses are aligned
 * to MEMORY_ALIGN bytes. Threads: one owner. */
#ifndef HOLDFAST_TRAINER_BASE_MEMORY_PLAN_H
#define HOLDFAST_TRAINER_BASE_MEMORY_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define MEMORY_ALIGN ((size_t)128)
#define MEMORY_BUFFERS_MAX (1u << 20) /* in one plan; more are refused by memory_place */

struct device;
struct memory;

int memory_new(struct memory **out); /* recording */
void memory_free(struct memory *memory);

void *memory_take(struct memory *memory, const char *name, uint32_t index, size_t bytes);
/* Likewise, of host memory that the device reaches (PINNED), and never given back. */
void *memory_take_on_host(struct memory *memory, const char *name, uint32_t index, size_t bytes);
void memory_give(struct memory *memory, const char *name, uint32_t index);

/* In a dry run: no arithmetic, no communication. */
bool memory_is_recording(const struct memory *memory);
/* Ends the recording: places all buffers. ERR_MEMORY. */
int memory_place(struct memory *memory);
/* After memory_place: allocates on the device, which must outlive the memory; NULL: pages of the
 * host, zeroed. ERR_MEMORY with the sum. */
int memory_commit(struct memory *memory, struct device *device);

/* Of the device's memory: bytes of the buffers that live for the whole run, and of the area that
 * the step's buffers share. */
uint64_t memory_kept_bytes(const struct memory *memory);
uint64_t memory_shared_bytes(const struct memory *memory);
uint64_t memory_host_bytes(const struct memory *memory);
/* Sum of the step's buffers, as if none shared an address. */
uint64_t memory_unshared_bytes(const struct memory *memory);
/* The most that the buffers of a name take at a time. */
struct memory_part {
    const char *name;
    uint64_t bytes;
};
/* The largest names, on the host or on the device, the largest first; how many there are, at most
 * `most`. */
uint32_t memory_largest(const struct memory *memory, bool is_on_host, struct memory_part *out,
                        uint32_t most);
/* The most that buffers which `wants` chooses by name take at a time. After memory_place. */
uint64_t memory_peak(const struct memory *memory, bool (*wants)(const char *name, const void *user),
                     const void *user);
/* One line per name: how many, bytes, whole run or step. */
void memory_print(const struct memory *memory, FILE *out);

#endif
