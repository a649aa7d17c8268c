/* daly.c - the cheapest interval between saves (see daly.h). */
#include "proto/base/daly.h"

#include <math.h>

#define STEPS_MAX 1e15 /* of an interval; a double and an int64_t have each number up to it */

double daly_interval(const struct daly *daly)
{
    double wait = daly->wait, failures = daly->failures;
    if (wait >= 2 * failures)
        return failures;
    double part = wait / (2 * failures);
    return sqrt(2 * wait * failures) * (1 + sqrt(part) / 3 + part / 9) - wait;
}

/* Daly, equation 13. */
struct daly_cost daly_cost(const struct daly *daly, double seconds)
{
    double failures = daly->failures, late = daly->durable - daly->wait;
    double recovery = daly->restart + (late > 0 ? late : 0);
    double steps = fmin(fmax(round(seconds / daly->step), 1), STEPS_MAX);
    struct daly_cost cost = {.steps = steps, .seconds = steps * daly->step};
    double wall =
        failures * exp(recovery / failures) * expm1((cost.seconds + daly->wait) / failures);
    cost.overhead = 1 - cost.seconds / wall;
    cost.saves = daly->wait / (cost.seconds + daly->wait);
    return cost;
}

struct daly_cost daly_best(const struct daly *daly)
{
    double seconds = daly_interval(daly), least = daly->durable - daly->wait;
    return daly_cost(daly, seconds > least ? seconds : ceil(least / daly->step) * daly->step);
}
