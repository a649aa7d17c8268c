/* sim_nodes_ckptd.h - the knowledge, decisions and messages of a simulated ckptd of
 * ckptd_sim_nodes.c, around the machines of ckptd. */
#ifndef HOLDFAST_TESTS_SIM_NODES_CKPTD_H
#define HOLDFAST_TESTS_SIM_NODES_CKPTD_H

#include "tests/unit/quorum_all.h"
#include "tests/unit/sim_nodes_part.h"

static void end_early(struct world *world, struct node *node, const struct made *made,
                      bool is_committed);

/* ---- a node's knowledge of the others ---- */

/* Like refresh_read.c: also reads the newest number of a run. */
static void look_at(const struct world *world, struct node *node, uint32_t peer)
{
    memcpy(node->knows[peer], world->nodes[peer].held, sizeof node->knows[peer]);
    for (uint64_t number = node->newest + 1; number < ATTEMPTS_MAX; number++)
        if (world->nodes[peer].owner[number] != 0)
            node->newest = number;
    node->is_away[peer] = false;
}

/* A refresh reads the other node's store; a node always sees its own. */
static void look_round(struct world *world, struct node *node)
{
    for (uint32_t p = 0; p < NODES; p++) {
        node->is_away[p] = p != node->index && !can_call(world, node->index, p);
        if (!node->is_away[p])
            look_at(world, node, p);
    }
}

static void hear_of_number(struct node *node, uint64_t number)
{
    if (number <= node->newest)
        return;
    node->newest = number;
    if (node->open == 0 && commit_num_saves(node->commit) == 0 && !node->taking.is_busy)
        commit_init(node->commit, number);
}

static bool knows_whole(const struct node *node, uint32_t peer, const struct made *made,
                        uint32_t save)
{
    const struct held *held = &node->knows[peer][save];
    return held->manifest && (held->shards & held->named) == all_shards(made);
}

/* Like copies.c. */
static void list_sites(struct site out[NODES], const struct node *node, const struct made *made,
                       uint32_t save)
{
    bool is_complete = true;
    for (uint32_t i = 0; i < made->ranks; i++) {
        const struct held *held = &node->knows[made->holder[i]][save];
        is_complete &= held->manifest && (held->shards >> i & 1u);
    }
    for (uint32_t i = 0; i < NODES; i++) {
        uint32_t at = (node->index + i) % NODES;
        out[i] = (struct site){.domain = domains[at],
                               .has_copy = knows_whole(node, at, made, save),
                               .has_part = is_complete && own_shards(made, at) != 0,
                               .is_away = node->is_away[at] || node->is_given_up[at][save],
                               .order = i == 0 ? 0 : at};
    }
}

/* ---- a coordinator's saves ---- */

/* Like majority.c: the nodes are named in the order of their numbers. */
static void ask_next(struct node *node)
{
    uint16_t by_name[NODES - 1];
    struct node_set answering = {0};
    for (uint32_t i = 0, n = 0; n < NODES; n++) {
        uint32_t site = number_at(node->index, n);
        if (site != 0)
            by_name[i++] = (uint16_t)(site - 1);
        if (!node->is_away[n])
            node_set_add(&answering, site);
    }
    const struct node_set sites = quorum_ask(&node->taking.quorum, by_name, &answering);
    for (uint32_t site = 1; site < NODES; site++)
        node->taking.waiting |= (uint32_t)node_set_has(&sites, site) << node_of(node->index, site);
}

static void acknowledge(struct world *world, struct node *node, struct made *made)
{
    require(&world->sim, made->acked == 0, "sim_nodes.N5: a save is acknowledged once");
    for (uint32_t i = 0; i < world->num_made; i++) {
        const struct made *other = &world->made[i];
        require(&world->sim,
                other->acked == 0 || other->attempt != made->attempt || other->step < made->step,
                "sim_nodes.N5: one save of a step of an attempt, in the order of steps");
    }
    made->acked = world->sim.events;
    world->num_acked++;
    node->was_committed[index_of(world, made)] = true;
}

/* Like catalog_set_places: a node that holds a shard has the manifest, as far as is known. */
static void list_places(struct world *world, struct node *node, const struct made *made)
{
    uint32_t save = index_of(world, made);
    for (uint32_t i = 0; i < made->ranks; i++) {
        struct held *held = &node->knows[made->holder[i]][save];
        held->manifest = true;
        held->shards |= (uint8_t)(1u << i);
        held->named |= (uint8_t)(1u << i);
    }
}

/* The newest checkpoint of which every shard is known. */
static struct made *find_newest(struct world *world, const struct node *node)
{
    struct made *newest = NULL;
    for (uint32_t s = 0; s < world->num_made; s++) {
        struct made *made = &world->made[s];
        bool manifest = false;
        uint8_t found = 0;
        for (uint32_t n = 0; n < NODES; n++) {
            const struct held *held = n == node->index ? &node->held[s] : &node->knows[n][s];
            found |= held->shards & held->named;
            manifest |= held->manifest;
        }
        if (manifest && found == all_shards(made) && (!newest || is_newer(made, newest)))
            newest = made;
    }
    return newest;
}

static void check_start(struct world *world, const struct node *node, uint64_t number)
{
    const struct made *newest = find_newest(world, node);
    world->is_doubted[number] = node->lost_before != world->num_lost;
    require(&world->sim, number > node->answered_before || world->num_lost > 1,
            "sim_nodes.N3: numbers grow");
    for (uint32_t s = 0; s < world->num_made; s++)
        require(&world->sim,
                !(node->must_know >> s & 1u) || node->lost_before != world->num_lost ||
                    (newest && !is_newer(&world->made[s], newest)),
                "sim_nodes.N4: a start begins behind what the nodes that it looked at hold");
}

static void opened(struct world *world, struct node *node, uint64_t number)
{
    struct trainer *trainer = node->opens_for != NOBODY ? &world->trainers[node->opens_for] : NULL;
    check_start(world, node, number);
    const struct made *newest = find_newest(world, node);
    node->newest = node->open = number;
    node->described = node->connected = node->group = 0;
    node->leader = node->index;
    node->opens_for = NOBODY;
    world->num_opened++;
    if (number > world->answered)
        world->answered = number;
    if (!trainer)
        return;
    trainer->is_opening = false;
    trainer->attempt = number;
    trainer->step = newest ? newest->step : 0;
    for (uint32_t r = 0; r < trainer->ranks; r++) {
        trainer->boot[r] = 0;
        trainer->begun[r] = trainer->ended[r] = trainer->step;
        trainer->in[r] = NOBODY;
    }
}

static void not_opened(struct world *world, struct node *node)
{
    if (node->opens_for != NOBODY)
        world->trainers[node->opens_for].is_up =
            false; /* exit 75: the service manager starts it again */
    node->opens_for = NOBODY;
    world->num_refused++;
}

static void perform(struct world *world, struct node *node, const struct commit_actions *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const struct commit_action *action = &list->items[i];
        struct made *made =
            action->kind < COMMIT_TAKE ? find_made(world, node, action->save) : NULL;
        switch (action->kind) {
        case COMMIT_DONE:
            acknowledge(world, node, made);
            list_places(world, node, made);
            end_early(world, node, made, true);
            break;
        case COMMIT_KEEP:
            node->is_kept[index_of(world, made)] = true;
            list_places(world, node, made);
            end_early(world, node, made, false);
            break;
        case COMMIT_PLACE: /* the nodes that hold shards ask */
            break;
        case COMMIT_TAKE:
            node->taking = (struct taking){.is_busy = true,
                                           .number = action->number,
                                           .nonce = ++world->nonces,
                                           .quorum = quorum_of_all(NODES)};
            ask_next(node);
            break;
        case COMMIT_OPENED:
            opened(world, node, action->number);
            break;
        case COMMIT_NOT_OPENED:
            not_opened(world, node);
            break;
        default:
            note(&world->sim, "do", action->kind, action->save);
            if (action->kind == COMMIT_DISCARD)
                end_early(world, node, made, false);
            require(&world->sim, node->num_pending < PENDING_MAX, "the simulator has room");
            node->pending[node->num_pending++] =
                (struct pending){action->kind, action->save, action->number};
        }
    }
}

static void publish(struct world *world, struct node *node, uint64_t id, bool fails)
{
    struct commit_actions list = {0};
    struct made *made = find_made(world, node, id);
    struct held *held = &node->held[index_of(world, made)];
    bool is_known = !fails || below(&world->sim, 2) == 0, is_there = !fails || !is_known;
    held->manifest = is_there && (!fails || below(&world->sim, 2) == 0);
    held->mark = !held->manifest;
    commit_published(node->commit, &list, id,
                     !fails     ? OUTCOME_DURABLE
                     : is_known ? OUTCOME_ABSENT
                                : OUTCOME_UNKNOWN,
                     fails ? ERR_IO : 0);
    perform(world, node, &list);
}

static void complete(struct world *world, struct node *node)
{
    struct commit_actions list = {0};
    if (node->num_pending == 0)
        return;
    uint32_t which = below(&world->sim, node->num_pending);
    const struct pending pending = node->pending[which];
    node->pending[which] = node->pending[--node->num_pending];
    struct made *made = find_made(world, node, pending.save);
    struct held *held = &node->held[index_of(world, made)];
    bool fails = fault(&world->sim);
    note(&world->sim, "complete", pending.kind, fails);
    switch (pending.kind) {
    case COMMIT_SYNC_NAMES:
        held->named = fails ? held->named : held->shards;
        commit_names_synced(node->commit, &list, pending.save, fails ? ERR_IO : 0);
        break;
    case COMMIT_PUBLISH:
        publish(world, node, pending.save, fails);
        return;
    default: /* COMMIT_DISCARD: the mark is removed last */
        if (precommit_has(&node->early[node->index].machine, made)) {
            node->pending[node->num_pending++] = pending;
            return;
        }
        require(&world->sim, !held->manifest, "commit.I3: nothing goes that a manifest names");
        *held = (struct held){0};
        commit_discarded(node->commit, &list, pending.save);
    }
    perform(world, node, &list);
}

/* The next peer of a number that is being taken, or at the end this node itself. */
static void go_on_taking(struct world *world, struct node *node)
{
    struct commit_actions list = {0};
    struct taking *taking = &node->taking;
    if (!taking->is_busy)
        return;
    if (taking->state == QUORUM_ASKS) {
        struct node *peer = node;
        while (!(taking->waiting >> peer->index & 1u)) /* they answer in any order */
            peer = &world->nodes[below(&world->sim, NODES)];
        uint32_t *owner = &peer->owner[taking->number];
        enum publication outcome = PUBLICATION_UNKNOWN;
        if (reaches(world, node->index, peer->index) && !fault(&world->sim)) {
            *owner = *owner == 0 ? taking->nonce : *owner;
            hear_of_number(peer, taking->number);
            if (reaches(world, peer->index, node->index) && !fault(&world->sim))
                outcome = *owner == taking->nonce ? PUBLICATION_DURABLE : PUBLICATION_TAKEN;
        }
        note(&world->sim, "take", taking->number, outcome);
        taking->waiting &= ~(1u << peer->index);
        taking->state = quorum_heard(&taking->quorum, number_at(node->index, peer->index), outcome);
        if (taking->state == QUORUM_ASKS)
            ask_next(node);
        return;
    }
    int error = taking->state == QUORUM_HELD    ? 0
                : taking->state == QUORUM_TAKEN ? ERR_EXISTS
                                                : ERR_UNAVAILABLE;
    uint32_t *own = &node->owner[taking->number];
    if (error == 0 && *own != 0)
        error = ERR_EXISTS;
    if (error == 0)
        *own = taking->nonce;
    note(&world->sim, "taken", taking->number, (uint64_t)(int64_t)error);
    taking->is_busy = false;
    commit_taken(node->commit, &list, taking->number, error);
    perform(world, node, &list);
}

/* ---- messages to the coordinator ---- */

/* True when its node can name it to the coordinator (`present` of Join). */
static bool is_present(const struct world *world, const struct node *node, const struct made *made,
                       uint32_t rank)
{
    const struct node *peer = &world->nodes[made->holder[rank]];
    for (uint32_t t = 0; t < TRAINERS; t++) {
        const struct trainer *trainer = &world->trainers[t];
        if (trainer->is_up && !trainer->is_opening && trainer->attempt == made->attempt)
            return trainer->boot[rank] == peer->boot && can_call(world, peer->index, node->index);
    }
    return false;
}

struct looked_at {
    const struct world *world;
    const struct node *node;
    const struct made *made;
};

/* A node has left that reports nothing about its part of a save, and a rank that it does not
 * name. */
static struct coordinating_rank look_at_rank(const void *user, uint32_t rank)
{
    const struct looked_at *at = user;
    const struct node *peer = &at->world->nodes[at->made->holder[rank]];
    return (struct coordinating_rank){
        .node = number_at(at->node->index, peer->index),
        .is_silent = !peer->parts[at->made - at->world->made].is_live ||
                     !can_call(at->world, peer->index, at->node->index),
        .is_unnamed = !is_present(at->world, at->node, at->made, rank)};
}

/* `peer` has restarted; NOBODY: some participants are silent. */
static void give_up_all(struct world *world, struct node *node, uint32_t peer)
{
    for (uint32_t s = 0; s < world->num_made; s++) {
        struct commit_actions list = {0};
        const struct made *made = &world->made[s];
        const struct looked_at at = {world, node, made};
        const struct coordinating_ranks ranks = {look_at_rank, &at};
        if (made->leader == node->index && made->boot == node->boot)
            coordinating_check_ranks(node->commit, &list, made->id, &ranks,
                                     peer == NOBODY ? 0 : number_at(node->index, peer));
        perform(world, node, &list);
    }
}

static void hear_boot(struct world *world, struct node *node, uint32_t peer, uint32_t boot)
{
    if (coordinating_hear_boot(&node->heard_boot[peer], boot))
        give_up_all(world, node, peer);
}

static void take_part(struct world *world, struct node *node, struct made *made, uint32_t rank,
                      const struct message *message)
{
    struct commit_actions list = {0};
    const struct coordinating_part part = {.node = number_at(node->index, message->from),
                                           .rank = rank,
                                           .state = message->states[rank]};
    made->digests |= message->digests;
    require(&world->sim,
            part.state != HOLDFAST__V1__PART_STATE__PART_DURABLE || (made->digests >> rank & 1u),
            "participating.P6: the digests of a durable shard are known");
    coordinating_part(node->commit, &list, made->id, &part);
    perform(world, node, &list);
}

/* Of a save that this process coordinates. */
static void take_report(struct world *world, struct node *node, struct made *made,
                        const struct message *message, const struct coordinating_report *report)
{
    struct commit_actions list = {0};
    const struct looked_at at = {world, node, made};
    const struct coordinating_ranks ranks = {look_at_rank, &at};
    for (uint32_t r = 0; r < made->ranks; r++)
        if (message->ranks >> r & 1u)
            take_part(world, node, made, r, message);
    require(&world->sim,
            !report->says_placed || world->nodes[message->from].held[message->save].manifest ||
                (made->lost >> message->from & 1u),
            "participating.P3: placed is said when the manifest is there");
    coordinating_reported(&made->coordinating, node->commit, &list, made->id, report, &ranks);
    perform(world, node, &list);
}

/* The coordinator's answer about a save that is not in work; false: none. */
static bool recall(struct world *world, const struct node *node, const struct message *message,
                   Holdfast__V1__PartVerdict *out)
{
    const struct made *made = &world->made[message->save];
    bool is_own = made->leader == node->index && made->store == node->store;
    const struct coordinating_past past = {.is_here = is_own && node->held[message->save].manifest,
                                           .was_committed =
                                               is_own && node->was_committed[message->save],
                                           .is_unsure = made->attempt > node->newest};
    bool is_told = coordinating_recall(out, message->report.is_placed, &past);
    require(&world->sim,
            !is_told || *out != HOLDFAST__V1__PART_VERDICT__VERDICT_OVER ||
                (is_own ? !made->acked : made->attempt <= node->newest),
            "sim_nodes.N9: OVER is said by who knows that it is");
    return is_told;
}

static void hear_report(struct world *world, struct node *node, const struct message *message)
{
    struct made *made = &world->made[message->save];
    const struct coordinating_report report = {.node = number_at(node->index, message->from),
                                               .num_parts =
                                                   (uint32_t)__builtin_popcount(message->ranks),
                                               .says_placed = message->report.is_placed,
                                               .has_missed = message->report.has_missed};
    bool is_led = made->leader == node->index && made->boot == node->boot;
    struct message verdict = *message; /* the node knows its own report */
    verdict.kind = MESSAGE_VERDICT;
    verdict.from = verdict.manifest_at = node->index;
    verdict.to = message->from;
    hear_boot(world, node, message->from, message->boot);
    if (is_led)
        take_report(world, node, made, message, &report);
    if (!is_led || !commit_find(node->commit, made->id)) {
        if (recall(world, node, message, &verdict.verdict))
            post(world, verdict);
        return;
    }
    const struct coordinating_answer answer =
        coordinating_answer(&made->coordinating, node->commit, made->id, &report);
    verdict.verdict = answer.verdict;
    if (!answer.has_manifest)
        verdict.manifest_at = node_of(node->index, answer.from);
    post(world, verdict);
}

/* ---- saves begin ---- */

static uint32_t make(struct world *world, const struct node *node, const struct trainer *trainer,
                     uint64_t id, uint64_t step)
{
    struct made *made = &world->made[world->num_made];
    *made = (struct made){.attempt = trainer->attempt,
                          .step = step,
                          .id = id,
                          .leader = node->index,
                          .boot = node->boot,
                          .store = node->store,
                          .nonce = node->owner[trainer->attempt],
                          .ranks = trainer->ranks};
    memcpy(made->holder, trainer->node, sizeof made->holder);
    return world->num_made++;
}

/* At the coordinator: the save, or NOBODY and *out_error. */
static uint32_t begin_at(struct world *world, struct node *node, uint32_t which, uint32_t rank,
                         uint64_t step, uint64_t asked, int *out_error)
{
    const struct trainer *trainer = &world->trainers[which];
    struct commit_actions list = {0};
    uint64_t id = 0;
    const struct commit_save *known = commit_find_step(node->commit, step);
    struct made *made = known ? find_made(world, node, known->id) : NULL;
    *out_error = 0;
    if (made && made->attempt == trainer->attempt && made->asked[rank] == asked)
        return index_of(world, made); /* the answer was lost */
    if (commit_may_begin(node->commit, trainer->attempt, rank, step) == ERR_ABORTED)
        commit_leave(node->commit, &list, rank, step);
    int error = world->num_made < world->num_made_max
                    ? commit_begin(node->commit, &list, &id, trainer->attempt, rank, step)
                    : ERR_BUSY;
    note(&world->sim, "begin", step, (uint64_t)(int64_t)error);
    uint32_t save = NOBODY;
    *out_error = error;
    if (error == 0) {
        require(&world->sim, trainer->attempt == node->commit->attempt,
                "sim_nodes.N9: an older attempt begins nothing");
        made = find_made(world, node, id);
        save = made ? index_of(world, made) : make(world, node, trainer, id, step);
        world->made[save].asked[rank] = asked;
    }
    perform(world, node, &list);
    return save;
}

/* The rank copies into its image from here on. */
static void begun(struct world *world, uint32_t which, uint32_t rank, uint32_t save)
{
    struct trainer *trainer = &world->trainers[which];
    struct node *node = &world->nodes[trainer->node[rank]];
    trainer->in[rank] = save;
    trainer->begun[rank] = world->made[save].step;
    node->held[save].mark = true;
    if (node->index != world->made[save].leader) {
        struct part *part = &node->parts[save];
        if (!part->is_live)
            *part = (struct part){.is_live = true};
        part->begun |= (uint8_t)(1u << rank);
        change_part(world, node, save);
    }
}

static bool is_of(const struct world *world, const struct message *message)
{
    const struct trainer *trainer = &world->trainers[message->trainer];
    return trainer->is_up && !trainer->is_opening && trainer->attempt == message->attempt;
}

/* True when the coordinator knows every rank of the attempt. */
static bool has_plan(const struct node *node, const struct trainer *trainer)
{
    return node->open == trainer->attempt && node->leader == node->index &&
           node->group == (1u << trainer->ranks) - 1;
}

static void hear_join(struct world *world, struct node *node, const struct message *message)
{
    struct message answer = *message;
    hear_boot(world, node, message->from, message->boot);
    answer.kind = MESSAGE_JOINED;
    answer.from = node->index;
    answer.to = message->from;
    if (commit_may_resume(node->commit, message->attempt)) /* the rank asks again */
        resume(node, message->attempt, message->world_size);
    else
        answer.error = commit_check(node->commit, message->attempt);
    if (answer.error == 0 && message->has_slices)
        node->group |= (uint8_t)(1u << message->rank);
    answer.is_known = answer.error == 0 && (node->group >> message->rank & 1u);
    answer.has_plan = answer.is_known && node->group == (1u << node->commit->world_size) - 1;
    post(world, answer);
}

static void hear_begin(struct world *world, struct node *node, const struct message *message)
{
    hear_boot(world, node, message->from, message->boot);
    if (!is_of(world, message))
        return;
    struct message answer = *message;
    answer.error = coordinating_check(node->commit, message->attempt,
                                      has_plan(node, &world->trainers[message->trainer]));
    answer.kind = MESSAGE_BEGUN;
    answer.from = node->index;
    answer.to = message->from;
    answer.save = NOBODY;
    require(&world->sim,
            answer.error != ERR_STALE || node->opens_for != NOBODY ||
                node->commit->attempt != message->attempt,
            "coordinating.C7: an attempt is over when another has come, or its disk is lost");
    if (answer.error != 0) {
        post(world, answer);
        return;
    }
    for (uint32_t s = 0; s < world->num_made; s++) {
        struct commit_actions list = {0};
        const struct made *made = &world->made[s];
        if ((message->ended >> s & 1u) && made->leader == node->index && made->boot == node->boot)
            commit_ended(node->commit, &list, made->id, message->rank); /* coordinating.C8 */
    }
    answer.save = begin_at(world, node, message->trainer, message->rank, message->step,
                           message->asked, &answer.error);
    post(world, answer);
}

/* A rank retries while images are full; otherwise the trainer skips the save of this step. */
static void refused(struct trainer *trainer, int error)
{
    if (error == ERR_BUSY)
        return;
    trainer->step++;
    memset(trainer->asked, 0, sizeof trainer->asked);
}

static void hear_begun(struct world *world, struct node *node, const struct message *message)
{
    struct trainer *trainer = &world->trainers[message->trainer];
    if (!is_of(world, message) || commit_check(node->commit, message->attempt) != 0 ||
        trainer->asked[message->rank] != message->asked ||
        trainer->boot[message->rank] != node->boot ||
        trainer->begun[message->rank] >= message->step)
        return;
    if (message->save != NOBODY) {
        begun(world, message->trainer, message->rank, message->save);
    } else if (message->error == ERR_STALE) {
        kill_trainer(world, trainer);
    } else if (message->error == ERR_UNAVAILABLE) {
        joining_forgotten(&node->joining);
        join_next(world, node);
    } else {
        refused(trainer, message->error);
    }
}

static void deliver(struct world *world)
{
    if (world->num_messages == 0)
        return;
    uint32_t which = below(&world->sim, world->num_messages);
    const struct message message = world->messages[which];
    struct node *to = &world->nodes[message.to];
    bool is_lost = fault(&world->sim) || !reaches(world, message.from, message.to);
    if (is_lost || !fault(&world->sim)) /* otherwise it comes once more */
        world->messages[which] = world->messages[--world->num_messages];
    note(&world->sim, is_lost ? "lost" : "deliver", message.kind, message.to);
    if (is_lost)
        return;
    if (message.kind == MESSAGE_JOIN)
        hear_join(world, to, &message);
    else if (message.kind == MESSAGE_JOINED && to->join_call == message.call)
        hear_joined(world, to,
                    &(struct joining_answer){
                        .error = message.error,
                        .is_known = message.is_known,
                        .has_plan = message.has_plan,
                        .num_away = (uint32_t)__builtin_popcount(to->own & ~to->described)});
    else if (message.kind == MESSAGE_BEGIN)
        hear_begin(world, to, &message);
    else if (message.kind == MESSAGE_BEGUN)
        hear_begun(world, to, &message);
    else if (message.kind == MESSAGE_REPORT)
        hear_report(world, to, &message);
    else if (message.kind == MESSAGE_VERDICT)
        heed(world, to, &message);
}

#endif
