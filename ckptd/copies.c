/* copies.c - which nodes and tiers have which shards of a checkpoint, and what that survives.
 *
 * A copy is whole, or a part: a node on which some ranks of several saved has their shards alone,
 * and places.json beside the manifest says so (proto/places.h). What nobody has told is whole.
 * Parts become whole copies by member/whole.c. A copy in the memory of a node counts for its
 * failure domain beside one on a disk (M4 of nodes/replica.c); the level is named "replicated(mem)"
 * then. */
#include "ckptd/copies.h"
#include "ckptd/catalog.h"
#include "ckptd/config.h"
#include "ckptd/service.h"
#include "proto/places.h"
#include "proto/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- where to read ---- */

enum tier_index catalog_source(const struct checkpoint *checkpoint)
{
    const struct tier *tiers = checkpoint->run->service->tiers;
    unsigned first = NUM_TIERS;
    for (unsigned tier = 0; tier < NUM_TIERS; tier++) {
        if (!catalog_has_copy(checkpoint, (enum tier_index)tier))
            continue;
        if (!tiers[tier].offline[0])
            return (enum tier_index)tier;
        first = first < NUM_TIERS ? first : tier;
    }
    return first < NUM_TIERS ? (enum tier_index)first : TIER_LOCAL;
}

unsigned catalog_tier_of(const struct service *service, const char *node)
{
    const struct members *members = &service->config->members;
    if (strcmp(service->config->nodes_name, node) == 0)
        return TIER_LOCAL;
    for (uint32_t i = 0; i < members->count; i++)
        if (strcmp(members->peers[i].name, node) == 0)
            return TIER_PEER + i;
    return NUM_TIERS;
}

bool catalog_has_whole(const struct checkpoint *checkpoint, unsigned tier)
{
    return catalog_has_copy(checkpoint, (enum tier_index)tier) && !checkpoint->copies[tier].is_part;
}

/* Of a local copy that is damaged the other shards are read all the same, as every block is proven:
 * another tier is asked for no more than what is missing here. */
static bool may_read_here(const struct checkpoint *checkpoint, uint32_t shard)
{
    const struct copy *local = &checkpoint->copies[TIER_LOCAL];
    return local->is_there && local->is_damaged && checkpoint->uses &&
           !checkpoint->uses[shard].is_bad_here;
}

enum tier_index catalog_shard_source(const struct checkpoint *checkpoint, uint32_t shard)
{
    const struct tier *tiers = checkpoint->run->service->tiers;
    if (!checkpoint->places)
        return may_read_here(checkpoint, shard) ? TIER_LOCAL : catalog_source(checkpoint);
    unsigned place = checkpoint->places[shard], whole = NUM_TIERS;
    if (catalog_has_whole(checkpoint, TIER_LOCAL))
        return TIER_LOCAL;
    if (catalog_has_whole(checkpoint, TIER_MEMORY))
        return TIER_MEMORY;
    if (place < NUM_TIERS && catalog_has_copy(checkpoint, (enum tier_index)place) &&
        !tiers[place].offline[0])
        return (enum tier_index)place;
    for (unsigned tier = NUM_TIERS; tier-- > 0;)
        if (catalog_has_whole(checkpoint, tier) && (whole == NUM_TIERS || !tiers[tier].offline[0]))
            whole = tier;
    if (whole < NUM_TIERS)
        return (enum tier_index)whole;
    return place < NUM_TIERS ? (enum tier_index)place : TIER_LOCAL;
}

enum tier_index copies_out_of_reach(const struct checkpoint *checkpoint)
{
    const struct tier *tiers = checkpoint->run->service->tiers;
    enum tier_index whole = catalog_source(checkpoint);
    if (!checkpoint->places)
        return tier_is_peer(whole) && tiers[whole].offline[0] ? whole : NUM_TIERS;
    for (uint32_t i = 0; i < checkpoint->summary.shards; i++) {
        enum tier_index source = catalog_shard_source(checkpoint, i);
        if (source != TIER_LOCAL && tiers[source].offline[0])
            return source;
    }
    return NUM_TIERS;
}

/* ---- parts ---- */

static void note_part(struct copy *copy)
{
    if (!copy->is_there) /* it has the manifest, too: I10 of commit.c */
        *copy = (struct copy){.is_there = true, .is_part = true};
}

int catalog_set_places(struct checkpoint *checkpoint, enum tier_index of,
                       const struct places *places)
{
    const struct service *service = checkpoint->run->service;
    if (places->num_shards == 0)
        return 0;
    note_part(&checkpoint->copies[of]);
    checkpoint->copies[of].is_part = true;
    if (checkpoint->places)
        return 0;
    checkpoint->places = calloc(places->num_shards, sizeof *checkpoint->places);
    if (!checkpoint->places)
        return report_error(ERR_MEMORY, NULL, "no memory for the places of %u shards",
                            places->num_shards);
    for (uint32_t i = 0; i < places->num_shards; i++) {
        unsigned tier = catalog_tier_of(service, places->nodes[places->shards[i]]);
        checkpoint->places[i] = (uint16_t)tier;
        if (tier < NUM_TIERS && tier != TIER_LOCAL)
            note_part(&checkpoint->copies[tier]);
    }
    checkpoint->is_led_elsewhere = checkpoint->places[0] != TIER_LOCAL;
    return 0;
}

bool copies_has_shard(const struct checkpoint *checkpoint, enum tier_index tier, uint32_t shard)
{
    const struct copy *copy = &checkpoint->copies[tier];
    bool is_its = checkpoint->places && checkpoint->places[shard] == tier;
    return copy->is_there && (!copy->is_part || is_its);
}

/* Is every shard where it was saved? */
static bool parts_are_complete(const struct checkpoint *checkpoint)
{
    for (uint32_t i = 0; checkpoint->places && i < checkpoint->summary.shards; i++) {
        unsigned tier = checkpoint->places[i];
        if (tier == NUM_TIERS || !catalog_has_copy(checkpoint, (enum tier_index)tier) ||
            checkpoint->run->service->tiers[tier].is_lost)
            return false;
    }
    return checkpoint->places;
}

/* ---- what they survive ---- */

/* At that node: on its disk or in its memory. */
static bool has_anywhere(const struct checkpoint *checkpoint, enum tier_index node)
{
    return catalog_has_whole(checkpoint, node) ||
           (node == TIER_LOCAL && catalog_has_whole(checkpoint, TIER_MEMORY));
}

static bool is_on_disk(const struct checkpoint *checkpoint, enum tier_index tier)
{
    return tier != TIER_MEMORY && catalog_has_copy(checkpoint, tier) &&
           !checkpoint->copies[tier].is_volatile;
}

bool copies_is_last_in_memory(const struct checkpoint *checkpoint)
{
    for (unsigned tier = 0; tier < NUM_TIERS; tier++)
        if (is_on_disk(checkpoint, (enum tier_index)tier) &&
            !checkpoint->run->service->tiers[tier].is_lost)
            return false;
    return catalog_has_whole(checkpoint, TIER_MEMORY);
}

/* The number of a node among the sites, of its tier. */
static uint32_t site_of(unsigned tier)
{
    return tier == TIER_LOCAL ? 0 : tier - TIER_PEER + 1;
}

uint32_t catalog_sites(struct site out[MEMBERS_PEERS_MAX + 1], const struct checkpoint *checkpoint)
{
    const struct service *service = checkpoint->run->service;
    const struct members *members = &service->config->members;
    for (uint32_t i = 0; i <= members->count; i++) {
        enum tier_index at = i == 0 ? TIER_LOCAL : (enum tier_index)(TIER_PEER + i - 1);
        const struct tier *tier = &service->tiers[at];
        const struct copy *copy = &checkpoint->copies[at];
        out[i] = (struct site){
            .domain = i == 0 ? service->config->nodes_domain : members->peers[i - 1].domain,
            .has_copy = has_anywhere(checkpoint, at) && !tier->is_lost,
            .is_away =
                tier->offline[0] || tier->is_unknown || tier->takes_nothing || copy->is_given_up,
            .order =
                i == 0 ? 0 : placement_order(checkpoint->run->name, members->peers[i - 1].name)};
    }
    uint32_t num_parts = parts_are_complete(checkpoint) ? checkpoint->summary.shards : 0;
    for (uint32_t i = 0; i < num_parts; i++)
        out[site_of(checkpoint->places[i])].has_part = true;
    return members->count + 1;
}

bool copies_were_lost(const struct checkpoint *checkpoint)
{
    const struct service *service = checkpoint->run->service;
    for (uint32_t i = 0; service->num_lost > 0 && i < service->config->members.count; i++)
        if (checkpoint->copies[TIER_PEER + i].is_there && service->tiers[TIER_PEER + i].is_lost)
            return true;
    return false;
}

/* What a peer has that has not answered since the start nobody here knows. Until it does, or is
 * lost, a copy more may be one too many; but of what was committed since it has none. */
static bool are_known(const struct checkpoint *checkpoint)
{
    const struct service *service = checkpoint->run->service;
    for (uint32_t i = 0; i < service->config->members.count && !checkpoint->was_committed; i++)
        if (service->tiers[TIER_PEER + i].is_unknown && !service->tiers[TIER_PEER + i].is_lost)
            return false;
    return true;
}

/* What was chosen during the look that is under way; of another look: nothing. */
struct chosen {
    const struct checkpoint *checkpoint;
    uint64_t look;
    uint32_t num, sites[PLACEMENT_COPIES_MAX];
};
#define CHOSEN_MAX 64u

struct choices {
    uint64_t look, next_look; /* 0: none is under way */
    struct chosen chosen[CHOSEN_MAX];
};

int copies_open(struct service *service)
{
    service->choices = calloc(1, sizeof *service->choices);
    return service->choices ? 0 : report_error(ERR_MEMORY, NULL, "no memory for choices of nodes");
}

void copies_close(struct service *service)
{
    free(service->choices);
    service->choices = NULL;
}

void copies_begin_look(struct service *service)
{
    service->choices->look = ++service->choices->next_look;
}

void copies_end_look(struct service *service)
{
    service->choices->look = 0;
}

static void choose(struct chosen *out, const struct checkpoint *checkpoint)
{
    struct site sites[MEMBERS_PEERS_MAX + 1];
    uint32_t count = catalog_sites(sites, checkpoint);
    out->checkpoint = checkpoint;
    out->num = placement_choose(out->sites, sites, count,
                                (uint32_t)checkpoint->run->service->config->nodes_replicas);
}

/* All drains ask for the same few checkpoints, one after the other. */
static const struct chosen *find_chosen(struct chosen *room, const struct checkpoint *checkpoint)
{
    struct choices *choices = checkpoint->run->service->choices;
    uint64_t look = choices ? choices->look : 0;
    struct chosen *at = room;
    if (look != 0)
        at = &choices->chosen[(uintptr_t)checkpoint / sizeof *checkpoint % CHOSEN_MAX];
    if (look != 0 && at->look == look && at->checkpoint == checkpoint)
        return at;
    choose(at, checkpoint);
    at->look = look;
    return at;
}

bool copies_goes(const struct checkpoint *checkpoint, enum tier_index tier)
{
    struct chosen room;
    if (!are_known(checkpoint))
        return false;
    const struct chosen *chosen = find_chosen(&room, checkpoint);
    for (uint32_t i = 0; i < chosen->num; i++)
        if (chosen->sites[i] == site_of(tier))
            return true;
    return false;
}

bool copies_will_go(const struct checkpoint *promised, const struct places *places,
                    enum tier_index tier)
{
    struct checkpoint committed = *promised;
    committed.copies[TIER_LOCAL].is_there = committed.was_committed = true;
    committed.places = NULL;
    committed.summary.shards = places->num_shards;
    bool goes =
        catalog_set_places(&committed, TIER_LOCAL, places) == 0 && copies_goes(&committed, tier);
    free(committed.places);
    return goes;
}

static bool is_replicated(const struct checkpoint *checkpoint, bool on_disks)
{
    const struct config *config = checkpoint->run->service->config;
    struct site sites[MEMBERS_PEERS_MAX + 1];
    uint32_t count = catalog_sites(sites, checkpoint);
    for (uint32_t i = 0; on_disks && i < count; i++)
        sites[i].has_copy &=
            is_on_disk(checkpoint, i == 0 ? TIER_LOCAL : (enum tier_index)(TIER_PEER + i - 1));
    return config->nodes_replicas > 1 &&
           placement_domains(sites, count) >= (uint32_t)config->nodes_replicas;
}

enum durability catalog_durability(const struct checkpoint *checkpoint)
{
    enum durability best = DURABLE_NOT;
    for (unsigned tier = 0; tier < NUM_TIERS; tier++) {
        enum durability gives = tier == TIER_FAR                                ? DURABLE_BUCKET
                                : is_on_disk(checkpoint, (enum tier_index)tier) ? DURABLE_LOCAL
                                                                                : DURABLE_ACCEPTED;
        if (catalog_has_copy(checkpoint, (enum tier_index)tier) && gives > best)
            best = gives;
    }
    return best == DURABLE_LOCAL && is_replicated(checkpoint, false) ? DURABLE_REPLICATED : best;
}

const char *copies_level(const struct checkpoint *checkpoint)
{
    enum durability level = catalog_durability(checkpoint);
    return level == DURABLE_REPLICATED && !is_replicated(checkpoint, true) ? "replicated(mem)"
                                                                           : durability_text(level);
}

char *copies_names(struct checkpoint *checkpoint)
{
    static const char volatile_[] = " (memory)";
    char text[NUM_TIERS * (MEMBER_NAME_MAX + sizeof volatile_ + 1)] = "";
    size_t used = 0;
    for (unsigned tier = 0; tier < NUM_TIERS; tier++) {
        const struct copy *copy = &checkpoint->copies[tier];
        const char *how = copy->is_part                              ? " (part)"
                          : copy->is_volatile && tier != TIER_MEMORY ? volatile_
                                                                     : "";
        if (copy->is_there)
            used +=
                (size_t)snprintf(text + used, sizeof text - used, "%s%s%s", used ? "," : "",
                                 tier_name(checkpoint->run->service, (enum tier_index)tier), how);
    }
    free(checkpoint->tier_text);
    checkpoint->tier_text = strdup(text);
    return checkpoint->tier_text ? checkpoint->tier_text : "";
}
