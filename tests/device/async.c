/* async.c - the device of async.h: lanes of the CPU's device behind queues, each operation wrapped
 * in a delay and in permission to touch the device's memory.
 *
 * Regions are mapped one by one, each page-aligned, and listed. `running` counts the operations
 * that run at this moment on any lane; the first opens all regions, the last closes them.
 *
 * Lock: `lock` of the device guards regions and `running`, and each lane's list. */
#include "tests/device/async.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "proto/base/report.h"
#include "tests/unit/random.h"

#define PAGE ((size_t)4096)
#define DELAY_US_DEFAULT 200
#define POISON 0xff /* NaN in every type */

struct region {
    char *at;
    size_t bytes;
    enum device_memory where;
    bool is_foreign; /* pinned memory of another owner */
    struct region *next;
};

struct async_device {
    struct device base;
    struct device *cpu; /* whose lanes do the work */
    struct async_options options;
    pthread_mutex_t lock;
    struct region *regions;
    uint32_t running, num_lanes;
};

struct async_lane {
    struct lane base;
    struct lane *cpu;
    uint64_t seed;      /* of its delays; its thread's alone */
    struct late *first; /* operations that have not run yet: a lane with an error drops them */
};

static struct async_device *device_of(const struct device *device)
{
    return (struct async_device *)device;
}
static struct async_lane *of(const struct lane *lane)
{
    return (struct async_lane *)lane;
}

/* ---- Memory ---- */

static void protect(const struct region *region, int how)
{
    if (region->where == ON_DEVICE)
        CHECK(mprotect(region->at, region->bytes, how) == 0);
}

static void enter(struct async_device *device)
{
    pthread_mutex_lock(&device->lock);
    if (device->running++ == 0)
        for (struct region *r = device->regions; r != NULL; r = r->next)
            protect(r, PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&device->lock);
}

static void leave(struct async_device *device)
{
    pthread_mutex_lock(&device->lock);
    if (--device->running == 0)
        for (struct region *r = device->regions; r != NULL; r = r->next)
            protect(r, PROT_NONE);
    pthread_mutex_unlock(&device->lock);
}

static int async_alloc(struct device *base, void **out, size_t bytes, enum device_memory where)
{
    struct async_device *device = device_of(base);
    struct region *region = malloc(sizeof(*region));
    size_t whole = (bytes + PAGE) / PAGE * PAGE;
    void *at = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region == NULL || at == MAP_FAILED) {
        free(region);
        return report_error(ERR_MEMORY, NULL, "no memory for a buffer of %zu bytes", bytes);
    }
    memset(at, POISON, whole);
    pthread_mutex_lock(&device->lock);
    *region = (struct region){at, whole, where, false, device->regions};
    device->regions = region;
    if (device->running == 0)
        protect(region, PROT_NONE);
    pthread_mutex_unlock(&device->lock);
    *out = at;
    return 0;
}

static int async_pin(struct device *base, void *at, size_t bytes, bool is_read_only)
{
    struct async_device *device = device_of(base);
    struct region *region = malloc(sizeof(*region));
    (void)is_read_only;
    CHECK(region != NULL);
    pthread_mutex_lock(&device->lock);
    *region = (struct region){at, bytes, PINNED, true, device->regions};
    device->regions = region;
    pthread_mutex_unlock(&device->lock);
    return 0;
}

static void async_free(struct device *base, void *at)
{
    struct async_device *device = device_of(base);
    pthread_mutex_lock(&device->lock);
    struct region **link = &device->regions;
    while (*link != NULL && (*link)->at != at)
        link = &(*link)->next;
    struct region *region = *link;
    CHECK(region != NULL);
    *link = region->next;
    pthread_mutex_unlock(&device->lock);
    if (!region->is_foreign)
        munmap(region->at, region->bytes);
    free(region);
}

static bool async_owns(struct device *base, const void *at)
{
    struct async_device *device = device_of(base);
    bool found = false;
    pthread_mutex_lock(&device->lock);
    for (struct region *r = device->regions; r != NULL && !found; r = r->next)
        found = (const char *)at >= r->at && (const char *)at < r->at + r->bytes;
    pthread_mutex_unlock(&device->lock);
    return found;
}

/* ---- The device ---- */

static int async_open(struct device **out, const struct device_options *options)
{
    struct async_device *device = calloc(1, sizeof(*device));
    if (device == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the device of tests");
    device->base.ops = &device_async;
    if (options != NULL && options->custom != NULL)
        device->options = *(const struct async_options *)options->custom;
    if (device->options.delay_us_max == 0)
        device->options.delay_us_max = DELAY_US_DEFAULT;
    pthread_mutex_init(&device->lock, NULL);
    int rc = device_open(&device->cpu, &device_cpu, &(struct device_options){.is_queued = true});
    if (rc != 0) {
        free(device);
        return rc;
    }
    *out = &device->base;
    return 0;
}

static void async_close(struct device *base)
{
    struct async_device *device = device_of(base);
    while (device->regions != NULL)
        async_free(base, device->regions->at);
    device_close(device->cpu);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

/* ---- Lanes ---- */

static int async_lane_open(struct device *base, struct lane **out, const char *name,
                           enum lane_kind kind)
{
    struct async_device *device = device_of(base);
    struct async_lane *lane = calloc(1, sizeof(*lane));
    if (lane == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the lane %s", name);
    lane->base = (struct lane){.ops = base->ops, .device = base};
    pthread_mutex_lock(&device->lock);
    lane->seed = device->options.seed * 1000 + device->num_lanes++;
    pthread_mutex_unlock(&device->lock);
    int rc = lane_open(&lane->cpu, device->cpu, name, kind);
    if (rc != 0) {
        free(lane);
        return rc;
    }
    *out = &lane->base;
    return 0;
}

/* One operation in a queue: late, and with the device's memory open. */
struct late {
    struct async_lane *lane;
    lane_fn *fn;
    const void *pointer; /* NULL: args */
    struct late *next;
    max_align_t args[LANE_ARGS_MAX / sizeof(max_align_t)];
};

static void unlink_late(struct async_device *device, struct late *late)
{
    pthread_mutex_lock(&device->lock);
    struct late **link = &late->lane->first;
    while (*link != late)
        link = &(*link)->next;
    *link = late->next;
    pthread_mutex_unlock(&device->lock);
    free(late);
}

static void async_lane_close(struct lane *base)
{
    struct async_lane *lane = of(base);
    lane_close(lane->cpu);
    while (lane->first != NULL)
        unlink_late(device_of(base->device), lane->first);
    free(lane);
}

static int run_late(void *argument)
{
    struct late *late = argument;
    struct async_device *device = device_of(late->lane->base.device);
    uint64_t us = splitmix64(&late->lane->seed) % device->options.delay_us_max;
    if (us > 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000}, NULL);
    enter(device);
    int rc = late->fn(late->pointer != NULL ? (void *)late->pointer : late->args);
    leave(device);
    unlink_late(device, late);
    return rc;
}

static void async_call(struct lane *base, lane_fn *fn, const void *args, size_t bytes)
{
    struct late *late = calloc(1, sizeof(*late));
    CHECK(late != NULL);
    *late = (struct late){.lane = of(base), .fn = fn, .pointer = bytes > 0 ? NULL : args};
    if (bytes > 0)
        memcpy(late->args, args, bytes);
    struct async_device *device = device_of(base->device);
    pthread_mutex_lock(&device->lock);
    late->next = of(base)->first;
    of(base)->first = late;
    pthread_mutex_unlock(&device->lock);
    lane_call(of(base)->cpu, run_late, late, 0);
}

static void async_mark(struct lane *base, struct mark *mark)
{
    lane_mark(of(base)->cpu, mark);
    mark->lane = base;
}

static void async_wait(struct lane *base, const struct mark *mark)
{
    struct mark inner = {.lane = of(mark->lane)->cpu, .sequence = mark->sequence};
    lane_wait(of(base)->cpu, &inner);
}

struct copy {
    struct device *device;
    void *to;
    const void *from; /* NULL: zeros */
    size_t bytes;
};

static int run_copy(void *args)
{
    const struct copy *copy = args;
    /* Memory that was unpinned meanwhile is not the device's any more. */
    CHECK(async_owns(copy->device, copy->to));
    CHECK(copy->from == NULL || async_owns(copy->device, copy->from));
    if (copy->from != NULL)
        memcpy(copy->to, copy->from, copy->bytes);
    else
        memset(copy->to, 0, copy->bytes);
    return 0;
}

static void async_copy(struct lane *lane, void *to, const void *from, size_t bytes)
{
    struct copy copy = {lane->device, to, from, bytes};
    async_call(lane, run_copy, &copy, sizeof(copy));
}

static void async_zero(struct lane *lane, void *at, size_t bytes)
{
    async_copy(lane, at, NULL, bytes);
}

static int async_settle(struct lane *base, const struct mark *mark)
{
    struct async_lane *lane = of(base);
    if (mark == NULL)
        return lane_settle(lane->cpu);
    return lane_settle_mark(lane->cpu,
                            &(struct mark){.lane = lane->cpu, .sequence = mark->sequence});
}

const struct device_ops device_async = {
    .name = "async",
    .flags = DEVICE_HOST_MEMORY | DEVICE_QUEUED,
    .open = async_open,
    .close = async_close,
    .alloc = async_alloc,
    .free = async_free,
    .owns = async_owns,
    .pin = async_pin,
    .unpin = async_free,
    .lane_open = async_lane_open,
    .lane_close = async_lane_close,
    .mark = async_mark,
    .wait = async_wait,
    .copy = async_copy,
    .zero = async_zero,
    .call = async_call,
    .settle = async_settle,
};
