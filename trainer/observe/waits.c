/* waits.c - a warning when training waits for samples (see waits.h). */
#include "trainer/observe/waits.h"
#include "proto/base/report.h"

#include <inttypes.h>

bool waits_check(struct waits *waits, int64_t step, double percent, double seconds)
{
    double most = waits->config->data_wait_max_percent;
    bool was_slow = waits->is_slow;
    waits->is_slow = most > 0 && percent > most;
    if (!waits->is_slow || was_slow)
        return false;
    log_warn("data",
             "step %" PRId64 ": rank 0 waited %.3f s of a step (%.1f%%) for samples, more than "
             "metrics.data_wait_max_percent = %g: the disk or file system of the tokens is slow",
             step, seconds, percent, most);
    return true;
}
