/* device.c - the functions of device.h: thin calls of a back-end's table, with the asserts. */
#include <string.h>

#include "kernels/backend.h"

/* Defined in programs that link kernels/cuda/device.c. */
extern const struct device_ops device_cuda __attribute__((weak));

const struct device_ops *device_find(const char *name)
{
    const struct device_ops *const all[] = {&device_cpu, &device_cuda};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i] && strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

int device_open(struct device **out, const struct device_ops *ops,
                const struct device_options *options)
{
    *out = NULL;
    return ops->open(out, options);
}

void device_close(struct device *device)
{
    if (device)
        device->ops->close(device);
}

int device_alloc(struct device *device, void **out, size_t bytes, enum device_memory where)
{
    *out = NULL;
    return device->ops->alloc(device, out, bytes, where);
}

void device_free(struct device *device, void *at)
{
    if (at)
        device->ops->free(device, at);
}

bool device_owns(struct device *device, const void *at)
{
    return !device->ops->owns || device->ops->owns(device, at);
}

uint32_t device_memory_node(struct device *device)
{
    return device->ops->memory_node ? device->ops->memory_node(device) : 0;
}

const char *device_identity(struct device *device)
{
    return device->ops->identity ? device->ops->identity(device) : "";
}

void device_health(struct device *device, struct device_health *out)
{
    *out = (struct device_health){-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, ""};
    if (device->ops->health)
        device->ops->health(device, out);
}

int device_room(struct device *device, struct device_room *out)
{
    *out = (struct device_room){0};
    return device->ops->room ? device->ops->room(device, out) : 0;
}

int device_pin(struct device *device, void *at, size_t bytes, bool is_read_only)
{
    return device->ops->pin ? device->ops->pin(device, at, bytes, is_read_only) : 0;
}

void device_unpin(struct device *device, void *at)
{
    if (device->ops->unpin)
        device->ops->unpin(device, at);
}

int lane_open(struct lane **out, struct device *device, const char *name, enum lane_kind kind)
{
    *out = NULL;
    return device->ops->lane_open(device, out, name, kind);
}

void lane_close(struct lane *lane)
{
    if (lane)
        lane->ops->lane_close(lane);
}

void lane_set_scratch(struct lane *lane, void *scratch, size_t bytes)
{
    REQUIRE((uintptr_t)scratch % 64 == 0 && (!scratch || device_owns(lane->device, scratch)));
    lane->scratch = scratch;
    lane->scratch_bytes = bytes;
}

void lane_mark(struct lane *lane, struct mark *out)
{
    lane->ops->mark(lane, out);
}

void lane_wait(struct lane *lane, const struct mark *mark)
{
    if (mark->lane && mark->lane != lane) /* a lane keeps its own order */
        lane->ops->wait(lane, mark);
}

void lane_copy(struct lane *lane, void *to, const void *from, size_t bytes)
{
    if (bytes == 0)
        return;
    REQUIRE(device_owns(lane->device, to) && device_owns(lane->device, from));
    lane->ops->copy(lane, to, from, bytes);
}

void lane_zero(struct lane *lane, void *at, size_t bytes)
{
    if (bytes == 0)
        return;
    REQUIRE(device_owns(lane->device, at));
    lane->ops->zero(lane, at, bytes);
}

void lane_call(struct lane *lane, lane_fn *fn, const void *args, size_t bytes)
{
    REQUIRE(bytes <= LANE_ARGS_MAX);
    lane->ops->call(lane, fn, args, bytes);
}

int lane_settle(struct lane *lane)
{
    return lane->ops->settle(lane, NULL);
}

void lane_batch_begin(struct lane *lane)
{
    if (lane->ops->batch)
        lane->ops->batch(lane, true);
}

void lane_batch_end(struct lane *lane)
{
    if (lane->ops->batch)
        lane->ops->batch(lane, false);
}

void *lane_native(struct lane *lane)
{
    return lane->ops->native ? lane->ops->native(lane) : NULL;
}

int lane_settle_mark(struct lane *lane, const struct mark *mark)
{
    REQUIRE(!mark->lane || mark->lane == lane);
    return mark->lane ? lane->ops->settle(lane, mark) : 0;
}

bool device_keeps_time(const struct device *device)
{
    return device->ops->elapsed != NULL;
}

int lane_elapsed(double *out, const struct mark *from, const struct mark *to)
{
    REQUIRE(from->lane && to->lane && from->is_timed && to->is_timed);
    return from->lane->ops->elapsed(out, from, to);
}
