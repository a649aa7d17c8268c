/* placement.c - copies lie in different failure domains; numbers are held by a majority.
 *
 * Invariants (cited in the code, checked by tests/unit/ckptd_placement.c):
 *   R1  replicated(n) means that any n - 1 failure domains may be lost: two copies in one domain
 *       count once.
 *   R2  A copy goes only into a domain that has none.
 *   R3  No more copies are sent than are lacking: with those under way at most n domains get one,
 *       while the nodes that were chosen answer.
 *   R4  A node that does not answer is chosen only where no other can give that domain's copy.
 *   R5  Two majorities of the same nodes have a node in common; half of them is none.
 *   R6  A part is no copy. The parts of all nodes together are one, while no whole copy lies in the
 *       domain of a part: what is lost with that domain is lost with both.
 *
 * So domains without a part are chosen first: there one copy less is enough. Where all have parts,
 * this node is first, and copies of what it has fetched go on to others.
 *
 * The choice is made anew at every look, from what the nodes hold then: there is no list that could
 * be lost, and a node that went for good is replaced by another. */
#include "ckptd/nodes/placement.h"
#include "proto/checksum.h"

#include <stdio.h>
#include <string.h>

static bool domain_has_copy(const struct site *sites, uint32_t count, const char *domain)
{
    for (uint32_t i = 0; i < count; i++)
        if (sites[i].has_copy && strcmp(sites[i].domain, domain) == 0)
            return true;
    return false;
}

static bool domain_has_part(const struct site *sites, uint32_t count, const char *domain)
{
    for (uint32_t i = 0; i < count; i++)
        if (sites[i].has_part && strcmp(sites[i].domain, domain) == 0)
            return true;
    return false;
}

/* R6. */
static bool parts_are_a_copy(const struct site *sites, uint32_t count)
{
    bool is_any = false;
    for (uint32_t i = 0; i < count; i++) {
        if (sites[i].has_copy && domain_has_part(sites, count, sites[i].domain))
            return false;
        is_any |= sites[i].has_part;
    }
    return is_any;
}

uint32_t placement_domains(const struct site *sites, uint32_t count)
{
    uint32_t domains = parts_are_a_copy(sites, count);
    for (uint32_t i = 0; i < count; i++)
        domains += sites[i].has_copy && !domain_has_copy(sites, i, sites[i].domain); /* R1 */
    return domains;
}

static bool is_before(const struct site *sites, uint32_t count, uint32_t a, uint32_t b)
{
    bool is_part = domain_has_part(sites, count, sites[a].domain);
    if (sites[a].is_away != sites[b].is_away) /* R4 */
        return sites[b].is_away;
    if (is_part != domain_has_part(sites, count, sites[b].domain))
        return !is_part;
    if (sites[a].has_part != sites[b].has_part) /* it lacks less than its neighbours */
        return sites[a].has_part;
    if (a == 0 || b == 0)
        return a == 0;
    return sites[a].order < sites[b].order;
}

/* It may get one, and is the first of its domain. */
static bool is_candidate(const struct site *sites, uint32_t count, uint32_t index)
{
    const struct site *site = &sites[index];
    if (domain_has_copy(sites, count, site->domain)) /* R2 */
        return false;
    if (index == 0 && !site->has_part)
        return false; /* what it has not is sent to it by who has it */
    for (uint32_t i = 0; i < count; i++)
        if (i != index && strcmp(sites[i].domain, site->domain) == 0 &&
            is_before(sites, count, i, index))
            return false;
    return true;
}

/* The candidates, best first; so many. */
static uint32_t rank(uint32_t out[PLACEMENT_SITES_MAX], const struct site *sites, uint32_t count)
{
    uint32_t num = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!is_candidate(sites, count, i))
            continue;
        uint32_t at = num++;
        for (; at > 0 && is_before(sites, count, i, out[at - 1]); at--)
            out[at] = out[at - 1];
        out[at] = i;
    }
    return num;
}

/* So many of the ranked are to get one: R3. None when all together gain nothing. */
static uint32_t count_needed(const struct site *sites, uint32_t count, const uint32_t *ranked,
                             uint32_t num, uint32_t replicas)
{
    struct site then[PLACEMENT_SITES_MAX];
    uint32_t needed = 0, has = placement_domains(sites, count), gets = has;
    memcpy(then, sites, count * sizeof *sites);
    while (needed < num && gets < replicas) {
        then[ranked[needed++]].has_copy = true;
        gets = placement_domains(then, count);
    }
    return gets > has ? needed : 0;
}

bool placement_goes(const struct site *sites, uint32_t count, uint32_t replicas, uint32_t index)
{
    uint32_t ranked[PLACEMENT_SITES_MAX];
    if (count > PLACEMENT_SITES_MAX || placement_domains(sites, count) >= replicas)
        return false;
    uint32_t num = rank(ranked, sites, count);
    uint32_t needed = count_needed(sites, count, ranked, num, replicas);
    for (uint32_t i = 0; i < needed; i++)
        if (ranked[i] == index)
            return true;
    return false;
}

uint64_t placement_order(const char *run, const char *node)
{
    char text[256];
    int bytes = snprintf(text, sizeof text, "%s/%s", run, node);
    return checksum_bytes(text, (size_t)bytes < sizeof text ? (size_t)bytes : sizeof text - 1);
}

bool placement_is_majority(uint32_t holders, uint32_t nodes)
{
    return holders > nodes / 2; /* R5 */
}

struct quorum quorum_begin(uint32_t nodes)
{
    uint64_t sites = nodes >= 64 ? UINT64_MAX : (UINT64_C(1) << nodes) - 1;
    return (struct quorum){
        .sites = nodes, .asked = 1, .holders = 1, .num_sets = 1, .sets = {{nodes, sites}}};
}

uint32_t quorum_count(const struct quorum *quorum, const struct quorum_set *set)
{
    return (uint32_t)__builtin_popcountll(quorum->holders & set->sites);
}

const struct quorum_set *quorum_lacks(const struct quorum *quorum)
{
    for (uint32_t i = 0; i < quorum->num_sets; i++)
        if (!placement_is_majority(quorum_count(quorum, &quorum->sets[i]), quorum->sets[i].nodes))
            return &quorum->sets[i];
    return NULL;
}

enum quorum_state quorum_heard(struct quorum *quorum, enum publication outcome)
{
    uint64_t site = UINT64_C(1) << quorum->asked++;
    if (outcome == PUBLICATION_TAKEN)
        return QUORUM_TAKEN;
    if (outcome == PUBLICATION_DURABLE) /* what is unknown is not held */
        quorum->holders |= site;
    if (!quorum_lacks(quorum))
        return QUORUM_HELD;
    return quorum->asked < quorum->sites ? QUORUM_ASKS : QUORUM_TOO_FEW;
}
