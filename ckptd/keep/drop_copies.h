/* drop_copies.h - may a tier drop its copy of a checkpoint? See drop_copies.c. */
#ifndef HOLDFAST_CKPTD_KEEP_DROP_COPIES_H
#define HOLDFAST_CKPTD_KEEP_DROP_COPIES_H

#include "ckptd/core/tier.h"
#include "proto/format/manifest.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct checkpoint;

/* What must be so before a copy in one tier goes. */
enum drop_copy_need {
    DROP_COPY_NOTHING,  /* it may go */
    DROP_COPY_ARRIVAL,  /* the other is still on its way: not now */
    DROP_COPY_PRESENCE, /* the other is there, which is looked at now */
    DROP_COPY_PROOF     /* and each block of it is read back now */
};

/* Pure. Of the local copy of a checkpoint that is to be in the far tier or not, `is_far` there as
 * far as is known, and last proven there `age_s` ago; a negative age: the clock was set back. */
enum drop_copy_need drop_copy_need(bool goes_far, bool is_far, int64_t age_s, int64_t verify_age_s);

struct other_copy {
    enum tier_index tier; /* where it is, or is to be */
    enum drop_copy_need need;
    uint64_t manifest_hash;
};

/* On the service thread, behind queue_plan(), for a copy in `tier` that the tier's rules may give
 * up. */
void drop_copy_note_other(struct other_copy *out, const struct checkpoint *checkpoint,
                          enum tier_index tier);
/* 0: it may go: the other copy is present now, and proven. Blocks on that tier. */
int drop_copy_check_other(struct service *service, const struct manifest_summary *summary,
                          const struct other_copy *other);

#endif
