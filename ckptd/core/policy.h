/* policy.h - retention and quota settings of all runs, and of one run by its name; see policy.c.
 * ckptd can reload them while it serves. */
#ifndef HOLDFAST_CKPTD_CORE_POLICY_H
#define HOLDFAST_CKPTD_CORE_POLICY_H

#include "proto/format/retain.h"

#include <stdbool.h>
#include <stdint.h>

#define POLICY_RUNS_MAX 256u /* sections [run.NAME]; more are refused */
#define POLICY_KEYS_MAX 16u

/* The rules of one tier; 0: no such rule. */
struct policy_keep {
    int64_t last, every, within, best;
};

struct policy {
    struct policy_keep local, far;
    char metric[64], order[8]; /* of `best`, in both */
    bool may_remove_most, heeds_trainers;
    int64_t trash, far_trash; /* seconds that a removed copy can be restored; 0: it cannot */
    int64_t quota;            /* bytes of all checkpoints of the run; 0: no limit */
};

/* The settings of one run: those of its section, and the common ones for the rest. */
struct run_policy {
    char run[104];
    struct policy policy;
    bool is_set[POLICY_KEYS_MAX];
};

struct policies {
    struct policy all;
    struct run_policy runs[POLICY_RUNS_MAX];
    uint32_t num_runs;
};

/* The options of [retention] and the rules of [tier], for an option table of a struct whose struct
 * policy is `at`. */
/* clang-format off */
#define POLICY_KEEP(t, keep, section, there)                                                      \
    OPTION_INT(t, keep.last, section ".keep_last", 0, 0, 1 << 24,                                 \
               "keep the newest N of a run" there "; 0: no such rule"),                           \
    OPTION_INT(t, keep.every, section ".keep_every", 0, 0, 1ll << 40,                             \
               "keep steps" there " that are multiples of N"),                                    \
    OPTION_INT(t, keep.within, section ".keep_within_s", 0, 0, 1ll << 40,                         \
               "keep younger ones" there ", in seconds before the newest"),                       \
    OPTION_INT(t, keep.best, section ".keep_best", 0, 0, 1 << 24,                                 \
               "keep the N" there " with the best metric")
#define POLICY_RETENTION(t, at)                                                                   \
    POLICY_KEEP(t, at local, "retention", ""),                                                    \
    POLICY_KEEP(t, at far, "tier", " in the far tier"),                                           \
    OPTION_INT(t, at far_trash, "tier.trash_s", 0, 0, 1ll << 40,                                  \
               "as retention.trash_s, for removals in the far tier"),                             \
    OPTION_STRING(t, at metric, "retention.metric", "loss",                                       \
                  "name of that metric, in the saved state's metrics"),                           \
    OPTION_CHOICE(t, at order, "retention.best", "lowest", "lowest,highest",                      \
                  "which value of the metric is best"),                                           \
    OPTION_BOOL(t, at may_remove_most, "retention.may_remove_most", "false",                      \
                "let retention remove more than half of a run at once"),                          \
    OPTION_INT(t, at trash, "retention.trash_s", 0, 0, 1ll << 40,                                 \
               "seconds in which ckpt-cli undelete can restore removed ones; 0: never"),          \
    OPTION_BOOL(t, at heeds_trainers, "retention.trainers", "false",                              \
                "let a trainer request keep_last: checkpoint.keep_latest_k of its configuration")
/* clang-format on */

/* Takes "run.NAME.<key>" of a configuration file. POLICY_NO_KEY: it is no such key. ERR_INVALID. */
#define POLICY_NO_KEY 1
int policy_set(struct policies *policies, const char *key, const char *value, const char *where);
/* After the last policy_set(): fills keys that a run's section leaves out with the common ones. */
void policy_inherit(struct policies *policies);
const struct policy *policy_of(const struct policies *policies, const char *run);
/* The rules of `keep`, which belongs to the policy; there may be none (retain_check). */
struct retain_rules policy_rules(const struct policy *policy, const struct policy_keep *keep);
bool policy_equal(const struct policies *a, const struct policies *b);

#endif
