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
 *   quorum.Q3  A number that a node has for another start does not count, whichever nodes took it.
 *   quorum.Q4  The first peer by name of those that answer is asked before all others. So of two
 *       starts of a run one gets it and continues, and the other has asked no further node. */
#include "ckptd/machines/quorum.h"

static bool is_majority(uint32_t holders, uint32_t nodes)
{
    return holders > nodes / 2; /* quorum.Q1 */
}

struct quorum quorum_begin(uint32_t sites)
{
    struct quorum quorum = {.sites = sites, .answered = 1};
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

enum quorum_state quorum_check(const struct quorum *quorum)
{
    if (!quorum_lacks(quorum))
        return QUORUM_HELD;
    return quorum->answered < quorum->sites ? QUORUM_ASKS : QUORUM_TOO_FEW;
}

/* quorum.Q4. */
struct node_set quorum_ask(struct quorum *quorum, const uint16_t *by_name,
                           const struct node_set *answering)
{
    struct node_set sites = {0};
    uint32_t peers = quorum->sites - 1, first = 0;
    while (first < peers && !node_set_has(answering, by_name[first] + 1u))
        first++;
    bool is_alone = first < peers && node_set_count(&quorum->asked) == 0;
    for (uint32_t site = 1; site <= peers; site++) {
        if (node_set_has(&quorum->asked, site) || (is_alone && site != by_name[first] + 1u))
            continue;
        node_set_add(&quorum->asked, site);
        node_set_add(&sites, site);
    }
    return sites;
}

enum quorum_state quorum_heard(struct quorum *quorum, uint32_t site, enum publication outcome)
{
    CHECK(site > 0 && site < quorum->sites && quorum->answered < quorum->sites);
    quorum->answered++;
    if (outcome == PUBLICATION_TAKEN)
        return QUORUM_TAKEN;            /* quorum.Q3 */
    if (outcome == PUBLICATION_DURABLE) /* quorum.Q2 */
        node_set_add(&quorum->holders, site);
    return quorum_check(quorum);
}
