/* sim_nodes_disk.h - a simulated node of ckptd_sim_nodes.c: its disk, its memory, its crash, and
 * the copies that it sends to others. */
#ifndef HOLDFAST_TESTS_SIM_NODES_DISK_H
#define HOLDFAST_TESTS_SIM_NODES_DISK_H

#include "tests/unit/placement_goes.h"
#include "tests/unit/sim_nodes_early.h"

/* ---- a node's disk and memory ---- */

/* Writes and syncs an announced shard, or fails. */
static void write_shard(struct world *world, struct node *node)
{
    uint32_t first = world->num_made > 0 ? below(&world->sim, world->num_made) : 0;
    for (uint32_t i = 0; i < world->num_made; i++) {
        uint32_t s = (first + i) % world->num_made;
        struct made *made = &world->made[s];
        bool is_own = made->leader == node->index && made->boot == node->boot;
        const struct commit_save *save = is_own ? commit_find(node->commit, made->id) : NULL;
        struct part *part = &node->parts[s];
        for (uint32_t r = 0; r < made->ranks; r++) {
            uint8_t bit = (uint8_t)(1u << r);
            bool is_due = save ? made->holder[r] == node->index && save->state == COMMIT_STAGING &&
                                     save->ranks[r] == RANK_ENDED
                               : part->is_live && (part->ended & bit) && !(part->durable & bit) &&
                                     !(part->failed & bit);
            if (!is_due)
                continue;
            struct commit_actions list = {0};
            bool fails = fault(&world->sim);
            note(&world->sim, "write", s, fails);
            node->held[s].shards |= fails ? 0 : bit;
            if (!save)
                *(fails ? &part->failed : &part->durable) |= bit;
            else if (fails)
                commit_failed(node->commit, &list, made->id, r, ERR_IO, "simulated");
            else
                commit_durable(node->commit, &list, made->id, r);
            perform(world, node, &list);
            change_part(world, node, s);
            return;
        }
    }
}

static bool is_left(const struct world *world, const struct node *node, uint32_t save)
{
    const struct held *held = &node->held[save];
    return held->mark && !held->manifest && !held->is_sent && !node->parts[save].is_live &&
           world->made[save].leader != node->index;
}

/* A live part reports, or the deadline of its report expires; a part left by an earlier process
 * asks for its outcome. */
static void report_some(struct world *world, struct node *node)
{
    uint32_t first = world->num_made > 0 ? below(&world->sim, world->num_made) : 0;
    for (uint32_t i = 0; i < world->num_made; i++) {
        uint32_t s = (first + i) % world->num_made;
        bool is_live = node->parts[s].is_live;
        if (!is_live && !is_left(world, node, s))
            continue;
        if (!is_live)
            report(world, node, s);
        else if (!node->parts[s].machine.is_reporting)
            change_part(world, node, s);
        else if (below(&world->sim, 4) == 0)
            end_call(world, node, s);
        return;
    }
}

static void start_process(struct world *world, struct node *node)
{
    uint64_t newest = 0;
    for (uint64_t number = 1; number < ATTEMPTS_MAX; number++)
        newest = node->owner[number] != 0 ? number : newest;
    for (uint32_t s = 0; s < world->num_made; s++) {
        struct held *held = &node->held[s];
        bool is_own = world->made[s].leader == node->index || held->is_sent;
        if (held->mark && !held->manifest && is_own)
            *held = (struct held){0}; /* its mark shows that it is unfinished (scan.c) */
        if (held->manifest && world->made[s].attempt > newest)
            newest = world->made[s].attempt;
    }
    memset(node->commit->latest, 0, RANKS_MAX * sizeof node->commit->latest[0]);
    memset(node->commit->unaware, 0, RANKS_MAX * sizeof node->commit->unaware[0]);
    commit_init(node->commit, newest);
    node->newest = newest;
    node->boot = ++world->boots;
    node->is_up = true;
}

static void crash(struct world *world, struct node *node, bool loses_disk)
{
    const struct node before = *node;
    note(&world->sim, loses_disk ? "disk" : "crash", node->index, 0);
    world->num_crashed++;
    if (node->opens_for != NOBODY)
        world->trainers[node->opens_for].is_up = false;
    *node = (struct node){
        .index = before.index, .store = before.store, .commit = before.commit, .opens_for = NOBODY};
    if (loses_disk) {
        node->store = ++world->stores;
        world->num_lost++;
        for (uint32_t s = 0; s < world->num_made; s++)
            world->made[s].lost |= 1u << node->index;
        return;
    }
    memcpy(node->owner, before.owner, sizeof node->owner);
    memcpy(node->held, before.held, sizeof node->held);
    for (uint32_t s = 0; s < world->num_made; s++)
        for (uint32_t r = 0; r < RANKS_MAX; r++)
            if (!(node->held[s].named >> r & 1u) && below(&world->sim, 2) == 0)
                node->held[s].shards &= (uint8_t) ~(1u << r); /* its name was not durable */
    for (uint32_t s = 0; s < world->num_made; s++)
        node->held[s].named &= node->held[s].shards;
}

/* ---- copies ---- */

/* A reachable node that, as far as this one knows, has the shard. */
static bool find_source(const struct world *world, const struct node *node, uint32_t save,
                        uint32_t shard)
{
    for (uint32_t n = 0; n < NODES; n++) {
        const struct held *held = n == node->index ? &node->held[save] : &node->knows[n][save];
        bool is_near = n == node->index || can_call(world, node->index, n);
        if (is_near && (held->shards & held->named) >> shard & 1u)
            return (world->nodes[n].held[save].shards >> shard & 1u) != 0;
    }
    return false;
}

static bool has_sources(const struct world *world, const struct node *node, uint32_t save)
{
    for (uint32_t i = 0; i < world->made[save].ranks; i++)
        if (!find_source(world, node, save, i))
            return false;
    return true;
}

static bool is_sending(const struct node *node, uint32_t to)
{
    return node->sending[to].transfer.state != TRANSFER_FREE || node->sending[to].is_waiting ||
           node->sending[to].due.kind != TRANSFER_NOTHING;
}

/* The save and the node to send it to; NOBODY: none. */
static uint32_t pick(const struct world *world, const struct node *node, uint32_t *out_to)
{
    for (uint32_t s = world->num_made; s-- > 0;) {
        struct site sites[NODES];
        const struct made *made = &world->made[s];
        if (!node->held[s].manifest || is_in_work(node, made) || !has_sources(world, node, s))
            continue;
        list_sites(sites, node, made, s);
        bool is_enough = placement_domains(sites, NODES) >= REPLICAS;
        for (uint32_t i = 0; i < NODES && !is_enough; i++) {
            *out_to = (node->index + i) % NODES;
            if (!sites[i].is_away && !is_sending(node, *out_to) &&
                placement_goes(sites, NODES, REPLICAS, i))
                return s;
        }
    }
    return NOBODY;
}

static void start_sending(struct world *world, struct node *node, uint32_t to)
{
    struct sending *sending = &node->sending[to];
    sending->is_waiting = false;
    sending->due = transfer_begin(&sending->transfer, world->made[sending->save].ranks, 100);
}

/* Sends the picked save. When none is picked, idle targets drop the shards that were sent early. */
static void begin_transfer(struct world *world, struct node *node)
{
    uint32_t to, save = pick(world, node, &to);
    for (uint32_t n = 0; n < NODES && save == NOBODY; n++)
        if (!is_sending(node, n))
            perform_early(world, node, n, precommit_give(&node->early[n].machine, PRECOMMIT_OTHER));
    if (save == NOBODY)
        return;
    node->sending[to].save = save;
    note(&world->sim, "send", save, to);
    if (give_early(world, node, to, save))
        start_sending(world, node, to);
}

/* serve.P1. */
static enum publication place_copy(struct held *held, const struct made *made)
{
    if ((held->shards & held->named) != all_shards(made))
        return PUBLICATION_LOST;
    held->manifest = true;
    held->mark = held->is_sent = false;
    return PUBLICATION_DURABLE;
}

static void held_there(struct world *world, struct node *node, uint32_t to, uint32_t save)
{
    struct held *known = &node->knows[to][save];
    *known = (struct held){.manifest = true,
                           .shards = all_shards(&world->made[save]),
                           .named = all_shards(&world->made[save])};
}

/* Delivers a request to another node: it takes effect and is answered. */
static void go_on_sending(struct world *world, struct node *node)
{
    uint32_t at = below(&world->sim, NODES), tries = 0;
    while (++tries < NODES && node->sending[at].due.kind == TRANSFER_NOTHING)
        at = (at + 1) % NODES;
    struct node *to = &world->nodes[at];
    struct sending *sending = &node->sending[to->index];
    const struct transfer_action due = sending->due;
    if (due.kind == TRANSFER_NOTHING)
        return;
    const struct made *made = &world->made[sending->save];
    struct held *held = &to->held[sending->save];
    bool comes = to == node || reaches(world, node->index, to->index);
    bool is_heard =
        comes && (to == node || reaches(world, to->index, node->index)) && !fault(&world->sim);
    enum publication outcome = PUBLICATION_UNKNOWN;
    comes = comes && !fault(&world->sim);
    sending->due = (struct transfer_action){.kind = TRANSFER_NOTHING};
    note(&world->sim, "drain", due.kind, due.shard);
    require(&world->sim, !is_early_at_work(node, at, sending->save),
            "precommit.E3: nothing else is under way in the directory");
    switch (due.kind) {
    case TRANSFER_CLAIM:
        if (comes) {
            outcome = claim_copy(to, made, held);
        }
        sending->due =
            transfer_claimed(&sending->transfer, is_heard ? outcome : PUBLICATION_UNKNOWN);
        break;
    case TRANSFER_COPY:
        if (!find_source(world, node, sending->save, due.shard)) {
            sending->due = transfer_copied(&sending->transfer, due.shard, ERR_NOT_FOUND, true);
            break;
        }
        if (comes)
            held->shards |= (uint8_t)(1u << due.shard);
        sending->due = transfer_copied(&sending->transfer, due.shard,
                                       comes && is_heard ? 0 : ERR_UNAVAILABLE, false);
        break;
    case TRANSFER_NAMES:
        if (comes)
            held->named = held->shards;
        sending->due = transfer_named(&sending->transfer, comes && is_heard ? 0 : ERR_UNAVAILABLE);
        break;
    case TRANSFER_PUBLISH:
        if (comes)
            outcome = place_copy(held, made);
        if (held->manifest && to->parts[sending->save].is_live)
            perform_part(world, to, sending->save,
                         participating_completed(&to->parts[sending->save].machine));
        sending->due =
            transfer_published(&sending->transfer, is_heard ? outcome : PUBLICATION_UNKNOWN);
        break;
    case TRANSFER_SETTLE:
        if (comes)
            outcome = held->manifest ? place_copy(held, made) : PUBLICATION_ABSENT;
        sending->due =
            transfer_settled(&sending->transfer, is_heard ? outcome : PUBLICATION_UNKNOWN);
        break;
    case TRANSFER_REST:
        sending->due = transfer_rested(&sending->transfer);
        break;
    case TRANSFER_HELD:
        held_there(world, node, to->index, sending->save);
        break;
    default: /* TRANSFER_OVER: like drain.c, no more until the next start */
        node->is_given_up[to->index][sending->save] = true;
    }
}

/* True when the loss of any one domain leaves the save whole. */
static bool is_whole_without_one(const struct world *world, uint32_t save)
{
    for (uint32_t n = 0; n < NODES; n++) {
        uint32_t others = 0;
        for (uint32_t m = 0; m < NODES; m++)
            others |= (uint32_t)(strcmp(domains[n], domains[m]) != 0) << m;
        if (!is_whole_on(world, save, others))
            return false;
    }
    return true;
}

/* The level that this node reports for its checkpoints. */
static void acknowledge_replicated(struct world *world, const struct node *node)
{
    for (uint32_t s = 0; s < world->num_made; s++) {
        struct site sites[NODES];
        struct made *made = &world->made[s];
        if (made->is_replicated || made->acked == 0 || !node->held[s].manifest)
            continue;
        list_sites(sites, node, made, s);
        made->is_replicated = placement_domains(sites, NODES) >= REPLICAS;
        require(&world->sim,
                !made->is_replicated || made->lost != 0 || is_whole_without_one(world, s),
                "sim_nodes.N2: said to be replicated, and lost with one domain");
        world->num_replicated += made->is_replicated;
    }
}

#endif
