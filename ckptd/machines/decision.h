/* decision.h - decides the answer of a save's coordinator to a node about its part. Pure: the
 * daemon and the simulator run the same code; see decision.c. */
#ifndef HOLDFAST_CKPTD_MACHINES_DECISION_H
#define HOLDFAST_CKPTD_MACHINES_DECISION_H

#include "ckptd/machines/commit.h"
#include "proto/wire/ckpt.pb-c.h"

#include <stdbool.h>

/* The facts of the coordinator about the save that a node asks about, by attempt, step and nonce.
 */
struct decision_facts {
    bool says_placed;               /* the node: the manifest is durable there */
    const struct commit_save *save; /* in work; NULL: it is not */
    bool is_here;                   /* not in work: its manifest is here, */
    bool was_committed;             /* and every holder has said that it has it, too */
    bool is_unsure;                 /* its attempt is not known here, or what is here is damaged */
};

/* False: the facts of this node suffice for no answer. */
bool decision_of(Holdfast__V1__PartVerdict *out, const struct decision_facts *facts);

/* The facts of the coordinator about a rank at another node. */
struct left_facts {
    bool is_part_gone; /* of its part nothing is told any more */
    bool is_rank_gone; /* its node does not name it among those that are connected */
};

/* Has the rank, of that node, left a save that waits for it? */
bool decision_has_left(const struct commit_save *save, uint32_t rank, uint32_t node,
                       const struct left_facts *facts);

#endif
