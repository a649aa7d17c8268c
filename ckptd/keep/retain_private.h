/* retain_private.h - a plan, which retain_plan.c makes and retain.c carries out, for
 * retain_rules.c, which says when and by which rules. */
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
    bool reads_metrics; /* also where no rule of this plan goes by them */
    bool only_reads;    /* there is no rule, and nothing goes */
    bool is_final;      /* what goes cannot be taken back */
};

/* One checkpoint of the run, and what became of it. */
struct candidate {
    bool is_led;    /* another node decides on it */
    bool is_spread; /* the newest that is replicated: newer ones may be lost with a node */
    struct manifest_summary summary;
    struct checkpoint *checkpoint; /* while it is out of the catalog: it goes */
    struct fault fault;            /* why it could not be removed, or that it is not there */
    uint64_t manifest_hash;        /* as in struct checkpoint */
    struct verified verified;      /* as the note in the local tier says */
    bool has_read;                 /* its metric, or that it has none */
    bool is_gone;
    struct other_copy other; /* that must be there before this one goes */
    struct pin pin, far_pin; /* the latter when copies in the far tier go */
};

struct pruning {
    struct service *service;
    struct run *run;
    enum tier_index tier;  /* whose copies go */
    struct rpc_call *call; /* NULL: retention */
    struct retain_rules rules;
    char metric[64];
    bool is_dry, reads_metrics, only_reads;
    uint64_t trash; /* how long what goes can be taken back, in seconds; 0: not at all */
    struct retain_item *items;
    struct candidate *candidates; /* in the order of items */
    uint32_t count;
    struct fault fault;
    struct timer timer;
    struct job job;
};

/* Of retain_plan.c, on a worker: pruning->job. */
void retain_work_plan(struct job *job);
/* Where the copies lie that may go. */
struct storage *retain_storage(const struct pruning *pruning);

/* On an error nothing was begun. */
int retain_begin(struct run *run, const struct plan_options *options);
/* Behind the local tier's plan: one at a time. */
void retain_apply_far(struct run *run);

#endif
