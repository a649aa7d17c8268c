/* ckptd_sim.c - two nodes and a bucket, simulated: the machines of ckptd together.
 *
 * Goal: the machines keep their invariants also together. Method: the real decisions
 * (machines/pick.c, machines/transfer.c, keep/drop_copies.c, proto/format/retain.c) of two nodes
 * that train one run, at times both at once as on two sides of a cut, against one bucket. A seeded
 * scheduler has processes crash, disks lost with their node and node ids used again, clocks that
 * jump; requests to the bucket refused, lost, unanswered or late in their effect; listings that lag
 * in both directions. The test makes no assumption about a machine's timing; it checks the world
 * after each event. ckptd_commit_any tests the way of a save to its commit, storage_store_remove an
 * interrupted removal. The invariants of transfer.c are in these: T1 and T4 in sim.S2, T2 in
 * sim.S3, T3, T5, T6 in sim.S6.
 *
 *   sim.S1  A checkpoint acknowledged as in the bucket is there, whole, until the bucket's rules
 *       remove it, whatever happens to its node.
 *   sim.S2  A manifest in the bucket, also one that came late, has every shard there, all of the
 *       store that owns the attempt's number.
 *   sim.S3  An attempt's number in the bucket belongs to one store for ever, and only that store
 *       gets the answer that its checkpoint is there.
 *   sim.S4  A local copy of a checkpoint that is due in the bucket is removed only when the bucket
 *       has it, and it was read back there recently.
 *   sim.S5  The rules leave a disk its last two whole checkpoints, and the bucket their own number.
 *       Checkpoints that are being read, pinned or damaged stay.
 *   sim.S6  When the faults stop, every checkpoint that is due in the bucket gets there, or its
 *       number is known to be another store's.
 *   sim.S7  The same seed gives the same trace.
 *
 * The test assumes two things. A request takes effect, if ever, before the bucket's rules reach the
 * object that it publishes. And the rules do not remove leased checkpoints. A checkpoint under way
 * is leased until its node releases it, or that node's disk is lost (storage/store/remove.c;
 * storage_store_remove.c tests it).
 *
 * How to replay a world, and to run more: sim.h; `make sim` takes a million. */
#include "ckptd/keep/drop_copies.h"
#include "ckptd/machines/pick.h"
#include "ckptd/machines/transfer.h"
#include "proto/base/report.h"
#include "proto/format/retain.h"
#include "tests/unit/sim.h"
#include "tests/unit/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS 500u
#define HEAL_EVENTS 4000u
#define VERIFY_AGE_S 1000
#define STEP_S 60
#define NODES 2u
#define RANKS 2u
#define SAVED_MAX 96u
#define LATE_MAX 8u
#define ATTEMPTS_MAX 64u

/* A checkpoint as one node sees it: on its disk, in the bucket, or both. */
struct saved {
    uint64_t attempt, step;
    int64_t time;
    bool is_local, is_far, is_given_up, goes_far;
    bool is_read, is_pinned; /* here */
    bool is_damaged;         /* a block of it has rotted here, and the scrub has seen it */
    int64_t sent;            /* when it came into the bucket, by the node's clock */
};

struct node {
    uint32_t store; /* of this disk: no two have one number */
    uint64_t attempt, step;
    struct saved saved[SAVED_MAX];
    uint32_t num_saved;
    struct transfer transfer;
    struct transfer_action due;
    uint32_t sends; /* which of `saved` */
    int64_t clock;
};

static const struct retain_rules local_rules = {.keep_last = 1, .may_remove_most = true};
static const struct retain_rules far_rules = {.keep_last = 4, .may_remove_most = true};

/* The bucket's objects of one step of an attempt. */
struct object {
    uint64_t attempt, step;
    int64_t time;
    uint32_t shard[RANKS], names, manifest; /* whose; 0: not there */
    bool is_new, is_removed;                /* new: a listing may miss it */
    bool is_acked;
    uint32_t leases; /* a bit per node that sends it */
};

struct late {
    uint32_t store, object; /* object 0: the number `attempt` */
    uint64_t attempt;
};

struct bucket {
    uint32_t owner[ATTEMPTS_MAX];
    struct object objects[2 * NODES * SAVED_MAX + 1]; /* from 1 */
    uint32_t num_objects;
    struct late late[LATE_MAX];
    uint32_t num_late;
};

struct world {
    struct sim sim;
    uint32_t stores;
    struct node nodes[NODES];
    struct bucket bucket;
    uint64_t num_acked, num_far, num_lost, num_removed, num_by_hand;
};

/* ---- the bucket ---- */

static uint32_t object_of(struct world *world, const struct saved *saved)
{
    struct bucket *bucket = &world->bucket;
    for (uint32_t i = 1; i <= bucket->num_objects; i++)
        if (bucket->objects[i].attempt == saved->attempt && bucket->objects[i].step == saved->step)
            return i;
    bucket->objects[++bucket->num_objects] =
        (struct object){.attempt = saved->attempt, .step = saved->step, .time = saved->time};
    return bucket->num_objects;
}

static bool is_whole(const struct object *object)
{
    bool holds = object->manifest != 0 && object->names == object->manifest;
    for (uint32_t i = 0; i < RANKS; i++)
        holds = holds && object->shard[i] == object->manifest;
    return holds;
}

/* Exclusively: the first has the name. A manifest's name is not given twice either. */
static void take_effect(struct world *world, const struct late *late)
{
    struct bucket *bucket = &world->bucket;
    note(&world->sim, "effect", late->store, late->object);
    if (late->object == 0) {
        if (bucket->owner[late->attempt] == 0)
            bucket->owner[late->attempt] = late->store;
        return;
    }
    struct object *object = &bucket->objects[late->object];
    if (object->manifest != 0 || object->is_removed)
        return;
    object->manifest = late->store;
    object->is_new = true;
    require(&world->sim, is_whole(object), "sim.S2: a manifest in the bucket has all shards");
    require(&world->sim, bucket->owner[object->attempt] == late->store,
            "sim.S2: they are of the owner");
}

static enum publication read_back(const struct world *world, const struct late *name)
{
    const struct bucket *bucket = &world->bucket;
    uint32_t found =
        name->object != 0 ? bucket->objects[name->object].manifest : bucket->owner[name->attempt];
    if (found == 0)
        return PUBLICATION_ABSENT;
    return found == name->store ? PUBLICATION_DURABLE : PUBLICATION_TAKEN;
}

static enum publication publish(struct world *world, const struct late *name)
{
    if (fault(&world->sim) && below(&world->sim, 2) == 0)
        return PUBLICATION_ABSENT; /* refused */
    if (fault(&world->sim) && world->bucket.num_late < LATE_MAX) {
        world->bucket.late[world->bucket.num_late++] = *name;
        return PUBLICATION_UNKNOWN;
    }
    take_effect(world, name);
    return fault(&world->sim) ? PUBLICATION_UNKNOWN : read_back(world, name);
}

static void one_late_effect(struct world *world)
{
    struct bucket *bucket = &world->bucket;
    if (bucket->num_late == 0)
        return;
    uint32_t which = below(&world->sim, bucket->num_late);
    const struct late late = bucket->late[which];
    bucket->late[which] = bucket->late[--bucket->num_late];
    take_effect(world, &late);
}

/* ---- a node's saves ---- */

static void open_attempt(struct world *world, struct node *node)
{
    if (node->attempt + 1 >= ATTEMPTS_MAX)
        return;
    node->attempt++;
    node->step = 0;
    note(&world->sim, "open", node->store, node->attempt);
}

static void save(struct world *world, struct node *node)
{
    if (node->num_saved == SAVED_MAX)
        return;
    note(&world->sim, "save", node->attempt, ++node->step);
    node->saved[node->num_saved++] = (struct saved){
        .attempt = node->attempt, .step = node->step, .time = node->clock, .is_local = true};
    world->num_acked++;
}

/* ---- a node and the bucket ---- */

static int newest_first(const void *a, const void *b)
{
    const struct saved *x = a, *y = b;
    if (x->attempt != y->attempt)
        return x->attempt > y->attempt ? -1 : 1;
    return x->step > y->step ? -1 : x->step < y->step;
}

/* All checkpoints that the node knows, as a run's catalog: one that is nowhere has vanished. */
static void make_plan(struct retain_item *out, const struct node *node)
{
    for (uint32_t i = 0; i < node->num_saved; i++) {
        const struct saved *saved = &node->saved[i];
        out[i] = (struct retain_item){.step = saved->step,
                                      .attempt = saved->attempt,
                                      .time = saved->time,
                                      .is_vanished = !saved->is_local && !saved->is_far};
    }
}

/* Like queue.c: newest first. Sets goes_far; returns the index of the next one to drain, or -1. */
static int64_t plan_drain(struct node *node)
{
    const struct pick_rule rule = {PICK_ALL, 0};
    struct pick_item items[SAVED_MAX];
    struct retain_item plan[SAVED_MAX];
    uint32_t left;
    make_plan(plan, node);
    retain_plan(plan, node->num_saved, &far_rules, &left);
    for (uint32_t i = 0; i < node->num_saved; i++) {
        const struct saved *saved = &node->saved[i];
        items[i] = (struct pick_item){.step = saved->step,
                                      .is_local = saved->is_local,
                                      .is_far = saved->is_far,
                                      .is_given_up = saved->is_given_up,
                                      .is_kept = !plan[i].is_vanished && plan[i].reasons != 0};
    }
    pick_mark(&rule, items, node->num_saved);
    for (uint32_t i = 0; i < node->num_saved; i++)
        node->saved[i].goes_far = items[i].goes;
    return pick_next(items, node->num_saved, &left);
}

static void begin_transfer(struct world *world, struct node *node)
{
    if (node->transfer.state != TRANSFER_FREE || node->due.kind != TRANSFER_NOTHING)
        return;
    qsort(/* as the catalog's */
          node->saved, node->num_saved, sizeof node->saved[0], newest_first);
    int64_t next = plan_drain(node);
    if (next < 0)
        return;
    node->sends = (uint32_t)next;
    note(&world->sim, "send", node->saved[next].attempt, node->saved[next].step);
    node->due = transfer_begin(&node->transfer, RANKS, 100);
}

static struct transfer_action copy_shard(struct world *world, struct node *node,
                                         struct object *object, uint32_t shard)
{
    uint32_t other = object->shard[shard];
    require(&world->sim, node->saved[node->sends].is_local, "sim.S2: what is sent is there");
    if (node->saved[node->sends].is_damaged)
        return transfer_copied(&node->transfer, shard, ERR_CORRUPT, true);
    if (fault(&world->sim) && below(&world->sim, 2) == 0)
        return transfer_copied(&node->transfer, shard, ERR_IO, false); /* torn, and no name */
    require(&world->sim, other == 0 || other == node->store,
            "sim.S3: no store writes to another's shards");
    object->shard[shard] = node->store;
    return transfer_copied(&node->transfer, shard, fault(&world->sim) ? ERR_IO : 0, false);
}

static void hold(struct world *world, struct node *node, struct saved *saved, struct object *object)
{
    require(&world->sim, object->manifest == node->store || object->is_removed,
            "sim.S3: told of what is not its own");
    saved->is_far = true;
    saved->sent = node->clock;
    object->is_acked = true;
    world->num_far++;
}

static void go_on_sending(struct world *world, struct node *node)
{
    struct saved *saved = &node->saved[node->sends];
    const struct transfer_action due = node->due;
    if (due.kind == TRANSFER_NOTHING)
        return;
    uint32_t index = object_of(world, saved);
    struct object *object = &world->bucket.objects[index];
    uint32_t lease = 1u << (node - world->nodes);
    const struct late number = {node->store, 0, saved->attempt};
    const struct late manifest = {node->store, index, saved->attempt};
    note(&world->sim, "drain", due.kind, due.shard);
    bool fails;
    node->due = (struct transfer_action){.kind = TRANSFER_NOTHING};
    switch (due.kind) {
    case TRANSFER_CLAIM:
        if (object->is_removed) /* it comes anew */
            *object = (struct object){
                .attempt = saved->attempt, .step = saved->step, .time = saved->time};
        object->leases |= lease;
        node->due = transfer_claimed(&node->transfer, publish(world, &number));
        break;
    case TRANSFER_COPY:
        node->due = copy_shard(world, node, object, due.shard);
        break;
    case TRANSFER_NAMES:
        fails = fault(&world->sim);
        object->names = fails && below(&world->sim, 2) == 0 ? object->names : node->store;
        node->due = transfer_named(&node->transfer, fails ? ERR_IO : 0);
        break;
    case TRANSFER_PUBLISH:
        node->due = transfer_published(&node->transfer, publish(world, &manifest));
        break;
    case TRANSFER_SETTLE:
        node->due =
            transfer_settled(&node->transfer, fault(&world->sim) ? PUBLICATION_UNKNOWN
                                                                 : read_back(world, &manifest));
        break;
    case TRANSFER_REST:
        node->due = transfer_rested(&node->transfer);
        break;
    case TRANSFER_HELD:
        object->leases &= ~lease;
        hold(world, node, saved, object);
        break;
    default: /* TRANSFER_OVER */
        require(&world->sim,
                saved->is_damaged || world->bucket.owner[saved->attempt] != node->store,
                "sim.S6: given up, and its own");
        saved->is_given_up = true;
        object->leases &= ~lease;
    }
}

/* ---- removal ---- */

struct looking {
    struct world *world;
    struct node *node;
    struct retain_item *items;
};

static int look_far(void *user, uint32_t index)
{
    struct looking *looking = user;
    const struct saved *saved = &looking->node->saved[index];
    const struct object *object = &looking->world->bucket.objects[object_of(looking->world, saved)];
    if (fault(&looking->world->sim))
        return ERR_UNAVAILABLE;
    looking->items[index].is_vanished |= !is_whole(object) || object->is_removed;
    return 0;
}

static int look_local(void *user, uint32_t index)
{
    struct looking *looking = user;
    looking->items[index].is_vanished |= !looking->node->saved[index].is_local;
    return 0;
}

/* How many of the checkpoints that are there are newer. */
static uint32_t newer_local(const struct node *node, const struct saved *saved)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < node->num_saved; i++)
        count += node->saved[i].is_local && !node->saved[i].is_damaged &&
                 newest_first(&node->saved[i], saved) < 0;
    return count;
}

static uint32_t newer_far(const struct bucket *bucket, const struct saved *saved)
{
    uint32_t count = 0;
    for (uint32_t i = 1; i <= bucket->num_objects; i++) {
        const struct object *object = &bucket->objects[i];
        const struct saved other = {.attempt = object->attempt, .step = object->step};
        count += is_whole(object) && !object->is_removed && newest_first(&other, saved) < 0;
    }
    return count;
}

static void remove_local(struct world *world, struct node *node, struct saved *saved)
{
    const struct object *object = &world->bucket.objects[object_of(world, saved)];
    bool is_there = is_whole(object) && !object->is_removed;
    int64_t age = node->clock - saved->sent;
    enum drop_copy_need need = drop_copy_need(saved->goes_far, saved->is_far, age, VERIFY_AGE_S);
    bool is_proven = need == DROP_COPY_PROOF || (age >= 0 && age <= VERIFY_AGE_S);
    if (need == DROP_COPY_ARRIVAL ||
        (need != DROP_COPY_NOTHING && (fault(&world->sim) || !is_there)))
        return;
    note(&world->sim, "remove local", saved->attempt, saved->step);
    require(&world->sim, !saved->goes_far || is_there,
            "sim.S4: the bucket has what a disk gives up");
    require(&world->sim, !saved->goes_far || is_proven, "sim.S4: and was read back there lately");
    require(&world->sim, newer_local(node, saved) >= RETAIN_GOOD_MIN,
            "sim.S5: a disk keeps its last two");
    require(&world->sim, !saved->is_read && !saved->is_pinned && !saved->is_damaged,
            "sim.S5: nor goes what is read, pinned or evidence");
    saved->is_local = false;
    world->num_removed++;
}

static void retain_local(struct world *world, struct node *node)
{
    struct retain_item items[SAVED_MAX];
    struct looking looking = {world, node, items};
    uint32_t removed;
    plan_drain(node);
    make_plan(items, node);
    for (uint32_t i = 0; i < node->num_saved; i++) {
        items[i].is_vanished = !node->saved[i].is_local;
        items[i].is_leased =
            (node->transfer.state != TRANSFER_FREE && node->sends == i) || node->saved[i].is_read;
        items[i].is_pinned = node->saved[i].is_pinned;
        items[i].is_damaged = node->saved[i].is_damaged;
    }
    if (retain_plan_seen(items, node->num_saved, &local_rules, &removed, look_local, &looking) != 0)
        return;
    for (uint32_t i = 0; i < node->num_saved; i++)
        if (items[i].reasons == 0)
            remove_local(world, node, &node->saved[i]);
}

static bool is_under_way(const struct bucket *bucket, uint32_t index)
{
    for (uint32_t i = 0; i < bucket->num_late; i++)
        if (bucket->late[i].object == index)
            return true;
    return false;
}

static void retain_far(struct world *world, struct node *node)
{
    struct retain_item items[SAVED_MAX];
    struct looking looking = {world, node, items};
    uint32_t removed;
    make_plan(items, node);
    for (uint32_t i = 0; i < node->num_saved; i++) {
        uint32_t index = object_of(world, &node->saved[i]);
        items[i].is_vanished = !node->saved[i].is_far;
        items[i].is_leased = world->bucket.objects[index].leases != 0;
    }
    if (retain_plan_seen(items, node->num_saved, &far_rules, &removed, look_far, &looking) != 0)
        return;
    for (uint32_t i = 0; i < node->num_saved; i++) {
        uint32_t index = object_of(world, &node->saved[i]);
        if (items[i].reasons != 0 || is_under_way(&world->bucket, index))
            continue;
        note(&world->sim, "remove far", node->saved[i].attempt, node->saved[i].step);
        require(&world->sim, newer_far(&world->bucket, &node->saved[i]) >= far_rules.keep_last,
                "sim.S5: the bucket keeps its last ones");
        world->bucket.objects[index].is_removed = true;
        node->saved[i].is_far = false;
        world->num_removed++;
    }
}

/* ---- readers, operators, rot ---- */

/* By hand, from the bucket: the nodes' lists continue to name it. */
static void remove_by_hand(struct world *world, const struct saved *saved)
{
    uint32_t index = object_of(world, saved);
    struct object *object = &world->bucket.objects[index];
    if (object->manifest == 0 || object->leases != 0 || is_under_way(&world->bucket, index))
        return;
    object->is_removed = true;
    world->num_by_hand++;
}

static void meddle(struct world *world, struct node *node)
{
    uint32_t choice = below(&world->sim, 16);
    struct saved *saved =
        node->num_saved > 0 ? &node->saved[below(&world->sim, node->num_saved)] : NULL;
    if (!saved || !saved->is_local)
        return;
    note(&world->sim, "meddle", choice, saved->step);
    if (choice < 8)
        saved->is_read = !saved->is_read && below(&world->sim, 4) == 0;
    else if (choice < 12)
        saved->is_pinned = !saved->is_pinned && below(&world->sim, 8) == 0;
    else if (choice < 14 && fault(&world->sim))
        saved->is_damaged = true;
    else if (choice >= 14 && world->sim.faults != 0)
        remove_by_hand(world, saved);
}

/* ---- crashes and losses ---- */

static void restart(struct node *node)
{
    transfer_forget(&node->transfer);
    node->due = (struct transfer_action){.kind = TRANSFER_NOTHING};
}

/* A start's listing of the bucket: new objects may be missing, removed ones may still be there. */
static void list_far(struct world *world, struct node *node)
{
    for (uint32_t i = 0; i < node->num_saved; i++)
        node->saved[i].is_far = node->saved[i].is_given_up = false;
    for (uint32_t i = 1; i <= world->bucket.num_objects; i++) {
        struct object *object = &world->bucket.objects[i];
        if (object->manifest == 0 || (object->is_new && fault(&world->sim)) ||
            (object->is_removed && !fault(&world->sim)))
            continue;
        struct saved *found = NULL;
        for (uint32_t j = 0; j < node->num_saved && !found; j++) {
            struct saved *saved = &node->saved[j];
            if (saved->attempt == object->attempt && saved->step == object->step &&
                object->manifest == node->store)
                found = saved;
        }
        if (!found && node->num_saved < SAVED_MAX && object->manifest != node->store) {
            found = &node->saved[node->num_saved++];
            *found = (struct saved){
                .attempt = object->attempt, .step = object->step, .time = object->time};
        }
        if (found) {
            found->is_far = true;
            found->sent = found->time;
            object->is_acked = true;
        }
    }
}

static void crash(struct world *world, struct node *node)
{
    note(&world->sim, "crash", node->store, 0);
    for (uint32_t i = 0; i < node->num_saved; i++)
        node->saved[i].is_read = false;
    restart(node);
    list_far(world, node);
}

static void lose_disk(struct world *world, struct node *node)
{
    note(&world->sim, "lost", node->store, 0);
    world->num_lost++;
    for (uint32_t i = 1; i <= world->bucket.num_objects; i++)
        world->bucket.objects[i].leases &= ~(1u << (node - world->nodes)); /* they expire */
    node->store = ++world->stores;
    node->num_saved = 0;
    node->attempt = node->step = 0;
    for (uint64_t i = 0; i < ATTEMPTS_MAX; i++)
        if (world->bucket.owner[i] != 0 && !fault(&world->sim))
            node->attempt = i;
    restart(node);
    list_far(world, node);
}

/* ---- the world ---- */

static void check_world(struct world *world)
{
    for (uint32_t i = 1; i <= world->bucket.num_objects; i++) {
        const struct object *object = &world->bucket.objects[i];
        require(&world->sim, !object->is_acked || object->is_removed || is_whole(object),
                "sim.S1: acknowledged as in the bucket, and lost");
    }
}

static void one_event(struct world *world)
{
    struct node *node = &world->nodes[below(&world->sim, NODES)];
    uint32_t choice = below(&world->sim, 100);
    node->clock += STEP_S;
    if (choice < 10)
        save(world, node);
    else if (choice < 70) {
        begin_transfer(world, node);
        go_on_sending(world, node);
    } else if (choice < 78)
        retain_local(world, node);
    else if (choice < 82)
        retain_far(world, node);
    else if (choice < 86)
        one_late_effect(world);
    else if (choice < 88)
        open_attempt(world, node);
    else if (choice < 90 && fault(&world->sim))
        node->clock += (int64_t)below(&world->sim, 20000) - 10000;
    else if (choice < 91 && world->sim.faults != 0)
        crash(world, node);
    else if (choice < 96)
        meddle(world, node);
    else if (fault(&world->sim))
        lose_disk(world, node);
}

static void heal(struct world *world)
{
    world->sim.faults = 0;
    while (world->bucket.num_late > 0)
        one_late_effect(world);
    for (uint32_t i = 0, idle = 0; i < HEAL_EVENTS && idle < NODES; i++) {
        struct node *node = &world->nodes[i % NODES];
        begin_transfer(world, node);
        bool is_idle = node->due.kind == TRANSFER_NOTHING;
        idle = is_idle ? idle + 1 : 0;
        go_on_sending(world, node);
    }
    for (uint32_t n = 0; n < NODES; n++)
        require(&world->sim, plan_drain(&world->nodes[n]) < 0,
                "sim.S6: all that goes there comes there");
}

static struct world world_of_all;

static void run_world(uint64_t seed)
{
    struct world *world = &world_of_all;
    memset(world, 0, sizeof *world);
    sim_begin(&world->sim, seed, 60);
    for (uint32_t n = 0; n < NODES; n++) {
        world->nodes[n].store = ++world->stores;
        world->nodes[n].clock = 1000000000 + below(&world->sim, 10000);
        restart(&world->nodes[n]);
        open_attempt(world, &world->nodes[n]);
    }
    for (uint32_t i = 0; i < EVENTS && !world->sim.broken; i++) {
        one_event(world);
        check_world(world);
    }
    if (!world->sim.broken)
        heal(world);
    check_world(world);
}

TEST(test_sim__no_schedule_of_two_nodes_and_a_bucket_breaks_an_invariant)
{
    const struct world *w = &world_of_all;
    const struct sim_total totals[] = {
        {"events", &w->sim.events, true},     {"saves acknowledged", &w->num_acked, true},
        {"in the bucket", &w->num_far, true}, {"removed", &w->num_removed, true},
        {"disks lost", &w->num_lost, false},  {"removed by hand", &w->num_by_hand, false}};
    sim_run_many(&w->sim, run_world, totals, sizeof totals / sizeof totals[0]);
}

TEST(test_sim__the_same_seed_gives_the_same_trace)
{
    sim_check_traces(&world_of_all.sim, run_world); /* sim.S7 */
}

SUITE(NULL, NULL)
