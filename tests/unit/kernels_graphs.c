/* kernels_graphs.c - batches of a lane as CUDA graphs (kernels/cuda/graphs.c), on simulated GPUs.
 *
 * Goal: a batch changes no result and no order, is captured once for the same arguments, and never
 * reuses a graph of another lane. The simulation detects a graph that outlived its memory, and
 * calls that are forbidden during a capture. Method: that of kernels_simgpu.c. */
#include "tests/unit/simgpu_bed.h"
#include "tests/unit/suite.h"

#if __has_include(<cuda_runtime_api.h>)
#include <cuda_runtime_api.h>

/* y += x; y += x; z = y */
static void post_batch(struct bed *bed, float *y)
{
    struct kernel_add args = {.y = y, .x = bed->other, .count = COUNT, .dtype = KERNEL_F32};
    lane_batch_begin(bed->first);
    kernel_add(bed->kernels, bed->first, &args);
    kernel_add(bed->kernels, bed->first, &args);
    lane_copy(bed->first, bed->host, y, BYTES);
    lane_batch_end(bed->first);
}

static void want_sums(struct bed *bed, float plus)
{
    assert_int_equal(lane_settle(bed->first), 0);
    assert_true(is_all(bed->host, plus));
}

TEST(test_graphs__a_batch_is_the_graph_of_the_same_arguments)
{
    for (int seed = 0; seed < 3; seed++) {
        struct bed bed;
        void *another = NULL;
        open_seed(&bed, seed);
        fill(&bed);
        uint64_t before = simgpu_counts().graph_launches;
        for (int turn = 1; turn <= 3; turn++) {
            post_batch(&bed, bed.at);
            want_sums(&bed, 4.0f * (float)turn);
        }
        assert_int_equal(simgpu_counts().graphs, 1);
        assert_int_equal(simgpu_counts().graph_launches, before + 3);

        /* Another address: not by the pointers of the first. */
        assert_int_equal(device_alloc(bed.device, &another, BYTES, ON_DEVICE), 0);
        lane_copy(bed.first, another, bed.at, BYTES);
        post_batch(&bed, another);
        want_sums(&bed, 16);
        assert_int_equal(simgpu_counts().graphs, 2);
        post_batch(&bed, bed.at);
        want_sums(&bed, 16);
        assert_int_equal(simgpu_counts().graphs, 2);
        close_bed(&bed);
        assert_int_equal(simgpu_counts().graphs, 0);
    }
}

/* An operation between lanes cuts a batch: both parts are graphs. */
TEST(test_graphs__a_mark_within_a_batch_comes_behind_what_was_posted)
{
    for (int seed = 0; seed < SEEDS; seed++) {
        struct bed bed;
        struct mark added = {0};
        open_seed(&bed, seed);
        fill(&bed);
        for (int turn = 0; turn < 3; turn++) {
            lane_batch_begin(bed.first);
            add(&bed, bed.first);
            add(&bed, bed.first);
            lane_mark(bed.first, &added);
            lane_wait(bed.second, &added);
            lane_copy(bed.second, bed.host, bed.at, BYTES);
            assert_int_equal(lane_settle(bed.second), 0);
            assert_true(is_all(bed.host, 8.0f * (float)turn + 4));
            add(&bed, bed.first);
            add(&bed, bed.first);
            lane_copy(bed.first, bed.host, bed.at, BYTES);
            want_sums(&bed, 8.0f * (float)turn + 8); /* settled within the batch */
            lane_batch_end(bed.first);
        }
        assert_int_equal(simgpu_counts().graphs, 2);
        close_bed(&bed);
    }
}

TEST(test_graphs__what_a_library_queues_comes_behind_what_was_posted)
{
    struct bed bed;
    open_seed(&bed, 0);
    fill(&bed);
    lane_batch_begin(bed.first);
    add(&bed, bed.first);
    add(&bed, bed.first);
    cudaStream_t stream = lane_native(bed.first);
    assert_int_equal(cudaMemcpyAsync(bed.host, bed.at, BYTES, cudaMemcpyDefault, stream), 0);
    lane_batch_end(bed.first);
    want_sums(&bed, 4);
    close_bed(&bed);
}

/* Memory of another owner is copied as without a batch: before its owner changes it. */
TEST(test_graphs__a_batch_reads_memory_that_is_not_page_locked_at_once)
{
    struct bed bed;
    float values[COUNT];
    open_seed(&bed, 0);
    fill(&bed);
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < COUNT; i++)
            values[i] = (float)(i + 7 * turn);
        lane_batch_begin(bed.first);
        add(&bed, bed.first);
        lane_copy(bed.first, bed.at, values, BYTES);
        memset(values, 0, BYTES);
        add(&bed, bed.first);
        lane_copy(bed.first, bed.host, bed.at, BYTES);
        lane_batch_end(bed.first);
        want_sums(&bed, 7.0f * (float)turn + 2);
    }
    close_bed(&bed);
}

/* Where a graph cannot be made the work is done all the same; one that cannot be launched is
 * reported. */
TEST(test_graphs__a_graph_that_is_refused_changes_nothing)
{
    static const char *const calls[] = {"cudaStreamBeginCapture", "cudaStreamEndCapture",
                                        "cudaGraphInstantiate", "cudaGraphLaunch"};
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        struct bed bed;
        char settings[64];
        snprintf(settings, sizeof(settings), "fail=%s:1", calls[i]);
        assert_int_equal(open_bed(&bed, settings), 0);
        fill(&bed);
        post_batch(&bed, bed.at);
        if (i < 3)
            want_sums(&bed, 4);
        else
            assert_int_equal(lane_settle(bed.first), ERR_UNAVAILABLE);
        close_bed(&bed);
        assert_int_equal(simgpu_counts().graphs, 0);
    }
}

/* ---- Captures ---- */

/* As a step would whose graphs outlived its buffers. */
static void launch_a_stale_graph(struct bed *bed)
{
    cudaStream_t stream = lane_native(bed->first);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    void *again;
    (void)cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    add(bed, bed->first);
    (void)cudaStreamEndCapture(stream, &graph);
    if (cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess)
        return;
    device_free(bed->device, bed->at);
    (void)device_alloc(bed->device, &again, BYTES, ON_DEVICE);
    (void)cudaGraphLaunch(exec, stream);
    (void)lane_settle(bed->first);
}

TEST(test_graphs__a_graph_that_outlived_its_memory_dies_of_it)
{
    struct bed bed;
    open_seed(&bed, 0);
    assert_int_equal(signal_of(launch_a_stale_graph, &bed), SIGSEGV);
    close_bed(&bed);
}

/* As in CUDA: otherwise the error would appear only on a GPU. */
TEST(test_graphs__what_a_capture_must_not_see_makes_it_void)
{
    struct bed bed;
    struct mark mark = {0};
    cudaGraph_t graph;
    float value = 0;
    void *at = NULL;
    open_seed(&bed, 1);
    lane_mark(bed.first, &mark);
    cudaStream_t stream = lane_native(bed.first);
    for (int mistake = 0; mistake < 5; mistake++) {
        assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), 0);
        cudaError_t error = mistake == 0   ? cudaStreamSynchronize(stream)
                            : mistake == 1 ? cudaMalloc(&at, BYTES)
                            : mistake == 2 ? cudaEventRecord(mark.event, stream)
                            : mistake == 3 ? cudaMemcpyAsync(bed.at, &value, sizeof(value),
                                                             cudaMemcpyDefault, stream)
                                           : cudaStreamQuery(stream);
        assert_int_equal(error, cudaErrorStreamCaptureUnsupported);
        assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    }
    (void)cudaGetLastError();
    close_bed(&bed);
}

SUITE(NULL, NULL)

#else
int main(void)
{
    printf("skipped: NVIDIA's headers are not here (make deps-cuda)\n");
    return 77;
}
#endif
