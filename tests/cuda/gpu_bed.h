/* gpu_bed.h - the kernels of kernels/cuda on a GPU, through its device: the cases of
 * kernels_cases.h run on it as on any other. lanes_bed.h is the same without a GPU. Buffers are
 * page-locked, so the host fills and reads them where they are. */
#ifndef HOLDFAST_TESTS_CUDA_GPU_BED_H
#define HOLDFAST_TESTS_CUDA_GPU_BED_H

#include "proto/base/report.h"
#include "tests/cuda/bed.h"

static inline struct engine new_gpu_engine(enum kernel_backend backend, bool has_own_attention)
{
    struct engine e = {0};
    struct device *device = NULL;
    struct lane *lane = NULL;
    assert_int_equal(device_open(&device, device_find("cuda"), NULL), 0);
    assert_int_equal(lane_open(&lane, device, "test", LANE_COMPUTES), 0);
    struct kernels_options options = {.backend = backend,
                                      .num_threads = 1,
                                      .has_own_attention = has_own_attention,
                                      .device = device};
    assert_int_equal(kernels_new(&e.kernels, &options), 0);
    e.lane = lane;
    /* More than each of the shapes that are used here. */
    struct kernel_shapes largest = {
        .batch = 4, .seq = 300, .dim = 1024, .heads = 128, .kv_heads = 8, .head_dim = 128};
    size_t bytes = kernels_scratch_bytes(e.kernels, &largest);
    largest.dtype = KERNEL_BF16; /* of libraries */
    if (kernels_scratch_bytes(e.kernels, &largest) > bytes)
        bytes = kernels_scratch_bytes(e.kernels, &largest);
    assert_int_equal(device_alloc(device, &e.scratch, bytes, ON_DEVICE), 0);
    lane_set_scratch(lane, e.scratch, bytes);
    return e;
}

/* Our own kernels. */
static inline struct engine new_cuda_engine(void)
{
    return new_gpu_engine(KERNEL_BACKEND_REFERENCE, false);
}

/* A GPU has its own order, different each time. */
static inline void set_order(uint64_t seed)
{
    (void)seed;
}

/* Without a GPU: prints one line and returns 78, before any test. Else returns its name. */
static inline void need_gpu(void)
{
    struct device *device = NULL;
    struct kernels *kernels = NULL;
    int error = device_open(&device, device_find("cuda"), NULL);
    struct kernels_options options = {.num_threads = 1, .device = device};
    if (error == 0)
        error = kernels_new(&kernels, &options);
    if (error != 0) {
        fprintf(stderr, "kernels: %s\n", report_line());
        exit(78);
    }
    printf("# on %s\n", kernels_describe(kernels));
    kernels_free(kernels);
    device_close(device);
}

#endif
