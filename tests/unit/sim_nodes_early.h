/* sim_nodes_early.h - a simulated node of ckptd_sim_nodes.c performs the decisions of
 * machines/precommit.c. Before the commit it sends shards of the saves that it coordinates to other
 * nodes, and receives those of other nodes. */
#ifndef HOLDFAST_TESTS_SIM_NODES_EARLY_H
#define HOLDFAST_TESTS_SIM_NODES_EARLY_H

#include "tests/unit/sim_nodes_ckptd.h"

static void start_sending(struct world *world, struct node *node, uint32_t to);

/* The attempt's number, and the directory's mark at the other node. */
static enum publication claim_copy(struct node *to, const struct made *made, struct held *held)
{
    uint32_t *owner = &to->owner[made->attempt];
    *owner = *owner == 0 ? made->nonce : *owner;
    hear_of_number(to, made->attempt);
    if (!held->manifest && !held->mark)
        held->mark = held->is_sent = true;
    return *owner == made->nonce ? PUBLICATION_DURABLE : PUBLICATION_TAKEN;
}

static bool is_early_at_work(const struct node *node, uint32_t to, uint32_t save)
{
    const struct early *early = &node->early[to];
    return early->machine.state != PRECOMMIT_FREE && early->save == save &&
           (early->due != PRECOMMIT_NOTHING || early->moving != 0);
}

static void begin_early(struct world *world, struct node *node, uint32_t to, uint32_t save);

static void begin_next_early(struct world *world, struct node *node, uint32_t to)
{
    if (precommit_next(&node->early[to].machine))
        begin_early(world, node, to, node->early[to].next);
}

/* The replication uses the shards that were sent before. */
static void given(struct world *world, struct node *node, uint32_t to)
{
    struct early *early = &node->early[to];
    require(&world->sim,
            early->save == node->sending[to].save && world->made[early->save].acked != 0 &&
                !early->has_failed,
            "precommit.E2: what is given is of the checkpoint, committed, without an error");
    require(&world->sim, !is_early_at_work(node, to, early->save),
            "precommit.E3: what is given is at rest");
    if (precommit_take(&early->machine)) {
        world->num_given += early->made != 0;
        begin_next_early(world, node, to);
    }
    start_sending(world, node, to);
}

static void perform_early(struct world *world, struct node *node, uint32_t to,
                          enum precommit_action action)
{
    struct early *early = &node->early[to];
    note(&world->sim, "early", to, action);
    switch (action) {
    case PRECOMMIT_NOTHING:
    case PRECOMMIT_LATER:
    case PRECOMMIT_START: /* one after the other: go_on_early() sends the next */
        break;
    case PRECOMMIT_STOP:
        perform_early(world, node, to,
                      precommit_rested(&early->machine, false, early->moving != 0));
        break;
    case PRECOMMIT_CLAIM:
    case PRECOMMIT_REMOVE:
    case PRECOMMIT_CLOSE:
        require(&world->sim, early->due == PRECOMMIT_NOTHING && early->moving == 0,
                "precommit.E3: one thing at a time is under way");
        early->due = action;
        break;
    case PRECOMMIT_GIVE:
        given(world, node, to);
        break;
    case PRECOMMIT_END:
        require(&world->sim, early->made == 0, "precommit.E4: what is not taken is removed");
        if (node->sending[to].is_waiting)
            start_sending(world, node, to);
        begin_next_early(world, node, to);
    }
}

static bool is_in_work(const struct node *node, const struct made *made)
{
    const struct commit_save *save = made->leader == node->index && made->boot == node->boot
                                         ? commit_find(node->commit, made->id)
                                         : NULL;
    return save && save->state != COMMIT_DISCARDING;
}

static void begin_early(struct world *world, struct node *node, uint32_t to, uint32_t save)
{
    struct early *early = &node->early[to];
    require(&world->sim, is_in_work(node, &world->made[save]),
            "precommit.E6: what begins is not over");
    enum precommit_action action =
        precommit_begin(&early->machine, &world->made[save], to != node->index);
    if (action == PRECOMMIT_LATER) {
        early->next = save;
        return;
    }
    early->save = save;
    early->begun = early->moving = early->made = 0;
    early->is_claimed = to == node->index;
    early->has_failed = false;
    perform_early(world, node, to, action);
}

/* Like replicate_save_begun(): to a node without a part, or to this node where others have one. */
static void offer_early(struct world *world, struct node *node)
{
    uint32_t to = below(&world->sim, NODES);
    for (uint32_t s = world->num_made; s-- > 0;) {
        struct made *made = &world->made[s];
        uint8_t own = own_shards(made, to);
        bool takes = to == node->index ? own != all_shards(made) : own == 0;
        if (!is_in_work(node, made) || !takes || (made->offered >> to & 1u) ||
            commit_find(node->commit, made->id)->num_begun < made->ranks)
            continue;
        made->offered |= 1u << to;
        begin_early(world, node, to, s);
        return;
    }
}

static void end_early(struct world *world, struct node *node, const struct made *made,
                      bool is_committed)
{
    for (uint32_t to = 0; to < NODES; to++)
        perform_early(world, node, to,
                      precommit_ended(&node->early[to].machine, made, is_committed));
}

/* False: the checkpoint waits for shards sent before its commit or another's. */
static bool give_early(struct world *world, struct node *node, uint32_t to, uint32_t save)
{
    struct early *early = &node->early[to];
    const struct made *made = &world->made[save], *own = &world->made[early->save];
    enum precommit_match match = own == made ? PRECOMMIT_SAME
                                 : own->attempt == made->attempt && own->step == made->step
                                     ? PRECOMMIT_SAME_STEP
                                     : PRECOMMIT_OTHER;
    bool is_in_the_way = precommit_is_in_the_way(&early->machine, match);
    node->sending[to].is_waiting = is_in_the_way;
    perform_early(world, node, to, precommit_give(&early->machine, match));
    return !is_in_the_way;
}

/* A lease ends: the other node removes shards without a manifest, unless another node still sends
 * them. */
static void end_lease(const struct world *world, struct node *to, uint32_t save)
{
    struct held *held = &to->held[save];
    bool is_others = false;
    for (uint32_t n = 0; n < NODES; n++)
        is_others |= world->nodes[n].sending[to->index].save == save &&
                     world->nodes[n].sending[to->index].transfer.state != TRANSFER_FREE;
    if (held->is_sent && !held->manifest && !is_others)
        *held = (struct held){0};
}

/* Work under way has ended. */
static void complete_early(struct world *world, struct node *node, struct node *to)
{
    struct early *early = &node->early[to->index];
    const struct made *made = &world->made[early->save];
    struct held *held = &to->held[early->save];
    enum precommit_action due = early->due;
    bool comes = to == node || (can_call(world, node->index, to->index) && !fault(&world->sim));
    early->due = PRECOMMIT_NOTHING;
    if (due == PRECOMMIT_CLAIM) {
        early->is_claimed = comes && claim_copy(to, made, held) == PUBLICATION_DURABLE;
        early->has_failed |= !early->is_claimed;
        perform_early(world, node, to->index,
                      precommit_claimed(&early->machine, early->is_claimed));
        return;
    }
    if (due == PRECOMMIT_REMOVE && comes && !held->manifest)
        held->shards &= (uint8_t)~early->made;
    if (due == PRECOMMIT_REMOVE)
        early->made = 0;
    else if (to != node)
        end_lease(world, to, early->save);
    perform_early(world, node, to->index, precommit_gone(&early->machine));
}

static uint8_t some_bit(struct sim *sim, uint8_t bits)
{
    uint8_t bit = 0;
    while ((bits & bit) == 0)
        bit = (uint8_t)(1u << below(sim, RANKS_MAX));
    return bit;
}

/* Ends one operation under way, or starts a shard. */
static void go_on_early(struct world *world, struct node *node)
{
    struct node *to = &world->nodes[below(&world->sim, NODES)];
    struct early *early = &node->early[to->index];
    const struct made *made = &world->made[early->save];
    bool starts = precommit_may_start(&early->machine, made);
    if (early->due != PRECOMMIT_NOTHING && !starts) {
        complete_early(world, node, to);
        return;
    }
    uint8_t left = all_shards(made) & (uint8_t) ~(early->begun | own_shards(made, to->index));
    if (starts && left != 0 && (early->moving == 0 || below(&world->sim, 2) == 0)) {
        require(&world->sim, early->is_claimed && is_in_work(node, made),
                "precommit.E7: a copy starts in a claimed directory, of a save in work");
        uint8_t bit = some_bit(&world->sim, left);
        early->begun |= bit;
        early->moving |= bit;
    } else if (early->moving != 0) {
        uint8_t bit = some_bit(&world->sim, early->moving);
        bool comes = to == node || can_call(world, node->index, to->index);
        bool fails = !comes || fault(&world->sim);
        early->moving &= (uint8_t)~bit;
        early->made |= comes ? bit : 0;
        early->has_failed |= fails;
        to->held[early->save].shards |= comes && to->held[early->save].mark ? bit : 0;
        perform_early(world, node, to->index,
                      precommit_rested(&early->machine, fails, early->moving != 0));
    }
}

#endif
