/* placement.c - copies lie in different failure domains; numbers are held by a majority.
 *
 * Invariants (cited in the code, checked by tests/unit/ckptd_placement.c):
 *   R1  replicated(n) means n failure domains: two copies in one domain count once.
 *   R2  A copy goes only into a domain that has none.
 *   R3  No more copies are sent than are lacking: with those under way at most n domains get one,
 *       while the nodes that were chosen answer.
 *   R4  A node that does not answer is chosen only where no other can give that domain's copy.
 *   R5  Two majorities of the same nodes have a node in common; half of them is none.
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

uint32_t placement_domains(const struct site *sites, uint32_t count)
{
    uint32_t domains = 0;
    for (uint32_t i = 0; i < count; i++)
        domains += sites[i].has_copy && !domain_has_copy(sites, i, sites[i].domain); /* R1 */
    return domains;
}

static bool is_before(const struct site *a, const struct site *b)
{
    if (a->is_away != b->is_away) /* R4 */
        return b->is_away;
    return a->order < b->order;
}

/* It may get one, and is the first of its domain. */
static bool is_candidate(const struct site *sites, uint32_t count, uint32_t index)
{
    const struct site *site = &sites[index];
    if (index == 0 || domain_has_copy(sites, count, site->domain)) /* R2 */
        return false;
    if (strcmp(site->domain, sites[0].domain) == 0)
        return false; /* it would be lost with this node */
    for (uint32_t i = 1; i < count; i++)
        if (i != index && strcmp(sites[i].domain, site->domain) == 0 && is_before(&sites[i], site))
            return false;
    return true;
}

bool placement_goes(const struct site *sites, uint32_t count, uint32_t replicas, uint32_t index)
{
    uint32_t domains = placement_domains(sites, count), before = 0;
    if (domains >= replicas || !is_candidate(sites, count, index))
        return false;
    for (uint32_t i = 1; i < count; i++)
        before +=
            i != index && is_candidate(sites, count, i) && is_before(&sites[i], &sites[index]);
    return before < replicas - domains; /* R3 */
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
