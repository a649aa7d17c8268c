/* lanes_bed.h - the kernels of kernels/cuda on lanes of a CPU, as a back-end of kernels.h: the
 * cases of kernels_cases.h run on it as on any other. gpu_bed.h is the same on a GPU. */
#ifndef HOLDFAST_TESTS_LANES_BED_H
#define HOLDFAST_TESTS_LANES_BED_H

#include "kernels/backend.h"
#include "tests/cuda/bed.h"
#include "tests/cuda/lanes.h"

static void lanes_close(struct kernels *kernels)
{
    (void)kernels;
}
static const char *lanes_describe(const struct kernels *kernels)
{
    (void)kernels;
    return "cuda on lanes of a CPU";
}
static size_t lanes_prepare(const struct kernels *kernels, const struct kernel_shapes *shapes)
{
    (void)kernels;
    return cuda_scratch_bytes(shapes);
}
static void lanes_run(struct kernels *kernels, struct lane *lane, enum kernel_op op,
                      const void *args)
{
    (void)kernels;
    struct cuda_call call = {.scratch = lane->scratch};
    memset(lane->scratch, 0xff, lane->scratch_bytes);
    assert_int_equal(cuda_function(op)(&call, args), 0);
}
static const struct kernel_backend_ops lanes_ops = {
    .name = "lanes",
    .device_flags = DEVICE_HOST_MEMORY,
    .close = lanes_close,
    .describe = lanes_describe,
    .prepare = lanes_prepare,
    .run = lanes_run,
};
static struct kernels lanes_kernels = {&lanes_ops};

static inline struct engine new_cuda_engine(void)
{
    struct engine e = {.kernels = &lanes_kernels, .lane = new_lane()};
    /* More than each of the shapes that are used here. */
    size_t bytes = cuda_scratch_bytes(&(struct kernel_shapes){
        .batch = 4, .seq = 300, .dim = 1024, .heads = 128, .kv_heads = 8, .head_dim = 128});
    assert_int_equal(device_alloc(e.lane->device, &e.scratch, bytes, ON_DEVICE), 0);
    lane_set_scratch(e.lane, e.scratch, bytes);
    return e;
}

/* The order of blocks and threads from here on. */
static inline void set_order(uint64_t seed)
{
    lanes_seed(seed);
}

#endif
