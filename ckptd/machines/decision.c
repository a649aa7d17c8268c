/* decision.c - what the coordinator of a save answers to a node that has a part of it
 * (participating.c), and which ranks it waits for.
 *
 * Invariants (cited in the code, checked by tests/unit/ckptd_sim_nodes.c):
 *   lead.L2  Only a coordinator that knows the attempt of a save says that it is over; else the
 *       node keeps its part.
 *   lead.L3  The coordinator says COMMITTED only to a node that has said that it has the manifest.
 *   lead.L4  A save waits for a rank that has begun its part while its node reports that part, and
 *       for a rank that has not while its node names it among those that are connected. */
#include "ckptd/machines/decision.h"

bool decision_of(Holdfast__V1__PartVerdict *out, const struct decision_facts *facts)
{
    *out = HOLDFAST__V1__PART_VERDICT__VERDICT_WAIT;
    if (facts->save) {
        if (facts->save->state == COMMIT_DISCARDING)
            *out = HOLDFAST__V1__PART_VERDICT__VERDICT_OVER;
        else if (facts->save->state == COMMIT_PLACING && !facts->says_placed)
            *out = HOLDFAST__V1__PART_VERDICT__VERDICT_PLACE;
        return true;
    }
    if (!facts->is_here) {
        *out = HOLDFAST__V1__PART_VERDICT__VERDICT_OVER;
        return !facts->is_unsure; /* lead.L2 */
    }
    *out = facts->says_placed && facts->was_committed /* lead.L3 */
               ? HOLDFAST__V1__PART_VERDICT__VERDICT_COMMITTED
               : HOLDFAST__V1__PART_VERDICT__VERDICT_KEPT;
    return true;
}

bool decision_has_left(const struct commit_save *save, uint32_t rank, uint32_t node,
                       const struct left_facts *facts)
{
    if (save->state == COMMIT_PLACING)
        return facts->is_part_gone && !commit_has_placed(save, node);
    if (save->state != COMMIT_STAGING || save->ranks[rank] == RANK_DURABLE)
        return false;
    return save->ranks[rank] == RANK_ABSENT ? facts->is_rank_gone
                                            : facts->is_part_gone; /* lead.L4 */
}
