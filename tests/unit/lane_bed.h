/* lane_bed.h - a lane of the CPU that runs each operation immediately, for tests and benches of
 * single operations. */
#ifndef HOLDFAST_TESTS_LANE_BED_H
#define HOLDFAST_TESTS_LANE_BED_H

#include <stdlib.h>

#include "kernels/device.h"
#include "kernels/kernels.h"

/* An operation with the fields of its arguments. */
#define POST(kernels, lane, name, ...) \
    kernel_##name(kernels, lane, &(struct kernel_##name){__VA_ARGS__})

static inline struct lane *new_lane(void)
{
    struct device *device = NULL;
    struct lane *lane = NULL;
    if (device_open(&device, &device_cpu, NULL) != 0 ||
        lane_open(&lane, device, "test", LANE_COMPUTES) != 0)
        abort();
    return lane;
}

static inline void free_lane(struct lane *lane)
{
    if (lane == NULL)
        return;
    struct device *device = lane->device;
    lane_close(lane);
    device_close(device);
}

#endif
