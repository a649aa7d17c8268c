/* tiers.h - may a tier drop its copy of a checkpoint? See tiers.c. */
#ifndef HOLDFAST_CKPTD_KEEP_TIERS_H
#define HOLDFAST_CKPTD_KEEP_TIERS_H

#include "ckptd/tier.h"
#include "proto/manifest.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct checkpoint;

/* What must be so before a copy in one tier goes. */
struct other_copy {
    enum tier_index tier; /* where it is, or is to be */
    bool is_needed;       /* false: nothing is asked of another tier */
    bool is_awaited;      /* it is still on its way there */
    bool is_old;          /* it was last proven longer than tier.verify_age_s ago */
    uint64_t manifest_hash;
};

/* On the service thread, behind queue_plan(), for a copy in `tier` that the tier's rules may give
 * up. */
void tiers_note_other(struct other_copy *out, const struct checkpoint *checkpoint,
                      enum tier_index tier);
/* 0: it may go: the other copy is present now, and proven. Blocks on that tier. */
int tiers_check_other(struct service *service, const struct manifest_summary *summary,
                      const struct other_copy *other);

#endif
