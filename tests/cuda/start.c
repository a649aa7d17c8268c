/* start.c - a program with the kernels for GPUs, linked with NVIDIA's runtime: opens a GPU, adds
 * two tensors on it and checks every sum. Without a GPU: one line that says so, and status 78. */
#include <stdio.h>

#include "kernels/cuda/run.h"
#include "proto/base/report.h"

#define COUNT 1000

static int refuse(void)
{
    fprintf(stderr, "start: %s\n", report_line());
    return 78;
}

/* y += x of COUNT values; both are read back and compared. */
static int add(struct kernels *kernels, struct lane *lane, float *host, float *at)
{
    for (int i = 0; i < 2 * COUNT; i++)
        host[i] = (float)i;
    lane_copy(lane, at, host, 2 * COUNT * sizeof(*host));
    kernel_add(kernels, lane,
               &(struct kernel_add){.y = at, .x = at + COUNT, .count = COUNT, .dtype = KERNEL_F32});
    lane_copy(lane, host, at, COUNT * sizeof(*host));
    int error = lane_settle(lane);
    for (int i = 0; error == 0 && i < COUNT; i++)
        if (host[i] != (float)(2 * i + COUNT))
            error = report_error(ERR_INTERNAL, NULL, "sum %d is %g", i, (double)host[i]);
    return error;
}

int main(void)
{
    struct device *device = NULL;
    struct lane *lane = NULL;
    struct kernels *kernels = NULL;
    void *host = NULL, *at = NULL;
    if (device_open(&device, &device_cuda, NULL) != 0)
        return refuse();
    struct kernels_options options = {.num_threads = 1, .device = device};
    int error = kernels_new(&kernels, &options);
    if (error == 0)
        error = lane_open(&lane, device, "start", LANE_COMPUTES);
    if (error == 0)
        error = device_alloc(device, &host, 2 * COUNT * sizeof(float), PINNED);
    if (error == 0)
        error = device_alloc(device, &at, 2 * COUNT * sizeof(float), ON_DEVICE);
    if (error == 0)
        error = add(kernels, lane, host, at);
    if (error == 0)
        printf("start: %s: %d sums are right\n", kernels_describe(kernels), COUNT);
    else
        error = refuse();
    lane_close(lane);
    kernels_free(kernels);
    device_close(device);
    return error;
}
