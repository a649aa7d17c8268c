/* kernels_dnn.c - attention by cuDNN (kernels/cuda/library/dnn.c), on simulated GPUs.
 *
 * Goal: the graphs that we describe to the library are attention and its gradient. It is used where
 * the shape allows, with a deterministic engine and scratch of the requested size. Each failed call
 * is reported. Method: tests/simgpu/dnn.c computes a graph operation by operation; the cases of
 * kernels_cases.h against the plain twins. Whether the real library takes the graphs is shown by
 * tests/integration/cuda_plans.py. */
#include "tests/cuda/gpu_bed.h"
#include "tests/unit/kernels_close.h"
#include "tests/unit/kernels_ranges.h"
#include "tests/unit/simgpu_bed.h"
#include "tests/unit/suite.h"

/* A workspace may be a sixteenth of the memory: 2 GiB. */
#define SETTINGS "seed=2,memory=34359738368"

/* Like those of flash.cu: probabilities and their gradients are rounded to bf16. */
#define FORWARD_OF_RMS 1.2e-2
#define BACKWARD_OF_RMS 4.8e-2

static const struct kernel_shapes shapes[] = {
    {2, 75, 8, 8, 4, 2, 64, 8, KERNEL_BF16},
    {1, 130, 8, 8, 4, 1, 128, 8, KERNEL_BF16},
    {3, 9, 8, 8, 3, 3, 64, 8, KERNEL_BF16},
};

static struct engine gpu_engine(enum kernel_backend backend, bool is_own)
{
    simgpu_set(SETTINGS);
    return new_gpu_engine(backend, is_own);
}

static int case_of(const char *name)
{
    for (int i = 0; i < NUM_CASES; i++)
        if (strcmp(kernel_cases[i].name, name) == 0)
            return i;
    fail_msg("no case %s", name);
    return -1;
}

/* How often cuDNN attended. */
static uint64_t attentions(const struct engine *gpu, const char *name, struct kernel_shapes s,
                           enum kernel_dtype dtype)
{
    uint64_t before = simgpu_counts().attentions;
    struct run run = run_case(gpu, case_of(name), s, dtype, 0);
    free_run(&run);
    return simgpu_counts().attentions - before;
}

TEST(test_dnn__graphs_are_attention_and_its_gradient_and_repeat_their_bits)
{
    struct engine gpu = gpu_engine(KERNEL_BACKEND_BEST, false);
    struct engine cpu = new_engine(KERNEL_BACKEND_REFERENCE, NULL, 1);
    for (int i = 0; i < 6; i++) {
        bool is_backward = i % 2 != 0;
        int which = case_of(is_backward ? "attention_backward" : "attention");
        uint64_t before = simgpu_counts().attentions;
        struct run want = run_case(&cpu, which, shapes[i / 2], KERNEL_BF16, 0);
        struct run got = run_case(&gpu, which, shapes[i / 2], KERNEL_BF16, 0);
        struct run again = run_case(&gpu, which, shapes[i / 2], KERNEL_BF16, 0);
        assert_int_equal(simgpu_counts().attentions - before, is_backward ? 4 : 2);
        for (int j = 0; j < want.num_outputs; j++) {
            const struct buffer *w = &want.buffers[j], *g = &got.buffers[j];
            double of_rms = is_backward ? BACKWARD_OF_RMS : FORWARD_OF_RMS;
            if (!within(g, w, 0x1p-7, of_rms * root_mean_square(w)))
                fail_msg("shape %d, backward %d, output %d", i / 2, is_backward, j);
            assert_memory_equal(g->data, again.buffers[j].data,
                                g->count * kernel_dtype_bytes(g->dtype));
        }
        free_run(&again);
        free_run(&got);
        free_run(&want);
    }
    free_engine(&cpu);
    free_engine(&gpu);
}

TEST(test_dnn__what_it_does_not_take_is_our_own)
{
    struct engine gpu = gpu_engine(KERNEL_BACKEND_BEST, false);
    struct kernel_shapes narrow = shapes[0], wider = shapes[1];
    narrow.head_dim = 32;
    assert_int_equal(attentions(&gpu, "attention_documents", shapes[0], KERNEL_BF16), 0);
    assert_int_equal(attentions(&gpu, "attention_backward_documents", shapes[0], KERNEL_BF16), 0);
    assert_int_equal(attentions(&gpu, "attention", shapes[0], KERNEL_F32), 0);
    assert_int_equal(attentions(&gpu, "attention", narrow, KERNEL_BF16), 0);
    /* A part of the queries; the whole beside it is the library's, forward and backward. */
    uint64_t before = simgpu_counts().attentions;
    struct ranges r = {
        .engine = &gpu, .shapes = shapes[0], .run = {.seed = 7, .device = gpu.lane->device}};
    size_t keys = (size_t)wider.batch * shapes[0].batch * shapes[0].seq * 64 * 2;
    whole_attention(&r, false);
    assert_int_equal(simgpu_counts().attentions - before, 2);
    (void)range_agrees(&r, 0, 70, new_buffer(&r.run, keys, KERNEL_F32),
                       new_buffer(&r.run, keys, KERNEL_F32));
    assert_int_equal(simgpu_counts().attentions - before, 2);
    free_run(&r.run);
    free_engine(&gpu);
    for (int own = 0; own < 2; own++) {
        gpu = gpu_engine(own ? KERNEL_BACKEND_BEST : KERNEL_BACKEND_REFERENCE, own);
        assert_int_equal(attentions(&gpu, "attention", shapes[0], KERNEL_BF16), 0);
        assert_non_null(strstr(kernels_describe(gpu.kernels), "own attention"));
        free_engine(&gpu);
    }
}

/* Its backward asks for memory quadratic in the sequence; past a bound our own, which needs none,
 * is used. */
TEST(test_dnn__scratch_has_its_workspace_up_to_a_bound)
{
    struct engine gpu = gpu_engine(KERNEL_BACKEND_BEST, false);
    const struct kernel_shapes long_ones[] = {{1, 4096, 8, 8, 32, 8, 128, 8, KERNEL_BF16},
                                              {1, 8192, 8, 8, 32, 8, 128, 8, KERNEL_BF16},
                                              {1, 4096, 8, 8, 32, 8, 128, 8, KERNEL_F32}};
    size_t bytes[3];
    for (int i = 0; i < 3; i++)
        bytes[i] = kernels_scratch_bytes(gpu.kernels, &long_ones[i]);
    size_t square = (size_t)4096 * 4096 * 32 * 2;
    assert_in_range(bytes[0], square, square + square / 8);
    assert_in_range(bytes[1], 1, square / 8);
    assert_in_range(bytes[2], 1, square / 8);
    /* With less memory than it needs it is not called. */
    lane_set_scratch(gpu.lane, gpu.scratch, 4096);
    assert_int_equal(attentions(&gpu, "attention", shapes[0], KERNEL_BF16), 1);
    assert_int_equal(attentions(&gpu, "attention_backward", shapes[0], KERNEL_BF16), 1);
    free_engine(&gpu);
}

static int attend_failing(const char *settings)
{
    struct bed bed;
    struct run run = {0};
    void *scratch = NULL;
    int rc = open_bed(&bed, settings);
    if (rc == 0) {
        size_t bytes = kernels_scratch_bytes(bed.kernels, &shapes[2]);
        rc = device_alloc(bed.device, &scratch, bytes, ON_DEVICE);
        lane_set_scratch(bed.first, scratch, bytes);
        run.device = bed.device;
        case_attention_backward(bed.kernels, bed.first, &shapes[2], &run);
        rc = lane_settle(bed.first);
    }
    close_bed(&bed);
    return rc;
}

static void want_nothing_left(const char *call)
{
    (void)call;
    assert_int_equal(simgpu_counts().streams + simgpu_counts().events, 0);
}

TEST(test_dnn__every_call_of_the_library_that_fails_is_said)
{
    fail_each("cudnnCreate cudnnSetStream cudnnBackendCreateDescriptor cudnnBackendSetAttribute"
              " cudnnBackendGetAttribute cudnnBackendFinalize cudnnBackendExecute",
              attend_failing, want_nothing_left);
}

int main(void)
{
    bool is_there = device_find("cuda") != NULL;
    if (is_there) {
        struct engine gpu = gpu_engine(KERNEL_BACKEND_BEST, false);
        is_there = strstr(kernels_describe(gpu.kernels), "cuDNN") != NULL;
        free_engine(&gpu);
    }
    if (!is_there) {
        printf("skipped: cuDNN's headers are not here (make deps-cuda)\n");
        return 77;
    }
    return suite_run(NULL, NULL);
}
