/* ckptd_sim_nodes.c - four nodes in three domains, simulated: coordinators, nodes and trainers.
 *
 * Goal: the machines keep their invariants also together, when nodes, links, disks and trainers
 * fail. Method: each node has the real commit machine (machines/commit.c), the real coordinator of
 * parts (machines/coordinating.c), parts as machines/participating.c has them, ranks reported by
 * machines/joining.c, numbers by machines/quorum.c, copies by machines/placement.c, sent by
 * machines/transfer.c and, before the commit, by machines/precommit.c. Trainers have a rank on each
 * of some nodes; a second one may start while the first continues on the other side of a partition.
 * A seeded scheduler delivers messages late, twice or never, cuts links one way or both, kills
 * processes (unsynced data is torn), removes disks, kills trainers. The world is checked after each
 * event.
 *
 *   sim_nodes.N1  A checkpoint acknowledged as local is on the disks that saved it, whole, while
 *       none was lost. Also without an acknowledgement a manifest names no shard that its node has
 *       removed.
 *   sim_nodes.N2  A checkpoint acknowledged as replicated is whole on the remaining disks, while
 *       disks of only one domain were lost since the save began.
 *   sim_nodes.N3  Answered numbers of attempts grow while at most one disk was lost: a majority
 *       that has lost two may not know the newest.
 *   sim_nodes.N4  A start continues from no older checkpoint than the newest that is whole on the
 *       nodes that answered it.
 *   sim_nodes.N5  A save is acknowledged once, at most one for each step of an attempt, in the
 *       order of steps.
 *   sim_nodes.N6  COMMITTED is answered only for acknowledged saves.
 *   sim_nodes.N7  When the faults stop, no save stays in work. No node keeps a part without a
 *       manifest whose coordinator can be asked. Every whole checkpoint reaches two domains, also
 *       while a dispensable node is away. Exception: an attempt whose number was taken while a disk
 *       was lost. A node may have given that number to another start, and accepts no copies then.
 *   sim_nodes.N8  The same seed gives the same trace.
 *   sim_nodes.N9  Requests of an older attempt are refused; only a node that knows a part answers
 *       OVER for it.
 *
 * How to replay a world, and to run more: sim.h; `make sim` takes a million. */
#include "tests/unit/sim_nodes_disk.h"
#include "tests/unit/suite.h"

#include <stdlib.h>

#define EVENTS 1200u
#define HEAL_EVENTS 40000u

/* ---- trainers ---- */

/* The unannounced parts of its ranks are dropped. */
static void kill_trainer(struct world *world, struct trainer *trainer)
{
    note(&world->sim, "kill", trainer->attempt, 0);
    trainer->is_up = false;
    for (uint32_t r = 0; r < trainer->ranks && !trainer->is_opening; r++) {
        struct commit_actions list = {0};
        struct node *node = &world->nodes[trainer->node[r]];
        if (!node->is_up || node->open != trainer->attempt)
            continue;
        node->connected &= (uint8_t) ~(1u << r);
        for (uint32_t s = 0; s < world->num_made; s++) {
            struct part *part = &node->parts[s];
            if (world->made[s].attempt != trainer->attempt)
                continue;
            part->failed |= part->begun & (uint8_t)~part->ended;
            change_part(world, node, s);
        }
        if (node->index == trainer->leader)
            commit_rank_died(node->commit, &list, trainer->attempt, r);
        perform(world, node, &list);
        for (uint32_t i = 0; i < COMMIT_SAVES_MAX && node->index == trainer->leader; i++)
            require(&world->sim,
                    node->commit->saves[i].state != COMMIT_STAGING ||
                        node->commit->saves[i].ranks[r] >= RANK_ENDED,
                    "sim_nodes.N7: no save waits for a rank that has died");
    }
}

static void describe(struct world *world, struct trainer *trainer, uint32_t rank)
{
    struct node *node = &world->nodes[trainer->node[rank]];
    uint8_t bit = (uint8_t)(1u << rank);
    if (!node->is_up)
        return;
    bool is_others = node->open == trainer->attempt && node->leader != trainer->leader;
    require(&world->sim, !is_others || world->num_lost > 1, "sim_nodes.N3: two starts, one number");
    if (node->open > trainer->attempt || node->newest > trainer->attempt || is_others) {
        kill_trainer(world, trainer); /* ERR_STALE: another start has come */
        return;
    }
    if (!join_node(world, node, trainer))
        return;
    note(&world->sim, "describe", trainer->attempt, rank);
    trainer->boot[rank] = node->boot;
    node->described |= bit;
    node->connected |= bit;
    if (node->index == trainer->leader)
        node->group |= bit;
    else
        join_next(world, node);
    if (trainer->in[rank] != NOBODY && trainer->ended[rank] < trainer->begun[rank])
        trainer->ended[rank] = trainer->begun[rank]; /* that save is over for it */
    trainer->in[rank] = NOBODY;
}

static bool has_described(const struct world *world, const struct trainer *trainer, uint32_t rank)
{
    const struct node *node = &world->nodes[trainer->node[rank]];
    return node->open == trainer->attempt && node->leader == trainer->leader &&
           trainer->boot[rank] == node->boot;
}

static void end_copy(struct world *world, struct trainer *trainer, uint32_t rank)
{
    struct commit_actions list = {0};
    struct node *node = &world->nodes[trainer->node[rank]];
    uint32_t save = trainer->in[rank];
    trainer->ended[rank] = trainer->begun[rank];
    if (world->made[save].leader == node->index && world->made[save].boot == node->boot)
        commit_ended(node->commit, &list, world->made[save].id, rank);
    else if (node->parts[save].is_live)
        node->parts[save].ended |= (uint8_t)(1u << rank);
    perform(world, node, &list);
    change_part(world, node, save);
}

/* As fill_ended in join_save.c: a bit per save. */
static uint64_t list_ended(const struct world *world, const struct node *node, uint32_t rank)
{
    uint64_t ended = 0;
    for (uint32_t s = 0; s < world->num_made; s++)
        if (node->parts[s].is_live && (node->parts[s].ended >> rank & 1u))
            ended |= 1ull << s;
    return ended;
}

/* A save in work waits for a rank that has ended one of the same step that was given up. */
static bool lacks_a_rank(const struct commit *commit)
{
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++)
        if (commit->saves[i].state == COMMIT_STAGING &&
            commit->saves[i].num_begun < commit->saves[i].world_size)
            return true;
    return false;
}

/* A rank begins the save of the next step, or ends its copy. */
static void go_on_training(struct world *world, uint32_t which, uint32_t rank)
{
    struct trainer *trainer = &world->trainers[which];
    struct node *node = &world->nodes[trainer->node[rank]];
    if (!has_described(world, trainer, rank)) {
        describe(world, trainer, rank);
        return;
    }
    if (node->index != trainer->leader)
        go_on_joining(world, node);
    if (!trainer->is_up ||
        !(node->index == trainer->leader ? has_plan(node, trainer) : node->has_plan))
        return;
    if (trainer->ended[rank] < trainer->begun[rank]) {
        end_copy(world, trainer, rank);
        return;
    }
    bool all = true;
    for (uint32_t r = 0; r < trainer->ranks; r++)
        all &= trainer->ended[r] >= trainer->step;
    if (all && world->is_ending && !lacks_a_rank(world->nodes[trainer->leader].commit))
        return;
    if (all) {
        trainer->step++;
        memset(trainer->asked, 0, sizeof trainer->asked);
    }
    if (trainer->begun[rank] >= trainer->step)
        return;
    if (trainer->asked[rank] == 0)
        trainer->asked[rank] = ++world->calls;
    if (node->index == trainer->leader) {
        int error;
        uint32_t save =
            begin_at(world, node, which, rank, trainer->step, trainer->asked[rank], &error);
        if (save != NOBODY)
            begun(world, which, rank, save);
        else
            refused(trainer, error);
        return;
    }
    if (below(&world->sim, 4) == 0)
        post(world, (struct message){.kind = MESSAGE_BEGIN,
                                     .ended = list_ended(world, node, rank),
                                     .from = node->index,
                                     .to = trainer->leader,
                                     .trainer = which,
                                     .rank = rank,
                                     .attempt = trainer->attempt,
                                     .step = trainer->step,
                                     .asked = trainer->asked[rank]});
}

/* A launcher starts the run on nodes that are up; the first coordinates. */
static void start(struct world *world, uint32_t which)
{
    struct trainer *trainer = &world->trainers[which];
    struct commit_actions list = {0};
    struct node *node = &world->nodes[below(&world->sim, NODES)];
    uint32_t looked = 1u << node->index;
    if (!node->is_up || node->opens_for != NOBODY || node->taking.is_busy)
        return;
    look_round(world, node);
    for (uint32_t p = 0; p < NODES; p++) {
        if (p == node->index || node->is_away[p])
            continue;
        looked |= 1u << p;
        for (uint64_t number = 1; number < ATTEMPTS_MAX; number++)
            if (world->nodes[p].owner[number] != 0)
                hear_of_number(node, number);
    }
    struct quorum seen = quorum_of_all(NODES);
    seen.holders = (struct node_set){.words = {looked}};
    if (quorum_lacks(&seen) || node->newest + 8 >= ATTEMPTS_MAX)
        return;
    *trainer = (struct trainer){.is_up = true, .is_opening = true, .leader = node->index};
    for (uint32_t i = 0; i < NODES; i++) {
        uint32_t at = (node->index + i) % NODES;
        if (at == node->index || (world->nodes[at].is_up && below(&world->sim, 4) != 0))
            trainer->node[trainer->ranks++] = at;
    }
    note(&world->sim, "start", node->index, trainer->ranks);
    node->opens_for = which;
    node->must_know = 0;
    for (uint32_t s = 0; s < world->num_made; s++)
        node->must_know |= (uint64_t)(world->made[s].acked && is_whole_on(world, s, looked)) << s;
    node->answered_before = world->answered;
    node->lost_before = world->num_lost;
    leave_parts(world, node);
    commit_hear(node->commit, node->newest);
    commit_open(node->commit, &list, trainer->ranks);
    perform(world, node, &list);
}

/* ---- the world ---- */

static void check_world(struct world *world)
{
    for (uint32_t s = 0; s < world->num_made; s++) {
        const struct made *made = &world->made[s];
        uint8_t left = (uint8_t)~made->lost;
        bool is_named = false;
        for (uint32_t n = 0; n < NODES && (left >> made->leader & 1u); n++)
            is_named |=
                (left >> n & 1u) && own_shards(made, n) != 0 && world->nodes[n].held[s].manifest;
        for (uint32_t r = 0; (is_named || made->acked) && r < made->ranks; r++) {
            const struct held *held = &world->nodes[made->holder[r]].held[s];
            bool is_there = (held->shards & held->named) >> r & 1u;
            bool is_lost = !(left >> made->holder[r] & 1u);
            require(&world->sim, is_lost || is_there,
                    "sim_nodes.N1: a manifest names what is not there");
            require(&world->sim, is_lost || !made->acked || held->manifest,
                    "sim_nodes.N1: acknowledged as local, and lost");
        }
        require(&world->sim,
                !made->is_replicated || domains_of(made->lost) >= REPLICAS ||
                    is_whole_on(world, s, (1u << NODES) - 1),
                "sim_nodes.N2: acknowledged as replicated, and lost with one domain");
    }
}

/* Disks of one domain, or one in each of two: the last two nodes are a domain. */
static bool may_lose(const struct world *world, uint32_t node)
{
    return world->num_lost == 0 || (world->num_lost == 1 && node >= 2);
}

static void break_something(struct world *world, struct node *node)
{
    uint32_t other = below(&world->sim, NODES), choice = below(&world->sim, 12);
    if (choice < 4) {
        world->is_cut[node->index][other] = true;
        world->is_cut[other][node->index] |= below(&world->sim, 2) == 0;
        world->is_cut[node->index][node->index] = world->is_cut[other][other] = false;
        note(&world->sim, "cut", node->index, other);
    } else if (choice < 7 && node->is_up) {
        crash(world, node, false);
    } else if (choice < 8 && may_lose(world, node->index)) {
        crash(world, node, true);
        if (node->index >= 2 && world->num_lost == 1 &&
            below(&world->sim, 2) == 0) /* all of a domain */
            crash(world, &world->nodes[5 - node->index], true);
    } else if (choice < 10) {
        struct trainer *trainer = &world->trainers[below(&world->sim, TRAINERS)];
        if (trainer->is_up && !trainer->is_opening)
            kill_trainer(world, trainer);
    } else if (node->is_up && node->index != other) {
        note(&world->sim, "silent", node->index, other);
        give_up_all(world, node, other);
    }
}

static void mend_something(struct world *world, struct node *node)
{
    uint32_t other = below(&world->sim, NODES);
    if (!node->is_up)
        start_process(world, node);
    else
        world->is_cut[node->index][other] = world->is_cut[other][node->index] = false;
}

static void work(struct world *world, struct node *node)
{
    uint32_t choice = below(&world->sim, 100);
    if (!node->is_up)
        return;
    if (choice < 25)
        write_shard(world, node);
    else if (choice < 45)
        report_some(world, node);
    else if (choice < 65)
        complete(world, node);
    else if (choice < 75)
        go_on_taking(world, node);
    else if (choice < 95) {
        offer_early(world, node);
        go_on_early(world, node);
        begin_transfer(world, node);
        go_on_sending(world, node);
    } else if (choice < 99) {
        look_round(world, node);
        acknowledge_replicated(world, node);
    } else {
        give_up_all(world, node, NOBODY);
    }
}

static void train(struct world *world)
{
    uint32_t which = below(&world->sim, TRAINERS);
    struct trainer *trainer = &world->trainers[which];
    if (!trainer->is_up && (which == 0 || below(&world->sim, 20) == 0))
        start(world, which);
    else if (trainer->is_up && !trainer->is_opening)
        go_on_training(world, which, below(&world->sim, trainer->ranks));
}

static void one_event(struct world *world)
{
    struct node *node = &world->nodes[below(&world->sim, NODES)];
    uint32_t choice = below(&world->sim, 100);
    if (choice < 50)
        work(world, node);
    else if (choice < 75)
        deliver(world);
    else if (choice < 96)
        train(world);
    else if (choice < 98)
        mend_something(world, node);
    else if (fault(&world->sim) || below(&world->sim, 1000) < world->sim.faults)
        break_something(world, node);
}

/* Prints the remaining state, for replays of one world. */
static void say_rest(const struct world *world)
{
    for (uint32_t n = 0; world->sim.is_said && n < NODES; n++) {
        const struct node *node = &world->nodes[n];
        printf("# node %u: attempt %llu of node %u, state %d at %llu, %u saves, newest %llu\n", n,
               (unsigned long long)node->open, node->leader, node->commit->state,
               (unsigned long long)node->commit->attempt, commit_num_saves(node->commit),
               (unsigned long long)node->newest);
        for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++) {
            const struct commit_save *save = &node->commit->saves[i];
            if (save->state != COMMIT_FREE)
                printf("#   save of step %llu: state %d, ranks begun %u ended %u durable %u, "
                       "holders %u, placed %u\n",
                       (unsigned long long)save->step, save->state, save->num_begun,
                       save->num_ended, save->num_durable, save->num_holders, save->num_placed);
        }
    }
    for (uint32_t t = 0; world->sim.is_said && t < TRAINERS; t++) {
        const struct trainer *trainer = &world->trainers[t];
        printf("# trainer %u: attempt %llu step %llu of node %u%s%s\n", t,
               (unsigned long long)trainer->attempt, (unsigned long long)trainer->step,
               trainer->leader, trainer->is_up ? " up" : "", trainer->is_opening ? " opening" : "");
        for (uint32_t r = 0; r < trainer->ranks; r++)
            printf("#   rank %u on %u: begun %llu ended %llu\n", r, trainer->node[r],
                   (unsigned long long)trainer->begun[r], (unsigned long long)trainer->ended[r]);
    }
    for (uint32_t n = 0; world->sim.is_said && n < NODES; n++)
        for (uint32_t s = 0; s < world->num_made; s++) {
            const struct held *held = &world->nodes[n].held[s];
            const struct made *made = &world->made[s];
            printf(
                "# node %u save %u of attempt %llu step %llu at %u: shards %x named %x%s%s%s%s\n",
                n, s, (unsigned long long)made->attempt, (unsigned long long)made->step,
                made->leader, held->shards, held->named, held->mark ? " mark" : "",
                held->manifest ? " manifest" : "", held->is_sent ? " sent" : "",
                world->nodes[n].parts[s].is_live ? " live" : "");
        }
}

/* sim_nodes.N7. */
static void check_quiet(struct world *world)
{
    say_rest(world);
    for (uint32_t n = 0; n < NODES; n++) {
        const struct node *node = &world->nodes[n];
        uint32_t to;
        require(&world->sim, commit_num_saves(node->commit) == 0,
                "sim_nodes.N7: no save is in work for ever");
        require(&world->sim, pick(world, node, &to) == NOBODY,
                "sim_nodes.N7: what is whole comes on two domains");
        for (uint32_t s = 0; s < world->num_made; s++) {
            const struct made *made = &world->made[s];
            const struct node *leader = &world->nodes[made->leader];
            bool can_tell = leader->store == made->store;
            require(&world->sim, !node->parts[s].is_live, "sim_nodes.N7: no part is live for ever");
            require(&world->sim, !is_left(world, node, s) || !can_tell,
                    "sim_nodes.N7: no part is left of which its coordinator knows");
        }
    }
}

/* No event is left at the nodes that are up. */
static bool is_quiet(struct world *world)
{
    if (world->num_messages > 0)
        return false;
    for (uint32_t n = 0; n < NODES; n++) {
        struct node *node = &world->nodes[n];
        uint32_t to;
        if (!node->is_up)
            continue;
        look_round(world, node);
        if (node->num_pending > 0 || node->taking.is_busy || commit_num_saves(node->commit) > 0 ||
            pick(world, node, &to) != NOBODY)
            return false;
        for (uint32_t p = 0; p < NODES; p++)
            if (world->nodes[p].is_up &&
                (is_sending(node, p) || node->early[p].machine.state != PRECOMMIT_FREE))
                return false;
        for (uint32_t s = world->first_healed; s < world->num_made; s++)
            if (world->nodes[world->made[s].leader].is_up &&
                (node->parts[s].is_live || is_left(world, node, s)))
                return false;
    }
    return true;
}

/* A launcher ends a start when one of its machines is gone. */
static bool lacks_a_node(const struct world *world, const struct trainer *trainer)
{
    for (uint32_t r = 0; r < trainer->ranks; r++)
        if (!world->nodes[trainer->node[r]].is_up)
            return true;
    return false;
}

/* `until`: so many saves are acknowledged; 0: it is quiet. */
static void settle(struct world *world, uint64_t until)
{
    bool trains = until > 0 || world->is_ending;
    for (uint32_t i = 0; i < HEAL_EVENTS; i++) {
        if (until > 0 ? world->num_acked >= until : i % 100 == 0 && is_quiet(world))
            return;
        struct trainer *trainer = &world->trainers[0];
        bool goes_on = trainer->is_up && !trainer->is_opening;
        if (i % 3 == 0 || world->num_messages > MESSAGES_MAX / 2)
            deliver(world);
        else if (i % 3 == 1 && trains && goes_on && lacks_a_node(world, trainer))
            kill_trainer(world, trainer);
        else if (i % 3 == 1 && trains && goes_on)
            go_on_training(world, 0, below(&world->sim, trainer->ranks));
        else if (i % 3 == 1 && trains && !trainer->is_up)
            start(world, 0);
        else
            work(world, &world->nodes[below(&world->sim, NODES)]);
    }
}

/* The faults stop, and the run is started once more, in some worlds without one of the nodes. */
static void heal_some(struct world *world)
{
    uint64_t before = world->num_acked;
    uint32_t away = below(&world->sim, 4) == 0 ? 2 : NOBODY;
    world->sim.faults = 0;
    world->first_healed = world->num_made;
    memset(world->is_cut, 0, sizeof world->is_cut);
    for (uint32_t n = 0; n < NODES; n++) {
        if (n == away && world->nodes[n].is_up)
            crash(world, &world->nodes[n], false);
        else if (n != away && !world->nodes[n].is_up)
            start_process(world, &world->nodes[n]);
    }
    for (uint32_t t = 0; t < TRAINERS; t++)
        if (world->trainers[t].is_up && !world->trainers[t].is_opening)
            kill_trainer(world, &world->trainers[t]);
    world->num_made_max = SAVES_MAX;
    settle(world, before + 3);
    require(&world->sim, world->num_acked >= before + 3,
            "sim_nodes.N7: a start comes through, and saves");
    world->is_ending = true;
    settle(world, 0);
    require(&world->sim, is_quiet(world), "sim_nodes.N7: it comes to rest");
    for (uint32_t s = world->first_healed; s < world->num_made; s++)
        require(&world->sim,
                !world->made[s].acked || world->is_doubted[world->made[s].attempt] ||
                    is_whole_without_one(world, s),
                "sim_nodes.N7: what is committed comes on two domains, also without one node");
    if (world->sim.broken)
        say_rest(world);
}

/* Then every process ends and restarts. */
static void heal(struct world *world)
{
    heal_some(world);
    world->is_ending = false;
    world->first_healed = 0;
    if (world->trainers[0].is_up && !world->trainers[0].is_opening)
        kill_trainer(world, &world->trainers[0]);
    for (uint32_t n = 0; n < NODES; n++)
        crash(world, &world->nodes[n], false);
    for (uint32_t n = 0; n < NODES; n++)
        start_process(world, &world->nodes[n]);
    settle(world, 0);
    for (uint32_t n = 0; n < NODES; n++)
        look_round(world, &world->nodes[n]);
}

static struct world world_of_all;

static void run_world(uint64_t seed)
{
    static struct commit machines[NODES];
    struct world *world = &world_of_all;
    memset(world, 0, sizeof *world);
    sim_begin(&world->sim, seed, 60);
    world->num_made_max = SAVES_MAX / 2;
    for (uint32_t n = 0; n < NODES; n++) {
        world->nodes[n] = (struct node){
            .index = n, .store = ++world->stores, .commit = &machines[n], .opens_for = NOBODY};
        start_process(world, &world->nodes[n]);
    }
    for (uint32_t i = 0; i < EVENTS && !world->sim.broken; i++) {
        one_event(world);
        check_world(world);
    }
    if (world->sim.broken)
        return;
    heal(world);
    check_world(world);
    check_quiet(world);
}

TEST(test_sim_nodes__no_schedule_of_nodes_and_trainers_breaks_an_invariant)
{
    const struct world *w = &world_of_all;
    const struct sim_total totals[] = {{"events", &w->sim.events, true},
                                       {"starts", &w->num_opened, true},
                                       {"starts refused", &w->num_refused, false},
                                       {"saves acknowledged", &w->num_acked, true},
                                       {"of them replicated", &w->num_replicated, true},
                                       {"sent before the commit", &w->num_given, false},
                                       {"crashes", &w->num_crashed, true},
                                       {"disks lost", &w->num_lost, false}};
    sim_run_many(&w->sim, run_world, totals, sizeof totals / sizeof totals[0]);
}

TEST(test_sim_nodes__the_same_seed_gives_the_same_trace)
{
    sim_check_traces(&world_of_all.sim, run_world); /* sim_nodes.N8 */
}

SUITE(NULL, NULL)
