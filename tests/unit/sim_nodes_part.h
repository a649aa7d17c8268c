/* sim_nodes_part.h - a simulated node of ckptd_sim_nodes.c performs the decisions of
 * machines/participating.c and machines/joining.c: its part of a save that another coordinates, the
 * attempt that it serves, and its reports about its ranks. */
#ifndef HOLDFAST_TESTS_SIM_NODES_PART_H
#define HOLDFAST_TESTS_SIM_NODES_PART_H

#include "tests/unit/sim_nodes_bed.h"

#define NAMES_EVENTS 100 /* between two calls that name ranks */

static void perform(struct world *world, struct node *node, const struct commit_actions *list);
static void kill_trainer(struct world *world, struct trainer *trainer);

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

/* Like join_leave: another attempt comes. */
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

/* Handles the answer to its report, or to the question of recover_parts.c about a part that was
 * left. */
static void heed(struct world *world, struct node *node, const struct message *message)
{
    uint32_t save = message->save;
    const struct held *held = &node->held[save];
    struct part *part = &node->parts[save];
    if (part->call != message->call || (!part->is_live && (!held->mark || held->manifest)))
        return; /* the call is over, or the part has ended */
    part->call = 0;
    part->from = message->manifest_at;
    part->told |= message->digests;
    if (!part->is_live)
        participating_recover(&part->machine);
    perform_part(world, node, save,
                 participating_answered(&part->machine, &message->report, message->verdict));
}

/* ---- its ranks become known to the coordinator ---- */

static bool is_described(const void *user, uint32_t rank)
{
    return ((const struct node *)user)->described >> rank & 1u;
}

static bool is_connected(const void *user, uint32_t rank)
{
    return ((const struct node *)user)->connected >> rank & 1u;
}

static void join_next(struct world *world, struct node *node)
{
    const struct joining_facts facts = {.awaits_plan = !node->has_plan,
                                        .now_ms = (int64_t)world->sim.events,
                                        .every_ms = NAMES_EVENTS,
                                        .is_described = is_described,
                                        .is_connected = is_connected,
                                        .user = node};
    const struct joining_call call = joining_next(&node->joining, &facts);
    if (call.action != JOINING_TELL && call.action != JOINING_NAME)
        return;
    node->asks = call;
    node->join_call = ++world->calls;
    post(world, (struct message){.kind = MESSAGE_JOIN,
                                 .from = node->index,
                                 .to = node->leader,
                                 .rank = call.rank,
                                 .attempt = node->open,
                                 .world_size = node->joining.num_ranks,
                                 .call = node->join_call,
                                 .has_slices = !node->told[call.rank]});
}

/* Refuses the ranks that wait for the plan: the trainer ends. */
static void fail_join(struct world *world, const struct node *node)
{
    for (uint32_t t = 0; t < TRAINERS && !node->has_plan; t++)
        if (world->trainers[t].is_up && !world->trainers[t].is_opening &&
            world->trainers[t].attempt == node->open)
            kill_trainer(world, &world->trainers[t]);
}

static void hear_joined(struct world *world, struct node *node, const struct joining_answer *answer)
{
    node->join_call = 0;
    enum joining_action action =
        joining_answered(&node->joining, &node->asks, answer, !node->has_plan);
    note(&world->sim, "joined", node->asks.rank, action);
    require(&world->sim, action != JOINING_PLAN || (node->own & ~node->described) == 0,
            "joining.J2: a plan is taken with all ranks that it has here");
    node->has_plan |= action == JOINING_PLAN;
    if (action == JOINING_FAIL)
        fail_join(world, node);
    else if (action != JOINING_WAIT)
        join_next(world, node);
}

/* Time passes at a node that another coordinates. */
static void go_on_joining(struct world *world, struct node *node)
{
    if (node->join_call == 0)
        join_next(world, node);
    else if (below(&world->sim, 8) == 0) /* its deadline is over */
        hear_joined(world, node, &(struct joining_answer){.error = ERR_UNAVAILABLE});
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
    node->own = node->described = node->connected = node->group = 0;
    for (uint32_t r = 0; r < trainer->ranks; r++)
        node->own |= (uint8_t)((trainer->node[r] == node->index) << r);
    node->has_plan = false;
    node->join_call = 0;
    memset(node->told, 0, sizeof node->told);
    node->joining = (struct joining){.told = node->told, .num_ranks = trainer->ranks};
}

/* Like describe.c, after a restart. */
static bool resume(struct node *node, uint64_t attempt, uint32_t ranks)
{
    if (node->open != 0 || commit_resume(node->commit, attempt, ranks) != 0)
        return false;
    node->open = attempt;
    node->leader = node->index;
    return true;
}

/* Like settle_arrival of join_save.c: true when the rank's node serves the attempt from here on. */
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
    case PARTICIPATING_DESCRIBE:
        return resume(node, trainer->attempt, trainer->ranks);
    default:
        break;
    }
    commit_yield(node->commit, &list);
    perform(world, node, &list);
    return false;
}

#endif
