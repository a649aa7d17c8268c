/* retain_private.h - a plan: retain_plan.c makes it, retain.c carries it out, retain_rules.c
 * decides when and by which rules. */
#ifndef HOLDFAST_CKPTD_KEEP_RETAIN_PRIVATE_H
#define HOLDFAST_CKPTD_KEEP_RETAIN_PRIVATE_H

#include "ckptd/core/checkpoint.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/tier.h"
#include "ckptd/keep/drop_copies.h"
#include "ckptd/keep/retain.h"
#include "proto/format/manifest.h"
#include "proto/format/retain.h"
#include "proto/format/verified.h"

#include <stdbool.h>

struct plan_options {
    struct rpc_call *call; /* NULL: retention */
    struct retain_rules rules;
    const char *metric;
    enum tier_index tier;
    bool is_dry;
    bool reads_metrics; /* even if no rule of this plan uses them */
    bool only_reads;    /* no rule applies, and nothing is removed */
    bool is_final;      /* removed for good, without the trash */
};

/* One checkpoint of the run, and the result for it. */
struct candidate {
    bool is_led;    /* another node decides about it */
    bool is_spread; /* the newest that is replicated: newer ones may be lost with a node */
    struct manifest_summary summary;
    struct checkpoint *checkpoint; /* during its removal, when it is out of the catalog */
    struct fault fault;            /* why it was not removed, or that it is missing */
    uint64_t manifest_hash;        /* as in struct checkpoint */
    struct verified verified;      /* by the note in the local tier */
    bool has_read;                 /* its metric, or that it has none */
    bool is_gone;
    bool is_aside;           /* missing, but its shards are there */
    struct other_copy other; /* the copy that must exist before this one is removed */
    struct pin pin, far_pin; /* far_pin: only for copies in the far tier */
};

struct pruning {
    struct service *service;
    struct run *run;
    enum tier_index tier;  /* the tier of the copies */
    struct rpc_call *call; /* NULL: retention */
    struct retain_rules rules;
    char metric[64];
    bool is_dry, reads_metrics, only_reads;
    uint64_t trash; /* seconds that a removed checkpoint can be restored; 0: it cannot */
    struct retain_item *items;
    struct candidate *candidates; /* in the order of items */
    uint32_t count;
    struct fault fault;
    struct timer timer;
    struct job job;
};

/* Implemented by retain_plan.c, on a worker, for pruning->job. */
void retain_work_plan(struct job *job);
/* The storage of the copies. */
struct storage *retain_storage(const struct pruning *pruning);

/* On an error nothing was begun. */
int retain_begin(struct run *run, const struct plan_options *options);
/* After the plan of the local tier: one plan at a time. */
void retain_apply_far(struct run *run);

#endif
