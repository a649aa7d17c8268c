/* interval.c - the number of steps between two saves (see interval.h). */
#include "trainer/save/interval.h"
#include "proto/base/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define CHANGE_MIN 0.1 /* smaller changes are noise */
#define STEPS_MAX 1000000000.0

void interval_begin(struct interval *interval, int64_t step)
{
    interval->since = step;
    interval->is_begun = true;
}

void interval_decide(struct interval *interval, const struct daly *measured)
{
    if (measured->step <= 0 || measured->wait <= 0)
        return;
    struct daly_cost best = daly_best(measured);
    double steps = fmin(best.steps, STEPS_MAX), now = (double)interval->steps;
    if (now > 0 && fabs(steps - now) <= CHANGE_MIN * now)
        return;
    interval->steps = (int64_t)steps;
    char durable[64] = "";
    if (measured->durable > measured->wait)
        snprintf(durable, sizeof(durable), ", which is durable %.4g s later",
                 measured->durable - measured->wait);
    log_info("checkpoint",
             "checkpoint.interval = auto: a save every %" PRId64 " steps, %.1f s: a step takes "
             "%.4g s, training waits %.4g s for a save%s, one failure in %.4g h (checkpoint.mtbf); "
             "%.3f %% of the time is lost",
             interval->steps, best.seconds, measured->step, measured->wait, durable,
             measured->failures / 3600, 100 * best.overhead);
}

bool interval_is_over(const struct interval *interval, int64_t step)
{
    int64_t steps = interval->steps > 0 ? interval->steps : INTERVAL_FIRST_STEPS;
    return interval->is_begun && step - interval->since >= steps;
}
