/* tier_index.h - the tiers by number, nearest first, and the outcomes of a publication in one;
 * tier.h has the tiers. */
#ifndef HOLDFAST_CKPTD_MACHINES_TIER_INDEX_H
#define HOLDFAST_CKPTD_MACHINES_TIER_INDEX_H

#include "ckptd/machines/members.h"

#include <stdbool.h>

/* TIER_MEMORY has copies of other nodes' checkpoints; TIER_PEER + i is the store of nodes.peers[i].
 */
enum tier_index {
    TIER_LOCAL,
    TIER_MEMORY,
    TIER_PEER,
    TIER_FAR = TIER_PEER + MEMBERS_PEERS_MAX,
    NUM_TIERS
};

static inline bool tier_is_peer(enum tier_index tier)
{
    return tier >= TIER_PEER && tier < TIER_FAR;
}

/* The outcome of a publication. The default is unknown. */
enum publication {
    PUBLICATION_UNKNOWN, /* it may be there, now or later: ask again, remove no file */
    PUBLICATION_ABSENT,  /* it is certainly not there, and never will be by this call */
    PUBLICATION_TAKEN,   /* another object has the name */
    PUBLICATION_LOST,    /* ABSENT, and the files it refers to may be missing: begin again */
    PUBLICATION_DURABLE  /* it is there and survives as much as the tier does */
};

#endif
