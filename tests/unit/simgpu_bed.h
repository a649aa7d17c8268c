/* simgpu_bed.h - shared by the tests of a CUDA GPU as a device: a device on simulated GPUs, two
 * lanes, and buffers with known values. */
#ifndef HOLDFAST_TESTS_SIMGPU_BED_H
#define HOLDFAST_TESTS_SIMGPU_BED_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/device.h"
#include "kernels/kernels.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "tests/simgpu/simgpu.h"
#include "tests/unit/lane_bed.h"
#include "tests/unit/suite.h"

#define COUNT 3000
#define BYTES (COUNT * sizeof(float))
#define SEEDS 9

struct bed {
    struct device *device;
    struct kernels *kernels;
    struct lane *first, *second;
    float *at, *other, *host; /* two of the device, one page-locked */
    float *pageable;          /* of tests that want it */
};

static inline int open_bed(struct bed *bed, const char *settings)
{
    void *at = NULL, *other = NULL, *host = NULL;
    *bed = (struct bed){0};
    simgpu_set(settings);
    int rc = device_open(&bed->device, device_find("cuda"), NULL);
    struct kernels_options options = {.num_threads = 1, .device = bed->device};
    if (rc == 0)
        rc = kernels_new(&bed->kernels, &options);
    if (rc == 0)
        rc = lane_open(&bed->first, bed->device, "first", LANE_COMPUTES);
    if (rc == 0)
        rc = lane_open(&bed->second, bed->device, "second", LANE_COMMUNICATES);
    if (rc == 0)
        rc = device_alloc(bed->device, &at, BYTES, ON_DEVICE);
    if (rc == 0)
        rc = device_alloc(bed->device, &other, BYTES, ON_DEVICE);
    if (rc == 0)
        rc = device_alloc(bed->device, &host, BYTES, PINNED);
    bed->at = at;
    bed->other = other;
    bed->host = host;
    return rc;
}

static inline void close_bed(struct bed *bed)
{
    lane_close(bed->first);
    lane_close(bed->second);
    kernels_free(bed->kernels);
    device_close(bed->device);
}

static inline void open_seed(struct bed *bed, int seed)
{
    char settings[32];
    snprintf(settings, sizeof(settings), "seed=%d", seed);
    assert_int_equal(open_bed(bed, settings), 0);
}

static inline void add(struct bed *bed, struct lane *lane)
{
    POST(bed->kernels, lane, add, .y = bed->at, .x = bed->other, .count = COUNT,
         .dtype = KERNEL_F32);
}

/* at = 1, 2, ...; other = 2: on the first lane. */
static inline void fill(struct bed *bed)
{
    for (int i = 0; i < COUNT; i++)
        bed->host[i] = 2;
    lane_copy(bed->first, bed->other, bed->host, BYTES);
    assert_int_equal(lane_settle(bed->first), 0);
    for (int i = 0; i < COUNT; i++)
        bed->host[i] = (float)i;
    lane_copy(bed->first, bed->at, bed->host, BYTES);
    assert_int_equal(lane_settle(bed->first), 0);
}

static inline bool is_all(const float *values, float plus)
{
    for (int i = 0; i < COUNT; i++)
        if (values[i] != (float)i + plus)
            return false;
    return true;
}

/* The signal that ends a child that does the work; 0: it exits. */
static inline int signal_of(void (*work)(struct bed *), struct bed *bed)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        work(bed);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* Fails each of these (separated by blanks) once and for ever. `check` runs after a failure. */
static inline void fail_each(const char *calls, int (*work)(const char *settings),
                             void (*check)(const char *call))
{
    char names[512], *rest = NULL;
    snprintf(names, sizeof(names), "%s", calls);
    for (char *call = strtok_r(names, " ", &rest); call; call = strtok_r(NULL, " ", &rest))
        for (int is_for_ever = 0; is_for_ever < 2; is_for_ever++) {
            char settings[80];
            snprintf(settings, sizeof(settings), "fail=%s:1%s", call, is_for_ever ? "+" : "");
            report_clear();
            if (work(settings) == 0)
                fail_msg("%s: no error", settings);
            assert_non_null(strstr(report_line(), "CUDA: "));
            check(call);
        }
    assert_int_equal(work(""), 0);
}

#endif
