/* quorum.c - see quorum.h.
 *
 *   ASKS ── a peer holds it, and most of each set do ──► HELD
 *    │ └─── another start has it ──► TAKEN
 *    └───── all have answered ──► TOO_FEW
 *
 * Invariants (cited in the code, checked by tests/unit/ckptd_quorum.c and
 * tests/unit/ckptd_sim_nodes.c):
 *   quorum.Q1  Two majorities of the same nodes have a node in common; half of them is no majority.
 *   quorum.Q2  A node whose answer is unknown does not hold the number.
 *   quorum.Q3  A number that a node has for another start is not counted on, whoever else took it.
 */
#include "ckptd/machines/quorum.h"

static bool is_majority(uint32_t holders, uint32_t nodes)
{
    return holders > nodes / 2; /* quorum.Q1 */
}

struct quorum quorum_begin(uint32_t nodes)
{
    struct quorum quorum = {.sites = nodes, .asked = 1, .num_sets = 1};
    quorum.sets[0].nodes = nodes;
    for (uint32_t i = 0; i < nodes; i++)
        node_set_add(&quorum.sets[0].sites, i);
    node_set_add(&quorum.holders, 0);
    return quorum;
}

uint32_t quorum_count(const struct quorum *quorum, const struct quorum_set *set)
{
    return node_set_common(&quorum->holders, &set->sites);
}

const struct quorum_set *quorum_lacks(const struct quorum *quorum)
{
    for (uint32_t i = 0; i < quorum->num_sets; i++)
        if (!is_majority(quorum_count(quorum, &quorum->sets[i]), quorum->sets[i].nodes))
            return &quorum->sets[i];
    return NULL;
}

enum quorum_state quorum_heard(struct quorum *quorum, uint32_t site, enum publication outcome)
{
    CHECK(site > 0 && site < quorum->sites && quorum->asked < quorum->sites);
    quorum->asked++;
    if (outcome == PUBLICATION_TAKEN)
        return QUORUM_TAKEN;            /* quorum.Q3 */
    if (outcome == PUBLICATION_DURABLE) /* quorum.Q2 */
        node_set_add(&quorum->holders, site);
    if (!quorum_lacks(quorum))
        return QUORUM_HELD;
    return quorum->asked < quorum->sites ? QUORUM_ASKS : QUORUM_TOO_FEW;
}
