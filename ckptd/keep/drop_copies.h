/* drop_copies.h - decides whether a tier may drop its copy of a checkpoint; see drop_copies.c. */
#ifndef HOLDFAST_CKPTD_KEEP_DROP_COPIES_H
#define HOLDFAST_CKPTD_KEEP_DROP_COPIES_H

#include "ckptd/core/tier.h"
#include "proto/format/manifest.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct checkpoint;

/* The condition for dropping a copy in one tier. */
enum drop_copy_need {
    DROP_COPY_NOTHING,  /* it may go */
    DROP_COPY_ARRIVAL,  /* the other copy is not complete yet: not now */
    DROP_COPY_PRESENCE, /* the other copy exists, which is checked now */
    DROP_COPY_PROOF     /* and each block of it is read back now */
};

/* Pure function. For the local copy of a checkpoint: `goes_far`: it is wanted in the far tier;
 * `is_far`: it is there, as far as known, and was last verified there `age_s` ago. A negative age:
 * the clock was set back. */
enum drop_copy_need drop_copy_need(bool goes_far, bool is_far, int64_t age_s, int64_t verify_age_s);

struct other_copy {
    enum tier_index tier; /* the tier that has it, or is to have it */
    enum drop_copy_need need;
    uint64_t manifest_hash;
};

/* On the service thread, after queue_plan(), for a copy in `tier` that the tier's rules may
 * drop. */
void drop_copy_note_other(struct other_copy *out, const struct checkpoint *checkpoint,
                          enum tier_index tier);
/* 0: the copy may be dropped: the other one exists now, and is verified. Blocks on that tier. */
int drop_copy_check_other(struct service *service, const struct manifest_summary *summary,
                          const struct other_copy *other);

#endif
