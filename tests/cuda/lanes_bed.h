/* lanes_bed.h - the kernels of kernels/cuda on lanes of a CPU, as a back-end of kernels.h: the
 * cases of kernels_cases.h run on it as on any other. */
#ifndef HOLDFAST_TESTS_LANES_BED_H
#define HOLDFAST_TESTS_LANES_BED_H

#include "kernels/backend.h"
#include "kernels/cuda/cpu/lanes.h"
#include "kernels/cuda/run.h"
#include "tests/unit/kernels_cases.h"
#include "tests/unit/sanitized.h"

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

static inline struct engine new_lanes_engine(void)
{
    struct engine e = {.kernels = &lanes_kernels, .lane = new_lane()};
    /* More than each of the shapes that are used here. */
    size_t bytes = cuda_scratch_bytes(&(struct kernel_shapes){
        .batch = 4, .seq = 300, .dim = 1024, .heads = 128, .kv_heads = 8, .head_dim = 128});
    assert_int_equal(device_alloc(e.lane->device, &e.scratch, bytes, ON_DEVICE), 0);
    lane_set_scratch(e.lane, e.scratch, bytes);
    return e;
}

/* Has the operation of this case a kernel? */
static inline bool lanes_have_case(int which)
{
    return cuda_function(kernel_cases[which].op) != NULL;
}

/* What lies behind a buffer is as it was made: 0xff. (AddressSanitizer finds this by itself.) */
static inline void nothing_written_past(const struct run *run)
{
    for (int i = 0; !IS_SANITIZED && i < run->num_buffers; i++) {
        const struct buffer *b = &run->buffers[i];
        const unsigned char *end =
            (const unsigned char *)b->data + b->count * kernel_dtype_bytes(b->dtype);
        for (size_t at = 0; (uintptr_t)(end + at) % 64 != 0; at++)
            assert_int_equal(end[at], 0xff);
    }
}

#endif
