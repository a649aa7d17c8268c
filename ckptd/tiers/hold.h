/* hold.h - the claims of a transfer in another tier before its first byte: the attempt's number, a
 * lease and a mark on the directory; see hold.c. Blocks; any thread. */
#ifndef HOLDFAST_CKPTD_TIERS_HOLD_H
#define HOLDFAST_CKPTD_TIERS_HOLD_H

#include "ckptd/core/tier.h"
#include "proto/format/manifest.h"

#include <stdbool.h>

struct service;

struct hold {
    struct storage *storage;    /* storage of the tier; NULL: nothing was claimed yet */
    struct storage_hold *lease; /* NULL: none, or the back-end needs none */
    char prefix[STORAGE_KEY_MAX];
};

/* May be called again after an outcome other than DURABLE. This thread's last error says why. */
enum publication hold_take(struct hold *claim, struct service *service, enum tier_index tier,
                           const struct manifest_summary *summary);
/* Releases the lease; removes the mark if the manifest is there. */
void hold_end(struct hold *claim, bool is_held);
/* Leaves lease and mark in place, as a killed process does. */
void hold_leave(struct hold *claim);

#endif
