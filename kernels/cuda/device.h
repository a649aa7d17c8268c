/* device.h - a GPU as a device, shared by device.c (lanes, the back-end) and memory.c. `lock`
 * guards its list of memory and its list of events. */
#ifndef HOLDFAST_KERNELS_CUDA_DEVICE_H
#define HOLDFAST_KERNELS_CUDA_DEVICE_H

#include <cuda_runtime_api.h>
#include <pthread.h>

#include "kernels/device.h"

struct cuda_device {
    struct device base;
    int index, capability; /* capability: ten times the number */
    size_t memory_bytes;
    pthread_mutex_t lock;
    struct allocation *allocations;
    struct event *events;
    bool has_no_graphs;
    char name[300]; /* for describe */
    char identity[96];
};

/* device.c. Returns the code of report.h, ERR_MEMORY or ERR_UNAVAILABLE, with the text. */
int cuda_fail(cudaError_t error, const char *what);

/* memory.c. Slots of struct device_ops. */
int cuda_memory_alloc(struct device *base, void **out, size_t bytes, enum device_memory where);
void cuda_memory_free(struct device *base, void *at);
int cuda_memory_room(struct device *base, struct device_room *out);
uint32_t cuda_memory_node(struct device *base);
int cuda_memory_pin(struct device *base, void *at, size_t bytes, bool is_read_only);
void cuda_memory_unpin(struct device *base, void *at);

void cuda_memory_free_all(struct cuda_device *device);
bool cuda_memory_has(struct cuda_device *device, const void *at);

#endif
