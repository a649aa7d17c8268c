/* advise.h - what advise knows of a run.
 *
 *   measure.c  collects it: from a checkpoint, the run's journal, and a ckptd's status or the disk;
 *              proto/base/daly.h decides on the interval
 *   plan.c     decides, without any input or output
 *   advise.c   prints
 */
#ifndef HOLDFAST_CLIENTS_CLI_ADVISE_H
#define HOLDFAST_CLIENTS_CLI_ADVISE_H

#include "clients/cli/advise/plan.h"
#include "clients/cli/engine/cli.h"

#include "proto/base/daly.h"

enum figures_mtbf { MTBF_GIVEN, MTBF_MEASURED, MTBF_ASSUMED };
enum figures_growth { GROWTH_UNKNOWN, GROWTH_NEVER_FULL, GROWTH_MEASURED };

/* Of copies in the far tier or on peers; 0: unknown. */
struct figures_copies {
    double rate;   /* bytes per second */
    double behind; /* seconds of training that are not there yet; negative: nothing is there */
};

/* 0: unknown. */
struct figures {
    char run[128], checkpoint[200];
    uint64_t bytes, step;
    struct daly daly;
    double now;                  /* the configured interval, in seconds */
    bool is_auto, is_in_seconds; /* as it was configured */
    enum figures_mtbf mtbf;
    struct plan_failures failures; /* unless it was given */
    struct plan_disk disk;
    enum figures_growth growth;
    double full; /* seconds at the present rate, as measured or by the configured interval;
                    negative: never, or unknown */
    struct plan_copying copying;
    struct figures_copies peer, far;
    bool is_bucket;    /* the store itself */
    bool knows_others; /* there may be other tiers, which only a ckptd knows */
    /* What follows from them. */
    struct daly_cost present, best; /* of `now`, if that is above 0 */
    struct plan_retention retention;
    struct plan_copies copies;
};

/* ERR_INVALID: a figure is not measured; the hint names its option. */
int figures_read(struct figures *out, const struct cli *cli);

#endif
