/* retain_private.h - a plan as retain.c makes and carries it out, for retain_rules.c, which says
 * when and by which rules. */
#ifndef HOLDFAST_CKPTD_KEEP_RETAIN_PRIVATE_H
#define HOLDFAST_CKPTD_KEEP_RETAIN_PRIVATE_H

#include "ckptd/keep/retain.h"
#include "ckptd/tier.h"
#include "proto/retain.h"

#include <stdbool.h>

struct plan_options {
    struct rpc_call *call; /* NULL: retention */
    struct retain_rules rules;
    const char *metric;
    enum tier_index tier;
    bool is_dry;
    bool reads_metrics; /* also where no rule of this plan goes by them */
    bool only_reads;    /* there is no rule, and nothing goes */
    bool is_final;      /* what goes cannot be taken back */
};

/* On an error nothing was begun. */
int retain_begin(struct run *run, const struct plan_options *options);
/* Behind the local tier's plan: one at a time. */
void retain_apply_far(struct run *run);

#endif
