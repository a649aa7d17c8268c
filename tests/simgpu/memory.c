/* memory.c - memory of simulated devices, page-locked memory, registered memory (simgpu.h). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/base/report.h"
#include "tests/simgpu/private.h"

#define PAGE ((size_t)4096)
#define ALIGN ((size_t)256) /* the alignment of cudaMalloc */
#define POISON 0xff         /* NaN in every type */
#define POISON_BYTES ((size_t)4 << 20)

struct region *simgpu_region(const void *at)
{
    for (struct region *r = simgpu.regions; r != NULL; r = r->next)
        if ((const char *)at >= r->at && (const char *)at < r->at + r->bytes)
            return r;
    return NULL;
}

static void protect(const struct region *region, int how)
{
    if (region->kind == REGION_DEVICE)
        CHECK(mprotect(region->mapped, region->mapped_bytes - PAGE, how) == 0);
}

static uint32_t open_devices;

void simgpu_open_memory(uint32_t devices)
{
    for (const struct region *r = simgpu.regions; r != NULL; r = r->next)
        if (((devices ^ open_devices) >> r->device & 1) != 0)
            protect(r, (devices >> r->device & 1) != 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
    open_devices = devices;
}

void simgpu_unlock(void)
{
    simgpu_open_memory(0);
    pthread_mutex_unlock(&simgpu.lock);
}

void simgpu_wait(void)
{
    simgpu_open_memory(0);
    pthread_cond_wait(&simgpu.changed, &simgpu.lock);
}

static size_t device_bytes(int device)
{
    size_t bytes = 0;
    for (const struct region *r = simgpu.regions; r != NULL; r = r->next)
        if (r->kind == REGION_DEVICE && r->device == device)
            bytes += r->bytes;
    return bytes;
}

static uint64_t *count_of(enum region_kind kind)
{
    uint64_t *const counts[] = {&simgpu.counts.allocations, &simgpu.counts.pinned,
                                &simgpu.counts.registered};
    return counts[kind];
}

static void add(const struct region *from)
{
    struct region *region = malloc(sizeof(*region));
    CHECK(region != NULL);
    *region = *from;
    region->next = simgpu.regions;
    simgpu.regions = region;
    ++*count_of(region->kind);
}

/* A file of NaN, of which new memory is a private copy: pages that are not written cost nothing. */
static int poison_file(void)
{
    static int file = -1;
    static char poison[POISON_BYTES];
    if (file >= 0)
        return file;
    memset(poison, POISON, sizeof(poison));
    file = memfd_create("simgpu", MFD_CLOEXEC);
    CHECK(file >= 0 && write(file, poison, sizeof(poison)) == (ssize_t)sizeof(poison));
    return file;
}

static char *map_poison(size_t bytes)
{
    char *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (size_t done = 0; at != MAP_FAILED && done < bytes; done += POISON_BYTES) {
        size_t part = bytes - done < POISON_BYTES ? bytes - done : POISON_BYTES;
        CHECK(mmap(at + done, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, poison_file(),
                   0) != MAP_FAILED);
    }
    return at;
}

/* It ends at an inaccessible page. */
static cudaError_t map(void **out, size_t bytes, enum region_kind kind)
{
    size_t whole = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    size_t mapped_bytes = (whole + PAGE - 1) / PAGE * PAGE + PAGE;
    char *mapped = map_poison(mapped_bytes);
    if (mapped == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    CHECK(mprotect(mapped + mapped_bytes - PAGE, PAGE, PROT_NONE) == 0);
    struct region region = {.at = mapped + mapped_bytes - PAGE - whole,
                            .mapped = mapped,
                            .bytes = bytes,
                            .mapped_bytes = mapped_bytes,
                            .kind = kind,
                            .device = simgpu_device()};
    simgpu_open_memory(0);
    protect(&region, PROT_NONE);
    add(&region);
    *out = region.at;
    return cudaSuccess;
}

/* Implicitly after everything that is queued on the device, as in CUDA. */
static cudaError_t unmap(void *at, enum region_kind kind)
{
    const struct region *found = simgpu_region(at);
    if (at == NULL)
        return cudaSuccess;
    if (found == NULL || found->at != at || found->kind != kind)
        return cudaErrorInvalidValue;
    simgpu_finish_device(found->device);
    struct region **link = &simgpu.regions, *region;
    while ((*link)->at != at)
        link = &(*link)->next;
    region = *link;
    *link = region->next;
    --*count_of(kind);
    if (kind != REGION_REGISTERED) /* the addresses are never reused: old pointers are detected */
        CHECK(mmap(region->mapped, region->mapped_bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                   0) == region->mapped);
    free(region);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess && device_bytes(simgpu_device()) + bytes > simgpu.memory_bytes)
        error = cudaErrorMemoryAllocation;
    if (error == cudaSuccess)
        error = map(out, bytes, REGION_DEVICE);
    return simgpu_leave(error);
}

cudaError_t cudaFree(void *at)
{
    cudaError_t error = simgpu_enter(__func__);
    return simgpu_leave(error != cudaSuccess ? error : unmap(at, REGION_DEVICE));
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess && (flags & ~(unsigned)cudaHostAllocPortable) != 0)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        error = map(out, bytes, REGION_PINNED);
    return simgpu_leave(error);
}

cudaError_t cudaFreeHost(void *at)
{
    cudaError_t error = simgpu_enter(__func__);
    return simgpu_leave(error != cudaSuccess ? error : unmap(at, REGION_PINNED));
}

/* ---- Registered memory ---- */

/* Is all of it mapped so that this process may write? */
static bool is_writable(const void *at, size_t bytes)
{
    uintptr_t next = (uintptr_t)at, end = next + bytes;
    unsigned long from, to;
    char line[512], mode[8];
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(maps != NULL);
    while (next < end && fgets(line, sizeof(line), maps) != NULL)
        if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) == 3 && from <= next && next < to &&
            mode[1] == 'w')
            next = to;
    fclose(maps);
    return next >= end;
}

/* As boards other than the host's kind (cudaDevAttrHostRegisterReadOnlySupported is 0): with the
 * flag it is not supported, without it memory mapped read-only is an invalid value. */
static cudaError_t check_read_only(const void *at, size_t bytes, bool is_read_only)
{
    if (is_read_only)
        return simgpu.registers_read_only ? cudaSuccess : cudaErrorNotSupported;
    return is_writable(at, bytes) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned flags)
{
    cudaError_t error = simgpu_enter(__func__);
    unsigned known = cudaHostRegisterPortable | cudaHostRegisterReadOnly;
    bool is_wrong = at == NULL || bytes == 0 || (flags & ~known) != 0;
    if (error == cudaSuccess && is_wrong)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        error = check_read_only(at, bytes, (flags & cudaHostRegisterReadOnly) != 0);
    for (const struct region *r = simgpu.regions; r != NULL && error == cudaSuccess; r = r->next)
        if ((char *)at < r->at + r->bytes && r->at < (char *)at + bytes)
            error = cudaErrorHostMemoryAlreadyRegistered;
    if (error == cudaSuccess)
        add(&(struct region){
            .at = at, .bytes = bytes, .kind = REGION_REGISTERED, .device = simgpu_device()});
    return simgpu_leave(error);
}

struct copy {
    void *to;
    const void *from; /* NULL: the bytes that follow; with is_value: `value` in every byte */
    size_t bytes;
    bool is_value, is_flipped;
    int value;
    char staged[];
};

static void run_copy(void *args)
{
    const struct copy *copy = args;
    if (copy->is_value)
        memset(copy->to, copy->value, copy->bytes);
    else
        memcpy(copy->to, copy->from != NULL ? copy->from : copy->staged, copy->bytes);
    if (copy->is_flipped)
        *(char *)copy->to ^= 1;
}

static bool reaches(const struct region *region, const void *at, size_t bytes)
{
    return (const char *)at < region->at + region->bytes && region->at < (const char *)at + bytes;
}

/* Copies of the range that have not run. */
static uint32_t num_queued_copies(const struct region *region)
{
    uint32_t num = 0;
    for (const struct CUstream_st *s = simgpu.streams; s != NULL; s = s->next)
        for (const struct op *op = s->first; op != NULL; op = op->next) {
            const struct copy *copy = (const struct copy *)op->args;
            bool is_copy = op->kind == OP_WORK && op->work.run == run_copy;
            num += is_copy && (reaches(region, copy->to, copy->bytes) ||
                               (copy->from != NULL && reaches(region, copy->from, copy->bytes)));
        }
    return num;
}

/* CUDA does not define copies that are queued with freed memory: here it is a fault of the
 * caller. */
cudaError_t cudaHostUnregister(void *at)
{
    cudaError_t error = simgpu_enter(__func__);
    const struct region *region = simgpu_region(at);
    if (error != cudaSuccess)
        return simgpu_leave(error);
    if (region != NULL)
        CHECK(num_queued_copies(region) == 0);
    error = unmap(at, REGION_REGISTERED);
    return simgpu_leave(error == cudaErrorInvalidValue ? cudaErrorHostMemoryNotRegistered : error);
}

cudaError_t cudaMemGetInfo(size_t *free_out, size_t *total)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess) {
        *total = simgpu.memory_bytes;
        *free_out = *total - device_bytes(simgpu_device());
    }
    return simgpu_leave(error);
}

/* ---- Copies ---- */

/* For both ends: wholly inside one range, or host memory that the device does not know. */
static bool is_whole(const struct region *region, const void *at, size_t bytes)
{
    return region == NULL || (const char *)at + bytes <= region->at + region->bytes;
}

static uint32_t device_of(const void *at)
{
    const struct region *region = simgpu_region(at);
    return region != NULL && region->kind == REGION_DEVICE ? 1u << region->device : 0;
}

static bool must_flip(const struct copy *copy)
{
    bool comes = device_of(copy->from) == 0, goes = device_of(copy->to) == 0;
    struct flip *flip = comes ? &simgpu.flip : &simgpu.torn;
    bool is_counted =
        flip->at > 0 && copy->bytes >= flip->bytes && !copy->is_value && comes != goes;
    return is_counted && --flip->at == 0;
}

static void post_copy(cudaStream_t stream, const struct copy *from, bool is_staged)
{
    const struct simgpu_work work = {.run = run_copy,
                                     .devices = 1u << stream->device | device_of(from->to) |
                                                device_of(from->from)};
    size_t bytes = sizeof(*from) + (is_staged ? from->bytes : 0);
    struct copy *copy = malloc(bytes);
    CHECK(copy != NULL);
    *copy = *from;
    copy->is_flipped = must_flip(from);
    if (is_staged) {
        memcpy(copy->staged, from->from, from->bytes);
        copy->from = NULL;
    }
    simgpu_post(stream, simgpu_new_op(OP_WORK, &work, copy, bytes));
    free(copy);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    cudaError_t error = simgpu_enter(__func__);
    const struct region *target = simgpu_region(to), *source = simgpu_region(from);
    if (error == cudaSuccess && !simgpu_is_stream(stream))
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess && kind != cudaMemcpyDefault)
        error = cudaErrorInvalidMemcpyDirection;
    if (error == cudaSuccess && (!is_whole(target, to, bytes) || !is_whole(source, from, bytes)))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess && (target == NULL || source == NULL) && simgpu_spoils_capture(stream))
        error = cudaErrorStreamCaptureUnsupported; /* it goes by way of CUDA's own buffer */
    if (error == cudaSuccess) {
        bool is_pageable = target == NULL || source == NULL;
        simgpu.counts.copies++;
        simgpu.counts.staged_copies += is_pageable;
        post_copy(stream, &(struct copy){.to = to, .from = from, .bytes = bytes}, source == NULL);
        if (target == NULL)
            simgpu_finish(stream, stream->posted);
    }
    return simgpu_leave(error);
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t stream)
{
    cudaError_t error = simgpu_enter(__func__);
    const struct region *region = simgpu_region(at);
    if (error == cudaSuccess && !simgpu_is_stream(stream))
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess && (region == NULL || !is_whole(region, at, bytes)))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        post_copy(stream,
                  &(struct copy){.to = at, .bytes = bytes, .is_value = true, .value = value},
                  false);
    return simgpu_leave(error);
}
