/* sim_nodes_part.h - a simulated node of ckptd_sim_nodes.c performs what machines/participating.c
 * decides: its part of a save that another coordinates, and which attempt it serves. */
#ifndef HOLDFAST_TESTS_SIM_NODES_PART_H
#define HOLDFAST_TESTS_SIM_NODES_PART_H

#include "tests/unit/sim_nodes_bed.h"

static void perform(struct world *world, struct node *node, const struct commit_actions *list);

/* ---- a node's part of a save of another ---- */

static void drop_part(struct node *node, uint32_t save, bool is_removed)
{
    node->parts[save] = (struct part){0};
    if (is_removed)
        node->held[save] = (struct held){0};
}

static void report(struct world *world, struct node *node, uint32_t save);
static void perform_part(struct world *world, struct node *node, uint32_t save,
                         enum participating_action action);

/* The manifest came with the answer, or is fetched. */
static void place(struct world *world, struct node *node, uint32_t save)
{
    struct held *held = &node->held[save];
    struct part *part = &node->parts[save];
    uint32_t from = part->from;
    bool is_elsewhere = from != world->made[save].leader;
    if (is_elsewhere)
        require(&world->sim,
                world->nodes[from].held[save].manifest || (world->made[save].lost >> from & 1u),
                "fanout.S3: who is named has the manifest");
    bool comes = !is_elsewhere ||
                 (can_call(world, node->index, from) && world->nodes[from].held[save].manifest);
    if (comes && !fault(&world->sim)) {
        held->manifest = true;
        held->mark = false;
    }
    perform_part(world, node, save,
                 participating_placed(&part->machine, held->manifest, is_elsewhere));
}

static void perform_part(struct world *world, struct node *node, uint32_t save,
                         enum participating_action action)
{
    struct held *held = &node->held[save];
    note(&world->sim, "part", save, action);
    switch (action) {
    case PARTICIPATING_SEND:
        report(world, node, save);
        break;
    case PARTICIPATING_PLACE:
        place(world, node, save);
        break;
    case PARTICIPATING_DONE:
        require(&world->sim, world->made[save].acked != 0,
                "sim_nodes.N6: COMMITTED of what was acknowledged");
        drop_part(node, save, false);
        break;
    case PARTICIPATING_DISCARD:
        require(&world->sim, !held->manifest,
                "participating.P2: nothing goes that a manifest names");
        drop_part(node, save, true);
        break;
    case PARTICIPATING_KEEP:
    case PARTICIPATING_LEAVE:
        drop_part(node, save, false);
        break;
    case PARTICIPATING_NOTHING:
    case PARTICIPATING_WAIT:
        break;
    }
}

static void change_part(struct world *world, struct node *node, uint32_t save)
{
    if (node->parts[save].is_live)
        perform_part(world, node, save, participating_changed(&node->parts[save].machine));
}

/* As join_leave: another attempt comes. */
static void leave_parts(struct world *world, struct node *node)
{
    for (uint32_t s = 0; s < SAVES_MAX; s++) {
        struct part *part = &node->parts[s];
        if (part->is_live)
            perform_part(world, node, s,
                         participating_leave(&part->machine,
                                             (uint32_t)__builtin_popcount(part->begun),
                                             (uint32_t)__builtin_popcount(part->durable)));
    }
}

/* Its deadline is over, or it could not be sent. */
static void end_call(struct world *world, struct node *node, uint32_t save)
{
    node->parts[save].call = 0;
    perform_part(world, node, save, participating_unanswered(&node->parts[save].machine));
}

static void report(struct world *world, struct node *node, uint32_t save)
{
    struct held *held = &node->held[save];
    struct part *part = &node->parts[save];
    struct message message = {.kind = MESSAGE_REPORT,
                              .from = node->index,
                              .to = world->made[save].leader,
                              .save = save,
                              .call = ++world->calls,
                              .ranks = part->begun,
                              .report = participating_report(&part->machine)};
    for (uint32_t r = 0; r < RANKS_MAX; r++) {
        const struct participating_shard shard = {.has_failed = part->failed >> r & 1u,
                                                  .is_durable = part->durable >> r & 1u,
                                                  .is_ended = part->ended >> r & 1u,
                                                  .is_told = part->told >> r & 1u};
        if (!(part->begun >> r & 1u))
            continue;
        struct participating_line line = participating_add(&message.report, &shard);
        message.states[r] = line.state;
        message.digests |= (uint8_t)(line.has_digests << r);
    }
    part->call = message.call;
    if (message.report.must_name && fault(&world->sim)) {
        end_call(world, node, save);
        return;
    }
    if (message.report.must_name)
        held->named = held->shards;
    post(world, message);
}

/* The answer to its report; or to what recover_parts.c asks about a part that was left. */
static void heed(struct world *world, struct node *node, const struct message *message)
{
    uint32_t save = message->save;
    const struct held *held = &node->held[save];
    struct part *part = &node->parts[save];
    if (part->call != message->call || (!part->is_live && (!held->mark || held->manifest)))
        return; /* the call is over, or it is no part any more */
    part->call = 0;
    part->from = message->manifest_at;
    part->told |= message->digests;
    if (!part->is_live)
        participating_recover(&part->machine);
    perform_part(world, node, save,
                 participating_answered(&part->machine, &message->report, message->verdict));
}

/* ---- which attempt it serves ---- */

static bool has_saves(const struct world *world, const struct node *node)
{
    bool has = commit_num_saves(node->commit) != 0;
    for (uint32_t s = 0; s < world->num_made; s++)
        has |= node->parts[s].is_live;
    return has;
}

static void follow(struct world *world, struct node *node, const struct trainer *trainer)
{
    require(&world->sim, trainer->attempt > node->open && !has_saves(world, node),
            "participating.P7: a later attempt is followed when no save is in work");
    commit_follow(node->commit, trainer->attempt, trainer->ranks);
    node->open = node->newest = trainer->attempt;
    node->leader = trainer->leader;
}

/* As settle_arrival of join_save.c: does the rank's node serve the attempt from now on? */
static bool join_node(struct world *world, struct node *node, const struct trainer *trainer)
{
    struct commit_actions list = {0};
    bool is_own = node->index == trainer->leader;
    const struct participating_arrival arrival = {.attempt = trainer->attempt,
                                                  .served = node->open,
                                                  .newest = node->newest,
                                                  .whose = is_own ? PARTICIPATING_OURS
                                                                  : PARTICIPATING_A_PEERS,
                                                  .has_saves = has_saves(world, node),
                                                  .has_waited = below(&world->sim, 4) == 0};
    if (node->taking.is_busy && node->open != trainer->attempt)
        return false;
    if (!participating_is_unknown(&arrival))
        return node->open == trainer->attempt;
    if (!is_own && !can_call(world, node->index, trainer->leader))
        return false; /* it does not find the attempt's file */
    enum participating_entry entry = participating_arrive(&arrival);
    note(&world->sim, "arrive", trainer->attempt, entry);
    switch (entry) {
    case PARTICIPATING_GIVE_UP:
        leave_parts(world, node);
        break;
    case PARTICIPATING_FOLLOW:
        follow(world, node, trainer);
        return true;
    case PARTICIPATING_DESCRIBE: /* as describe.c, after a restart */
        if (node->open != 0 || commit_resume(node->commit, trainer->attempt, trainer->ranks) != 0)
            return false;
        node->open = trainer->attempt;
        node->leader = node->index;
        return true;
    default:
        break;
    }
    commit_yield(node->commit, &list);
    perform(world, node, &list);
    return false;
}

#endif
