/* placement.c - places copies in different failure domains.
 *
 * Invariants (cited in the code, checked by tests/unit/ckptd_placement.c):
 *   placement.R1  replicated(n) means that any n - 1 failure domains may be lost, so two copies in
 *       one domain count once.
 *   placement.R2  A copy goes only into a domain without one.
 *   placement.R3  No superfluous copies are sent: including those in progress at most n domains get
 *       one, while the chosen nodes answer.
 *   placement.R4  A node that does not answer is chosen only if no other node of that domain can
 *       have the copy.
 *   placement.R5  A part is no copy. The parts of all nodes together count as one copy, while no
 *       whole copy is in the domain of a part: the loss of that domain loses both.
 *
 * So domains without a part are chosen first: one copy less is enough there. If all have parts,
 * this node is first, and its completed copy then goes to others.
 *
 * Every check chooses again, from the present copies on the nodes: there is no list to lose, and a
 * node that is gone for good is replaced. */
#include "ckptd/machines/placement.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The copies and parts of the sites of a domain. */
struct domain {
    const char *name;
    bool has_copy, has_part;
};

/* The sites sorted by domain, so that a pass over all costs count * log(count). */
struct domains {
    const struct site *sites;
    uint32_t count;    /* of sites */
    uint32_t *by_name; /* the indexes of sites, grouped by domain */
    uint32_t *of;      /* per site the index in `all` */
    struct domain *all;
    uint32_t num;
    bool is_any_part;   /* somewhere */
    bool is_any_double; /* a domain has a copy and a part: placement.R5 */
};

static int compare_sites(const void *a, const void *b, void *user)
{
    const struct site *sites = user;
    return strcmp(sites[*(const uint32_t *)a].domain, sites[*(const uint32_t *)b].domain);
}

static void free_domains(struct domains *domains)
{
    free(domains->by_name);
    free(domains->of);
    free(domains->all);
}

/* False: no memory. */
static bool find_domains(struct domains *out, const struct site *sites, uint32_t count)
{
    *out = (struct domains){.sites = sites, .count = count};
    out->by_name = calloc(count + 1, sizeof *out->by_name);
    out->of = calloc(count + 1, sizeof *out->of);
    out->all = calloc(count + 1, sizeof *out->all);
    if (!out->by_name || !out->of || !out->all)
        return false;
    for (uint32_t i = 0; i < count; i++)
        out->by_name[i] = i;
    qsort_r(out->by_name, count, sizeof *out->by_name, compare_sites, (void *)(uintptr_t)sites);
    for (uint32_t i = 0; i < count; i++) {
        const struct site *site = &sites[out->by_name[i]];
        if (out->num == 0 ||
            strcmp(out->all[out->num - 1].name, site->domain) != 0) /* placement.R1 */
            out->all[out->num++] = (struct domain){.name = site->domain};
        struct domain *domain = &out->all[out->num - 1];
        out->of[out->by_name[i]] = out->num - 1;
        domain->has_copy |= site->has_copy;
        domain->has_part |= site->has_part;
        out->is_any_part |= site->has_part;
        out->is_any_double |= domain->has_copy && domain->has_part;
    }
    return true;
}

/* placement.R1, placement.R5. */
static uint32_t count_domains(const struct domains *domains)
{
    uint32_t count = domains->is_any_part && !domains->is_any_double;
    for (uint32_t i = 0; i < domains->num; i++)
        count += domains->all[i].has_copy;
    return count;
}

uint32_t placement_domains(const struct site *sites, uint32_t count)
{
    struct domains domains;
    uint32_t found = find_domains(&domains, sites, count) ? count_domains(&domains) : 0;
    free_domains(&domains);
    return found;
}

static bool is_before(const struct domains *domains, uint32_t a, uint32_t b)
{
    const struct site *sites = domains->sites;
    bool is_part = domains->all[domains->of[a]].has_part;
    if (sites[a].is_away != sites[b].is_away) /* placement.R4 */
        return sites[b].is_away;
    if (is_part != domains->all[domains->of[b]].has_part)
        return !is_part;
    if (sites[a].has_part != sites[b].has_part) /* it lacks less than its neighbours */
        return sites[a].has_part;
    if (a == 0 || b == 0)
        return a == 0;
    return sites[a].order < sites[b].order;
}

/* The site of that domain, from `*at` of by_name on, that may get a copy; -1: none. */
static int64_t find_candidate(const struct domains *domains, uint32_t *at)
{
    uint32_t best = domains->by_name[*at], domain = domains->of[best];
    for (; *at < domains->count && domains->of[domains->by_name[*at]] == domain; ++*at)
        if (is_before(domains, domains->by_name[*at], best))
            best = domains->by_name[*at];
    if (domains->all[domain].has_copy) /* placement.R2 */
        return -1;
    /* A node that has the other shards sends them to this one. */
    return best == 0 && !domains->sites[best].has_part ? -1 : (int64_t)best;
}

/* The best candidates, at most `most`; returns how many. */
static uint32_t rank(uint32_t *out, uint32_t most, const struct domains *domains)
{
    uint32_t num = 0;
    for (uint32_t i = 0; i < domains->count;) {
        int64_t site = find_candidate(domains, &i);
        uint32_t at = num;
        if (site < 0 || (num == most && !is_before(domains, (uint32_t)site, out[most - 1])))
            continue;
        at = num < most ? num++ : most - 1;
        for (; at > 0 && is_before(domains, (uint32_t)site, out[at - 1]); at--)
            out[at] = out[at - 1];
        out[at] = (uint32_t)site;
    }
    return num;
}

/* How many of the ranked ones shall get a copy: placement.R3. None if all together change
 * nothing. */
static uint32_t count_needed(struct domains *domains, const uint32_t *ranked, uint32_t num,
                             uint32_t replicas)
{
    uint32_t needed = 0, has = count_domains(domains), gets = has;
    while (needed < num && gets < replicas) {
        struct domain *domain = &domains->all[domains->of[ranked[needed++]]];
        domain->has_copy = true;
        domains->is_any_double |= domain->has_part;
        gets = count_domains(domains);
    }
    return gets > has ? needed : 0;
}

uint32_t placement_choose(uint32_t out[PLACEMENT_COPIES_MAX], const struct site *sites,
                          uint32_t count, uint32_t replicas)
{
    struct domains domains;
    uint32_t needed = 0;
    CHECK(replicas < PLACEMENT_COPIES_MAX);
    if (find_domains(&domains, sites, count) && count_domains(&domains) < replicas) {
        uint32_t num = rank(out, replicas + 1, &domains);
        needed = count_needed(&domains, out, num, replicas);
    }
    free_domains(&domains);
    return needed;
}

uint64_t placement_order(const char *run, const char *node)
{
    char text[256];
    size_t bytes = strnlen(run, sizeof text / 2), more = strnlen(node, sizeof text / 2 - 1);
    memcpy(text, run, bytes);
    text[bytes] = '/';
    memcpy(text + bytes + 1, node, more);
    return checksum_bytes(text, bytes + 1 + more);
}
