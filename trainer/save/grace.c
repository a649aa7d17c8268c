/* grace.c - the grace time in which a run has to end (see grace.h). */
#include "trainer/save/grace.h"
#include "proto/base/report.h"
#include "trainer/comm/comm.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

double grace_left(double asked_at, double grace, double now)
{
    return asked_at > 0 && grace > 0 ? asked_at + grace - now : INFINITY;
}

bool grace_allows(double left, double save_seconds)
{
    return left > 0 && left >= save_seconds;
}

/* Only one rank's entry is not 0, so a sum gives its bits. */
int grace_agree(struct comm *world, double *left)
{
    int64_t *all = calloc(world->size, sizeof(*all));
    if (all == NULL) /* other ranks wait: they get an error as for a lost rank */
        return report_error(ERR_MEMORY, NULL, "no memory for %u numbers", world->size);
    memcpy(&all[world->rank], left, sizeof(*left));
    int rc = comm_all_reduce_i64(world, all, world->size);
    for (uint32_t i = 0; i < world->size && rc == 0; i++) {
        double other;
        memcpy(&other, &all[i], sizeof(other));
        *left = fmin(*left, other);
    }
    free(all);
    return rc;
}
