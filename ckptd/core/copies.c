/* copies.c - records which nodes and tiers have which shards of a checkpoint, and derives which
 * losses it survives.
 *
 * A copy is whole, or a part: a node on which some of several nodes' ranks saved has only their
 * shards, and places.json beside the manifest says so (proto/format/places.h). A copy without such
 * a file is whole. tiers/complete_copy.c completes parts to whole copies. A checkpoint has records
 * only of peers with a copy, and each tier lists its copies: so neither memory nor time grows with
 * nodes times checkpoints. A copy in a node's memory counts for its failure domain beside one on a
 * disk (replica.M4); the level is named "replicated(mem)" then. */
#include "ckptd/core/copies.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/config.h"
#include "ckptd/core/service.h"
#include "proto/base/array.h"
#include "proto/base/report.h"
#include "proto/format/places.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the records ---- */

static void link_copy(struct copy *copy, struct checkpoint *checkpoint, enum tier_index tier)
{
    struct copy **first = &checkpoint->run->service->tiers[tier].copies;
    *copy = (struct copy){.checkpoint = checkpoint, .tier = tier, .next = *first, .at = first};
    if (*first)
        (*first)->at = &copy->next;
    *first = copy;
}

static void unlink_copy(struct copy *copy)
{
    *copy->at = copy->next;
    if (copy->next)
        copy->next->at = copy->at;
}

/* Resets the record, except its links. */
static void reset_copy(struct copy *copy)
{
    *copy = (struct copy){
        .checkpoint = copy->checkpoint, .tier = copy->tier, .next = copy->next, .at = copy->at};
}

void copies_init(struct checkpoint *checkpoint)
{
    link_copy(&checkpoint->copies.local, checkpoint, TIER_LOCAL);
    link_copy(&checkpoint->copies.memory, checkpoint, TIER_MEMORY);
    link_copy(&checkpoint->copies.far, checkpoint, TIER_FAR);
}

void copies_free(struct checkpoint *checkpoint)
{
    struct copies *copies = &checkpoint->copies;
    for (uint32_t i = 0; i < copies->num_peers; i++) {
        unlink_copy(copies->peers[i]);
        free(copies->peers[i]);
    }
    free(copies->peers);
    unlink_copy(&copies->local);
    unlink_copy(&copies->memory);
    unlink_copy(&copies->far);
}

/* The index of the first peer from that tier on. */
static uint32_t find_peer(const struct copies *copies, enum tier_index tier)
{
    uint32_t from = 0, to = copies->num_peers;
    while (from < to) {
        uint32_t middle = (from + to) / 2;
        if (copies->peers[middle]->tier < tier)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

const struct copy *copies_at(const struct checkpoint *checkpoint, enum tier_index tier)
{
    static const struct copy none;
    const struct copies *copies = &checkpoint->copies;
    CHECK((unsigned)tier < NUM_TIERS);
    if (!tier_is_peer(tier))
        return tier == TIER_LOCAL    ? &copies->local
               : tier == TIER_MEMORY ? &copies->memory
                                     : &copies->far;
    uint32_t i = find_peer(copies, tier);
    return i < copies->num_peers && copies->peers[i]->tier == tier ? copies->peers[i] : &none;
}

/* Adds a record before the one at `place`; NULL: no memory. */
static struct copy *add_peer(struct checkpoint *checkpoint, enum tier_index tier, uint32_t place)
{
    struct copies *copies = &checkpoint->copies;
    if (array_reserve(&copies->peers, &copies->room_peers, copies->num_peers,
                      sizeof *copies->peers) != 0)
        return NULL;
    struct copy *copy = malloc(sizeof *copy);
    if (!copy)
        return NULL;
    memmove(&copies->peers[place + 1], &copies->peers[place],
            (copies->num_peers - place) * sizeof *copies->peers);
    copies->peers[place] = copy;
    copies->num_peers++;
    link_copy(copy, checkpoint, tier);
    return copy;
}

struct copy *copies_note(struct checkpoint *checkpoint, enum tier_index tier)
{
    static struct copy nowhere;
    const struct copy *known = copies_at(checkpoint, tier);
    if (known->checkpoint)
        return (struct copy *)(uintptr_t)known;
    struct copy *made = add_peer(checkpoint, tier, find_peer(&checkpoint->copies, tier));
    if (made)
        return made;
    log_warn("nodes", "run %s, step %llu: no memory to record the copy on node %s",
             checkpoint->run->name, (unsigned long long)checkpoint->summary.step,
             tier_name(checkpoint->run->service, tier));
    nowhere = (struct copy){.tier = tier};
    return &nowhere;
}

void copies_forget(struct checkpoint *checkpoint, enum tier_index tier)
{
    struct copies *copies = &checkpoint->copies;
    const struct copy *known = copies_at(checkpoint, tier);
    if (!known->checkpoint)
        return;
    if (!tier_is_peer(tier)) {
        reset_copy(copies_note(checkpoint, tier));
        return;
    }
    uint32_t place = find_peer(copies, tier);
    struct copy *copy = copies->peers[place];
    copies->num_peers--;
    memmove(&copies->peers[place], &copies->peers[place + 1],
            (copies->num_peers - place) * sizeof *copies->peers);
    unlink_copy(copy);
    free(copy);
}

uint32_t copies_count(const struct checkpoint *checkpoint)
{
    return checkpoint->copies.num_peers + 3;
}

const struct copy *copies_get(const struct checkpoint *checkpoint, uint32_t index)
{
    const struct copies *copies = &checkpoint->copies;
    CHECK(index < copies_count(checkpoint));
    if (index < 2)
        return index == 0 ? &copies->local : &copies->memory;
    return index - 2 < copies->num_peers ? copies->peers[index - 2] : &copies->far;
}

/* ---- where to read ---- */

enum tier_index catalog_source(const struct checkpoint *checkpoint)
{
    const struct tier *tiers = checkpoint->run->service->tiers;
    enum tier_index first = NUM_TIERS;
    for (uint32_t i = 0; i < copies_count(checkpoint); i++) {
        const struct copy *copy = copies_get(checkpoint, i);
        if (!copy->is_there || copy->is_damaged)
            continue;
        if (!tiers[copy->tier].offline[0])
            return copy->tier;
        first = first < NUM_TIERS ? first : copy->tier;
    }
    return first < NUM_TIERS ? first : TIER_LOCAL;
}

unsigned catalog_tier_of(const struct service *service, const char *node)
{
    const struct members *members = &service->config->members;
    if (strcmp(service->config->nodes_name, node) == 0)
        return TIER_LOCAL;
    uint32_t peer = members_find(members, node, strlen(node));
    return peer < members->count ? TIER_PEER + peer : NUM_TIERS;
}

bool catalog_has_whole(const struct checkpoint *checkpoint, unsigned tier)
{
    const struct copy *copy = copies_at(checkpoint, (enum tier_index)tier);
    return copy->is_there && !copy->is_damaged && !copy->is_part;
}

/* The other shards of a damaged local copy are read here, as every block is verified: another tier
 * supplies only the missing ones. */
static bool may_read_here(const struct checkpoint *checkpoint, uint32_t shard)
{
    const struct copy *local = &checkpoint->copies.local;
    return local->is_there && local->is_damaged && checkpoint->uses &&
           !checkpoint->uses[shard].is_bad_here;
}

enum tier_index catalog_shard_source(const struct checkpoint *checkpoint, uint32_t shard)
{
    const struct tier *tiers = checkpoint->run->service->tiers;
    if (!checkpoint->places)
        return may_read_here(checkpoint, shard) ? TIER_LOCAL : catalog_source(checkpoint);
    enum tier_index place = (enum tier_index)checkpoint->places[shard], whole = NUM_TIERS;
    if (catalog_has_whole(checkpoint, TIER_LOCAL))
        return TIER_LOCAL;
    if (catalog_has_whole(checkpoint, TIER_MEMORY))
        return TIER_MEMORY;
    if (place < NUM_TIERS && catalog_has_copy(checkpoint, place) && !tiers[place].offline[0])
        return place;
    for (uint32_t i = copies_count(checkpoint); i-- > 0;) {
        enum tier_index tier = copies_get(checkpoint, i)->tier;
        if (catalog_has_whole(checkpoint, tier) && (whole == NUM_TIERS || !tiers[tier].offline[0]))
            whole = tier;
    }
    if (whole < NUM_TIERS)
        return whole;
    return place < NUM_TIERS ? place : TIER_LOCAL;
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

static struct copy *note_part(struct checkpoint *checkpoint, enum tier_index tier)
{
    struct copy *copy = copies_note(checkpoint, tier);
    if (copy->is_there)
        return copy;
    reset_copy(copy);
    copy->is_there = copy->is_part = true; /* it has the manifest as well: commit.I10 */
    return copy;
}

int catalog_set_places(struct checkpoint *checkpoint, enum tier_index of,
                       const struct places *places)
{
    const struct service *service = checkpoint->run->service;
    if (places->num_shards == 0)
        return 0;
    note_part(checkpoint, of)->is_part = true;
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
            note_part(checkpoint, (enum tier_index)tier);
    }
    checkpoint->is_led_elsewhere = checkpoint->places[0] != TIER_LOCAL;
    return 0;
}

bool copies_has_shard(const struct checkpoint *checkpoint, enum tier_index tier, uint32_t shard)
{
    const struct copy *copy = copies_at(checkpoint, tier);
    bool is_its = checkpoint->places && checkpoint->places[shard] == tier;
    return copy->is_there && (!copy->is_part || is_its);
}

/* Does every shard's node still have it? */
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

/* ---- which losses they survive ---- */

/* True if that node has a whole copy, on its disk or in its memory. */
static bool has_anywhere(const struct checkpoint *checkpoint, enum tier_index node)
{
    return catalog_has_whole(checkpoint, node) ||
           (node == TIER_LOCAL && catalog_has_whole(checkpoint, TIER_MEMORY));
}

static bool is_on_disk(const struct checkpoint *checkpoint, enum tier_index tier)
{
    return tier != TIER_MEMORY && catalog_has_copy(checkpoint, tier) &&
           !copies_at(checkpoint, tier)->is_volatile;
}

bool copies_is_last_in_memory(const struct checkpoint *checkpoint)
{
    for (uint32_t i = 0; i < copies_count(checkpoint); i++) {
        enum tier_index tier = copies_get(checkpoint, i)->tier;
        if (is_on_disk(checkpoint, tier) && !checkpoint->run->service->tiers[tier].is_lost)
            return false;
    }
    return catalog_has_whole(checkpoint, TIER_MEMORY);
}

/* The index of a node among the sites, by its tier. */
static uint32_t site_of(unsigned tier)
{
    return tier == TIER_LOCAL ? 0 : tier - TIER_PEER + 1;
}

static enum tier_index tier_of(uint32_t site)
{
    return site == 0 ? TIER_LOCAL : (enum tier_index)(TIER_PEER + site - 1);
}

/* This node and its peers, for the checkpoint; returns their number. */
static uint32_t list_sites(struct site out[MEMBERS_PEERS_MAX + 1],
                           const struct checkpoint *checkpoint)
{
    const struct service *service = checkpoint->run->service;
    const struct members *members = &service->config->members;
    for (uint32_t i = 0; i <= members->count; i++) {
        enum tier_index at = tier_of(i);
        const struct tier *tier = &service->tiers[at];
        const struct copy *copy = copies_at(checkpoint, at);
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
    for (uint32_t i = 0; service->num_lost > 0 && i < copies_count(checkpoint); i++) {
        const struct copy *copy = copies_get(checkpoint, i);
        if (copy->is_there && service->tiers[copy->tier].is_lost)
            return true;
    }
    return false;
}

/* The copies of a peer that has not answered since the start are unknown. Until it answers or is
 * lost, no copies are chosen, as one may be superfluous. It has none of checkpoints committed
 * since. */
static bool are_known(const struct checkpoint *checkpoint)
{
    const struct service *service = checkpoint->run->service;
    for (uint32_t i = 0; i < service->config->members.count && !checkpoint->was_committed; i++)
        if (service->tiers[TIER_PEER + i].is_unknown && !service->tiers[TIER_PEER + i].is_lost)
            return false;
    return true;
}

/* The choice for a checkpoint during the scan in progress; of another scan: invalid. */
struct chosen {
    const struct checkpoint *checkpoint;
    uint64_t scan;
    uint32_t num, sites[PLACEMENT_COPIES_MAX];
};
#define CHOSEN_MAX 64u

struct choices {
    uint64_t scan, next_scan; /* 0: none in progress */
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

void copies_begin_scan(const struct service *service)
{
    service->choices->scan = ++service->choices->next_scan;
}

void copies_end_scan(const struct service *service)
{
    service->choices->scan = 0;
}

static void choose_sites(struct chosen *out, const struct checkpoint *checkpoint)
{
    struct site sites[MEMBERS_PEERS_MAX + 1];
    uint32_t count = list_sites(sites, checkpoint);
    out->checkpoint = checkpoint;
    out->num = placement_choose(out->sites, sites, count,
                                (uint32_t)checkpoint->run->service->config->nodes_replicas);
}

/* All drains ask for the same few checkpoints in turn. */
static const struct chosen *find_chosen(struct chosen *room, const struct checkpoint *checkpoint)
{
    struct choices *choices = checkpoint->run->service->choices;
    uint64_t scan = choices ? choices->scan : 0;
    struct chosen *at = room;
    if (scan != 0)
        at = &choices->chosen[(uintptr_t)checkpoint / sizeof *checkpoint % CHOSEN_MAX];
    if (scan != 0 && at->scan == scan && at->checkpoint == checkpoint)
        return at;
    choose_sites(at, checkpoint);
    at->scan = scan;
    return at;
}

uint32_t copies_chosen(enum tier_index out[PLACEMENT_COPIES_MAX],
                       const struct checkpoint *checkpoint)
{
    struct chosen room;
    if (!are_known(checkpoint))
        return 0;
    const struct chosen *chosen = find_chosen(&room, checkpoint);
    for (uint32_t i = 0; i < chosen->num; i++)
        out[i] = tier_of(chosen->sites[i]);
    return chosen->num;
}

bool copies_goes(const struct checkpoint *checkpoint, enum tier_index tier)
{
    enum tier_index chosen[PLACEMENT_COPIES_MAX];
    uint32_t num = copies_chosen(chosen, checkpoint);
    for (uint32_t i = 0; i < num; i++)
        if (chosen[i] == tier)
            return true;
    return false;
}

/* The entry as it will be after the commit. NULL: no memory. */
static struct checkpoint *new_committed(const struct checkpoint *promised,
                                        const struct places *places)
{
    struct checkpoint *committed = calloc(1, sizeof *committed);
    if (!committed)
        return NULL;
    committed->run = promised->run;
    committed->summary = promised->summary;
    committed->summary.shards = places->num_shards;
    committed->is_promised = true;
    copies_init(committed);
    committed->copies.local.is_there = committed->was_committed = true;
    return committed;
}

uint32_t copies_will_go(enum tier_index out[PLACEMENT_COPIES_MAX],
                        const struct checkpoint *promised, const struct places *places)
{
    uint32_t num = 0;
    struct checkpoint *committed = new_committed(promised, places);
    if (!committed)
        return 0; /* copied after the commit */
    if (catalog_set_places(committed, TIER_LOCAL, places) == 0)
        num = copies_chosen(out, committed);
    copies_free(committed);
    free(committed->places);
    free(committed);
    return num;
}

static bool is_replicated(const struct checkpoint *checkpoint, bool on_disks)
{
    const struct config *config = checkpoint->run->service->config;
    struct site sites[MEMBERS_PEERS_MAX + 1];
    uint32_t count = list_sites(sites, checkpoint);
    for (uint32_t i = 0; on_disks && i < count; i++)
        sites[i].has_copy &= is_on_disk(checkpoint, tier_of(i));
    return config->nodes_replicas > 1 &&
           placement_domains(sites, count) >= (uint32_t)config->nodes_replicas;
}

enum durability catalog_durability(const struct checkpoint *checkpoint)
{
    enum durability best = DURABLE_NOT;
    for (uint32_t i = 0; i < copies_count(checkpoint); i++) {
        enum tier_index tier = copies_get(checkpoint, i)->tier;
        enum durability gives = tier == TIER_FAR               ? DURABLE_BUCKET
                                : is_on_disk(checkpoint, tier) ? DURABLE_LOCAL
                                                               : DURABLE_ACCEPTED;
        if (catalog_has_copy(checkpoint, tier) && gives > best)
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

/* Appends a name after `used` bytes; returns the bytes used then. */
static size_t write_name(char out[COPIES_TEXT_MAX], size_t used, const struct copy *copy)
{
    const char *how = copy->is_part                                    ? " (part)"
                      : copy->is_volatile && copy->tier != TIER_MEMORY ? " (memory)"
                                                                       : "";
    return used + (size_t)snprintf(out + used, COPIES_TEXT_MAX - used, "%s%s%s", used ? "," : "",
                                   tier_name(copy->checkpoint->run->service, copy->tier), how);
}

char *copies_names(struct checkpoint *checkpoint)
{
    char text[COPIES_TEXT_MAX] = "";
    uint32_t num_peers = 0;
    size_t used = 0;
    for (uint32_t i = 0; i < copies_count(checkpoint); i++) {
        const struct copy *copy = copies_get(checkpoint, i);
        if (!copy->is_there || (tier_is_peer(copy->tier) && num_peers++ >= COPIES_NAMED_MAX))
            continue;
        used = write_name(text, used, copy);
    }
    if (num_peers > COPIES_NAMED_MAX)
        snprintf(text + used, sizeof text - used, ",%u more", num_peers - COPIES_NAMED_MAX);
    free(checkpoint->tier_text);
    checkpoint->tier_text = strdup(text);
    return checkpoint->tier_text ? checkpoint->tier_text : "";
}
