/* kernels.c - the functions of kernels.h: choose a back-end, post operations on lanes.
 *
 * Back-ends are in order of preference; the first that supports the device is used. On a device
 * with host memory an operation is host work of the lane: its arguments are copied into the lane's
 * queue, and the back-end runs in the lane's order. Other back-ends queue themselves. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "proto/base/report.h"

static const struct kernel_backend_ops *const backends[] = {&kernel_backend_cpu,
                                                            &kernel_backend_cuda};

#define LAST_OF(name, last) (((struct kernel_##name *)0)->last)
static const struct {
    const char *name;
    size_t bytes; /* to the end of the last field */
    size_t num_pointers;
} operations[NUM_KERNEL_OPS] = {
#define X(NAME, name, pointers, last) \
    {#name, offsetof(struct kernel_##name, last) + sizeof(LAST_OF(name, last)), pointers},
    KERNEL_OPS(X)
#undef X
};

_Noreturn void kernels_require_failed(const char *file, int line, const char *condition)
{
    fprintf(stderr, "%s:%d: requirement not met: %s\n", file, line, condition);
    abort();
}

static bool serves(const struct kernel_backend_ops *backend, const struct device *device)
{
    uint32_t flags = device ? device->ops->flags : DEVICE_HOST_MEMORY;
    if ((flags & backend->device_flags) != backend->device_flags)
        return false;
    return !backend->device_name ||
           (device && strcmp(backend->device_name, device->ops->name) == 0);
}

int kernels_new(struct kernels **out, const struct kernels_options *options)
{
    *out = NULL;
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++)
        if (backends[i] && serves(backends[i], options->device))
            return backends[i]->open(out, options);
    return ERR_INVALID;
}

void kernels_free(struct kernels *kernels)
{
    if (kernels)
        kernels->ops->close(kernels);
}

const char *kernels_describe(const struct kernels *kernels)
{
    return kernels->ops->describe(kernels);
}

int kernels_chain_products(struct kernels *kernels)
{
    return kernels->ops->chain_products(kernels);
}

bool kernels_have_float8(const struct kernels *kernels)
{
    return !kernels->ops->has_float8 || kernels->ops->has_float8(kernels);
}

char *kernels_choices(struct kernels *kernels)
{
    return kernels->ops->choices ? kernels->ops->choices(kernels) : calloc(1, 1);
}

void kernels_choose(struct kernels *kernels, const char *choices, struct kernel_choices *out)
{
    *out = (struct kernel_choices){0};
    if (kernels->ops->choose)
        kernels->ops->choose(kernels, choices, out);
}

size_t kernels_scratch_bytes(const struct kernels *kernels, const struct kernel_shapes *shapes)
{
    return kernels->ops->prepare(kernels, shapes);
}

const char *kernel_op_name(enum kernel_op op)
{
    return operations[op].name;
}

size_t kernel_op_bytes(enum kernel_op op)
{
    return operations[op].bytes;
}

/* An operation in a lane's queue. */
struct posted {
    struct kernels *kernels;
    struct lane *lane;
    enum kernel_op op;
    max_align_t args[LANE_ARGS_MAX / sizeof(max_align_t) - 2];
};
_Static_assert(sizeof(struct posted) <= LANE_ARGS_MAX, "an operation fits into a lane's queue");
#define X(NAME, name, pointers, last)                                                        \
    _Static_assert(sizeof(struct kernel_##name) <= sizeof((struct posted *)0)->args &&       \
                       sizeof(struct kernel_##name) - offsetof(struct kernel_##name, last) < \
                           sizeof(LAST_OF(name, last)) + _Alignof(struct kernel_##name),     \
                   "the arguments of " #name " fit, and its last field is the last");
KERNEL_OPS(X)
#undef X

static int run_posted(void *args)
{
    struct posted *p = args;
    p->kernels->ops->run(p->kernels, p->lane, p->op, p->args);
    return 0;
}

/* A pointer outside the device's memory aborts the process here, where the caller passed it. */
static void check_pointers(struct lane *lane, enum kernel_op op, const void *args)
{
    void *const *pointers = args;
    for (size_t i = 0; i < operations[op].num_pointers; i++) {
        if (!pointers[i] || device_owns(lane->device, pointers[i]))
            continue;
        fprintf(stderr, "kernel_%s: pointer %zu is not to memory of the device %s\n",
                operations[op].name, i + 1, lane->device->ops->name);
        abort();
    }
}

void kernel_run(struct kernels *kernels, struct lane *lane, enum kernel_op op, const void *args)
{
    REQUIRE(lane && op < NUM_KERNEL_OPS);
    check_pointers(lane, op, args);
    if (!(kernels->ops->device_flags & DEVICE_HOST_MEMORY)) {
        kernels->ops->run(kernels, lane, op, args);
        return;
    }
    struct posted posted = {.kernels = kernels, .lane = lane, .op = op};
    memcpy(posted.args, args, operations[op].bytes);
    lane_call(lane, run_posted, &posted, sizeof(posted));
}

void kernel_rope_table(float *cos_out, float *sin_out, uint32_t seq, uint32_t head_dim,
                       const double *frequencies)
{
    for (uint32_t t = 0; t < seq; t++) {
        for (uint32_t i = 0; i < head_dim / 2; i++) {
            double angle = t * frequencies[i];
            cos_out[(size_t)t * (head_dim / 2) + i] = (float)cos(angle);
            sin_out[(size_t)t * (head_dim / 2) + i] = (float)sin(angle);
        }
    }
}
