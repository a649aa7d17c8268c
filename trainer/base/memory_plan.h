/* memory_plan.h - the static memory plan: every large buffer of a rank, placed before the first
 * step.
 *
 * The step's code takes and gives back named buffers:
 *
 *     float *gate = memory_take(memory, "gate", layer, bytes);
 *     ...
 *     memory_give(memory, "gate", layer);
 *
 * First the step is walked without arithmetic (a dry run). While that records, take() returns NULL,
 * and the plan notes each take and give. memory_place() then places buffers so that those with
 * separate lives may share addresses, and memory_commit() allocates. From then on take() returns
 * the same address for the same (name, index) in each step; training allocates nothing. A (name,
 * index) may be taken again after it was given: this adds a life. A buffer that is never given back
 * lives for the whole run and shares no memory.
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
/* Likewise, of host memory that the device can access (PINNED), never given back. */
void *memory_take_on_host(struct memory *memory, const char *name, uint32_t index, size_t bytes);
void memory_give(struct memory *memory, const char *name, uint32_t index);

/* True in a dry run: no arithmetic, no communication. */
bool memory_is_recording(const struct memory *memory);
/* Ends the recording: places all buffers. ERR_MEMORY. */
int memory_place(struct memory *memory);
/* Call after memory_place: allocates on the device, which must outlive the memory; NULL: zeroed
 * pages of the host. ERR_MEMORY with the sum. */
int memory_commit(struct memory *memory, struct device *device);

/* In the device's memory: bytes of buffers that live for the whole run, and of the area that the
 * step's buffers share. */
uint64_t memory_kept_bytes(const struct memory *memory);
uint64_t memory_shared_bytes(const struct memory *memory);
uint64_t memory_host_bytes(const struct memory *memory);
/* Sum of the step's buffers, as if they shared no addresses. */
uint64_t memory_unshared_bytes(const struct memory *memory);
/* The most memory that the buffers of a name use at a time. */
struct memory_part {
    const char *name;
    uint64_t bytes;
};
/* Lists the names with the most memory, on the host or on the device, the largest first. Returns
 * their number, at most `most`. */
uint32_t memory_largest(const struct memory *memory, bool is_on_host, struct memory_part *out,
                        uint32_t most);
/* The most memory used at a time by buffers that `wants` selects by name. After memory_place. */
uint64_t memory_peak(const struct memory *memory, bool (*wants)(const char *name, const void *user),
                     const void *user);
/* Prints one line per name: number of buffers, bytes, whole run or step. */
void memory_print(const struct memory *memory, FILE *out);

#endif
