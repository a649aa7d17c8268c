/* async.h - a device for tests whose lanes really run after the caller, and late.
 *
 * Each lane is a thread; before each of its operations it waits for a random time from the seed, so
 * an order without a mark differs from run to run and from seed to seed. It detects errors that
 * stay hidden on the CPU:
 * - Memory ON_DEVICE can be read and written only while an operation runs (mprotect): the host that
 *   accesses it dies of SIGSEGV. New memory holds NaN, as a kernel would find it on a GPU.
 * - lane_copy, lane_zero and kernels.h take memory of this device alone: a host pointer where a
 *   device pointer belongs aborts with the name of the operation. A copy that runs when the memory
 *   of an end of it was unpinned aborts, too.
 * - Arguments are read when the operation runs: changing or freeing them too early is detected.
 * Under ThreadSanitizer a missing mark is a data race, and reported as such. */
#ifndef HOLDFAST_TESTS_DEVICE_ASYNC_H
#define HOLDFAST_TESTS_DEVICE_ASYNC_H

#include "kernels/device.h"

/* device_options.custom; NULL: the defaults */
struct async_options {
    uint64_t seed;
    uint32_t delay_us_max; /* 0: 200 */
};
extern const struct device_ops device_async;

#endif
