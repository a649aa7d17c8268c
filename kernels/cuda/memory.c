/* memory.c - memory of a CUDA GPU: ON_DEVICE is cudaMalloc's, PINNED is page-locked and mapped for
 * every device. The device's list has all memory, to find an address in it. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "kernels/backend.h"
#include "kernels/cuda/device.h"
#include "proto/base/report.h"

struct allocation {
    struct allocation *next;
    void *at;
    size_t bytes;
    enum device_memory where;
};

static void free_memory(const struct allocation *allocation)
{
    if (allocation->where == ON_DEVICE)
        (void)cudaFree(allocation->at);
    else
        (void)cudaFreeHost(allocation->at);
}

int cuda_memory_alloc(struct device *base, void **out, size_t bytes, enum device_memory where)
{
    struct cuda_device *device = (struct cuda_device *)base;
    struct allocation *allocation = calloc(1, sizeof(*allocation));
    if (!allocation)
        return report_error(ERR_MEMORY, NULL, "no memory for a buffer's entry");
    cudaError_t error = cudaSetDevice(device->index);
    if (error == cudaSuccess && where == ON_DEVICE)
        error = cudaMalloc(&allocation->at, bytes);
    else if (error == cudaSuccess)
        error = cudaHostAlloc(&allocation->at, bytes, cudaHostAllocPortable);
    if (error != cudaSuccess) {
        char what[96];
        free(allocation);
        snprintf(what, sizeof(what), "could not allocate a %s of %zu bytes",
                 where == ON_DEVICE ? "buffer" : "page-locked buffer", bytes);
        return cuda_fail(error, what);
    }
    allocation->where = where;
    allocation->bytes = bytes;
    pthread_mutex_lock(&device->lock);
    allocation->next = device->allocations;
    device->allocations = allocation;
    pthread_mutex_unlock(&device->lock);
    *out = allocation->at;
    return 0;
}

void cuda_memory_free(struct device *base, void *at)
{
    struct cuda_device *device = (struct cuda_device *)base;
    struct allocation *found = NULL;
    pthread_mutex_lock(&device->lock);
    for (struct allocation **a = &device->allocations; *a && !found; a = found ? a : &(*a)->next) {
        if ((*a)->at == at) {
            found = *a;
            *a = found->next;
        }
    }
    pthread_mutex_unlock(&device->lock);
    REQUIRE(found);
    free_memory(found);
    free(found);
}

void cuda_memory_free_all(struct cuda_device *device)
{
    for (struct allocation *next, *a = device->allocations; a; a = next) {
        next = a->next;
        free_memory(a);
        free(a);
    }
}

bool cuda_memory_has(struct cuda_device *device, const void *at)
{
    bool is_there = false;
    pthread_mutex_lock(&device->lock);
    for (const struct allocation *a = device->allocations; a && !is_there; a = a->next)
        is_there = (const char *)at >= (char *)a->at && (const char *)at < (char *)a->at + a->bytes;
    pthread_mutex_unlock(&device->lock);
    return is_there;
}

int cuda_memory_room(struct device *base, struct device_room *out)
{
    size_t free_bytes = 0, all = 0;
    int count = 0;
    cudaError_t error = cudaSetDevice(((struct cuda_device *)base)->index);
    if (error == cudaSuccess)
        error = cudaMemGetInfo(&free_bytes, &all);
    if (error == cudaSuccess)
        error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess)
        return cuda_fail(error, "could not read how much memory the GPU has");
    *out = (struct device_room){.all = all, .free = free_bytes, .devices = (uint32_t)count};
    return 0;
}

/* From the system's entry of the GPU's place on the bus. */
static int node_on_bus(int index)
{
    char bus[32] = "", path[96];
    int node = -1;
    if (cudaDeviceGetPCIBusId(bus, sizeof(bus), index) != cudaSuccess)
        return -1;
    for (char *at = bus; *at != '\0'; at++)
        *at = (char)tolower((unsigned char)*at);
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", bus);
    FILE *file = fopen(path, "re");
    if (file != NULL && fscanf(file, "%d", &node) != 1)
        node = -1;
    if (file != NULL)
        fclose(file);
    return node;
}

/* Drivers before 12.2 do not have the attribute. */
uint32_t cuda_memory_node(struct device *base)
{
    int index = ((struct cuda_device *)base)->index, node = -1;
    if (cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, index) != cudaSuccess || node < 0)
        node = node_on_bus(index);
    (void)cudaGetLastError(); /* the next call must not see this error */
    return node >= 0 ? (uint32_t)node + 1 : 0;
}

/* Discrete GPUs cannot register memory that is mapped read-only. For them it is made writable
 * during the registration; the pages stay locked afterwards. `at` is the start of a page. */
static cudaError_t register_read_only(int index, void *at, size_t bytes)
{
    int can = 0;
    cudaError_t error =
        cudaDeviceGetAttribute(&can, cudaDevAttrHostRegisterReadOnlySupported, index);
    if (error == cudaSuccess && can)
        return cudaHostRegister(at, bytes, cudaHostRegisterPortable | cudaHostRegisterReadOnly);
    if (error == cudaSuccess && mprotect(at, bytes, PROT_READ | PROT_WRITE) != 0)
        error = cudaErrorNotSupported;
    if (error != cudaSuccess)
        return error;
    error = cudaHostRegister(at, bytes, cudaHostRegisterPortable);
    CHECK(mprotect(at, bytes, PROT_READ) == 0);
    return error;
}

/* The next launch checks the last error, so this error is cleared. */
int cuda_memory_pin(struct device *base, void *at, size_t bytes, bool is_read_only)
{
    int index = ((struct cuda_device *)base)->index;
    cudaError_t error = cudaSetDevice(index);
    if (error == cudaSuccess)
        error = is_read_only ? register_read_only(index, at, bytes)
                             : cudaHostRegister(at, bytes, cudaHostRegisterPortable);
    if (error == cudaSuccess)
        return 0;
    (void)cudaGetLastError();
    return cuda_fail(error, "memory could not be page-locked");
}

void cuda_memory_unpin(struct device *base, void *at)
{
    (void)base;
    if (cudaHostUnregister(at) != cudaSuccess)
        (void)cudaGetLastError();
}
