/* hooks.c - instruments by which tests change a run (see hooks.h). */
#include "trainer/config/hooks.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"

#include <math.h>
#include <unistd.h>

#define POLL_NS 10000000 /* between two checks of want_stop */

void hooks_in_step(const struct config *config, int64_t step,
                   const volatile sig_atomic_t *want_stop)
{
    if (step != config->pause_at_step)
        return;
    log_info("train", "process %d pauses within step %lld", (int)getpid(), (long long)step);
    while (want_stop == NULL || *want_stop == 0)
        clock_sleep_ns(POLL_NS);
}

bool hooks_wait(const struct config *config)
{
    return config->pause_at_step >= 0;
}

float hooks_loss_scale(const struct config *config, int64_t step, float scale)
{
    return step == config->nonfinite_at_step ? NAN : scale;
}

bool hooks_break_sample(const struct config *config, uint64_t first, uint32_t num,
                        uint32_t *out_index)
{
    int64_t sample = config->nonfinite_at_sample;
    if (sample < 0 || (uint64_t)sample < first || (uint64_t)sample - first >= num)
        return false;
    *out_index = (uint32_t)((uint64_t)sample - first);
    return true;
}

void hooks_before_copy(const struct config *config)
{
    long us = (long)config->slow_copy_us;
    if (us > 0)
        clock_sleep_ns((uint64_t)us * 1000);
}
