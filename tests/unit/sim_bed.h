/* sim_bed.h - the world of ckptd_sim.c: a bucket that misbehaves, and nodes with a disk, whose
 * saves go through the real machines/commit.c. */
#ifndef HOLDFAST_TESTS_SIM_BED_H
#define HOLDFAST_TESTS_SIM_BED_H

#include "ckptd/machines/commit.h"
#include "ckptd/machines/transfer.h"
#include "proto/base/report.h"
#include "tests/unit/sim.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define NODES 2u
#define RANKS 2u
#define SAVED_MAX 96u
#define PENDING_MAX 32u
#define LATE_MAX 8u
#define ATTEMPTS_MAX 64u

/* A checkpoint, or what may become one, as one node sees it and as its disk has it. */
struct saved {
    uint64_t id, attempt, step;
    int64_t time;
    bool is_live; /* in the commit machine */
    bool shard[RANKS], names, manifest, maybe, is_removed;
    bool is_acked, is_far, is_given_up, goes_far, is_ruled_out;
    bool is_listed;          /* in the catalog, as its commit or the scan of a start said */
    bool is_read, is_pinned; /* here */
    bool is_damaged;         /* a block of it has rotted here, and the scrub has seen it */
    int64_t sent;            /* when it came into the bucket, by the node's clock */
};

struct pending {
    enum commit_action_kind kind;
    uint64_t save, number;
};

struct node {
    uint32_t store; /* of this disk: no two have one number */
    struct commit *commit;
    struct pending pending[PENDING_MAX];
    uint32_t num_pending;
    uint64_t durable_attempt, answered;
    uint64_t spent;                             /* a number that the last start may not get */
    uint64_t published_attempt, published_step; /* of the last PUBLISH */
    uint64_t step[RANKS];
    struct saved saved[SAVED_MAX];
    uint32_t num_saved;
    struct transfer transfer;
    struct transfer_action due;
    uint32_t sends; /* which of `saved` */
    int64_t clock;
};

/* What the bucket has of one step of an attempt. */
struct object {
    uint64_t attempt, step;
    int64_t time;
    uint32_t shard[RANKS], names, manifest; /* whose; 0: not there */
    bool is_new, is_removed;                /* new: a listing may miss it */
    bool is_acked;
    uint32_t lease; /* of the store that sends it */
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
    require(&world->sim, is_whole(object), "sim.S3: a manifest in the bucket has all shards");
    require(&world->sim, bucket->owner[object->attempt] == late->store,
            "sim.S3: they are of the owner");
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

static struct saved *find_saved(struct node *node, uint64_t id)
{
    for (uint32_t i = node->num_saved; i-- > 0;)
        if (node->saved[i].is_live && node->saved[i].id == id)
            return &node->saved[i];
    return NULL;
}

static bool is_local(const struct saved *saved)
{
    return saved->manifest && !saved->is_removed && !saved->is_live;
}

static void perform(struct world *world, struct node *node, const struct commit_actions *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const struct commit_action *action = &list->items[i];
        struct saved *saved = action->kind < COMMIT_TAKE ? find_saved(node, action->save) : NULL;
        if (action->kind == COMMIT_DONE || action->kind == COMMIT_KEEP) {
            saved->is_live = false;
            saved->is_acked = saved->is_listed = action->kind == COMMIT_DONE;
            world->num_acked += saved->is_acked;
        } else if (action->kind == COMMIT_OPENED) {
            require(&world->sim, action->number > node->spent,
                    "sim.S10: a start has its own number");
            node->answered = action->number;
            memset(node->step, 0, sizeof node->step);
        } else if (action->kind != COMMIT_NOT_OPENED && node->num_pending < PENDING_MAX) {
            node->pending[node->num_pending++] =
                (struct pending){action->kind, action->save, action->number};
        }
    }
}

static void complete(struct world *world, struct node *node)
{
    struct commit_actions list = {0};
    if (node->num_pending == 0)
        return;
    uint32_t which = below(&world->sim, node->num_pending);
    const struct pending pending = node->pending[which];
    node->pending[which] = node->pending[--node->num_pending];
    struct saved *saved = find_saved(node, pending.save);
    bool fails = fault(&world->sim);
    note(&world->sim, "complete", pending.kind, fails);
    switch (pending.kind) {
    case COMMIT_SYNC_NAMES:
        saved->names = !fails;
        commit_names_synced(node->commit, &list, pending.save, fails ? ERR_IO : 0);
        break;
    case COMMIT_PUBLISH: {
        require(&world->sim,
                saved->attempt > node->published_attempt || saved->step >= node->published_step,
                "sim.S9: saves are published in the order of their steps");
        node->published_attempt = saved->attempt;
        node->published_step = saved->step;
        bool is_known = !fails || below(&world->sim, 2) == 0;
        saved->manifest = !fails;
        saved->maybe = !is_known; /* a crash decides */
        commit_published(node->commit, &list, pending.save,
                         !fails     ? OUTCOME_DURABLE
                         : is_known ? OUTCOME_ABSENT
                                    : OUTCOME_UNKNOWN,
                         fails ? ERR_IO : 0);
        break;
    }
    case COMMIT_DISCARD:
        require(&world->sim, !saved->manifest && !saved->maybe,
                "sim.S1: nothing goes that a manifest may name");
        saved->is_removed = true;
        saved->is_live = false;
        commit_discarded(node->commit, &list, pending.save);
        break;
    default:
        if (!fails && pending.number > node->durable_attempt)
            node->durable_attempt = pending.number;
        commit_taken(node->commit, &list, pending.number, fails ? ERR_IO : 0);
    }
    perform(world, node, &list);
}

static void open_attempt(struct world *world, struct node *node)
{
    struct commit_actions list = {0};
    if (node->durable_attempt + 1 >= ATTEMPTS_MAX)
        return;
    note(&world->sim, "open", node->store, node->durable_attempt);
    node->spent = node->commit->state == RUN_TAKING ? node->commit->taking : node->commit->attempt;
    commit_open(node->commit, &list, RANKS);
    perform(world, node, &list);
}

/* As catalog_new: a step that is listed is not begun. */
static bool is_known_step(const struct node *node, uint64_t step)
{
    for (uint32_t i = 0; i < node->num_saved; i++) {
        const struct saved *saved = &node->saved[i];
        if (saved->attempt == node->answered && saved->step == step && saved->is_listed &&
            !saved->is_removed)
            return true;
    }
    return false;
}

static void check_repeat(struct world *world, const struct node *node, uint64_t step)
{
    for (uint32_t i = 0; i < node->num_saved; i++) {
        const struct saved *saved = &node->saved[i];
        require(&world->sim,
                saved->attempt != node->answered || saved->step != step || saved->is_removed,
                "sim.S9: a step is begun again only when its save was given up");
    }
}

static bool is_copying(const struct node *node, uint32_t rank)
{
    const struct commit_save *save = commit_find_step(node->commit, node->step[rank]);
    return save && save->state == COMMIT_STAGING && save->ranks[rank] == RANK_BEGUN;
}

static void begin_save(struct world *world, struct node *node, uint32_t rank)
{
    struct commit_actions list = {0};
    uint64_t id = 0, other = node->step[1 - rank];
    uint64_t step = other > node->step[rank] ? other : node->step[rank] + 1;
    if (node->step[rank] > 0 && below(&world->sim, 8) == 0)
        step = node->step[rank]; /* it has heard nothing of that one */
    if (is_copying(node, rank) && below(&world->sim, 16) != 0)
        return;
    if (node->num_saved == SAVED_MAX || is_known_step(node, step))
        return;
    if (commit_may_begin(node->commit, node->answered, rank, step) == ERR_ABORTED)
        commit_leave(node->commit, &list, rank, step);
    int error = commit_begin(node->commit, &list, &id, node->answered, rank, step);
    note(&world->sim, "begin", step, (uint64_t)(int64_t)error);
    if (error == 0) {
        node->step[rank] = step;
        if (!find_saved(node, id)) {
            check_repeat(world, node, step);
            node->saved[node->num_saved++] = (struct saved){.id = id,
                                                            .attempt = node->answered,
                                                            .step = step,
                                                            .time = node->clock,
                                                            .is_live = true};
        }
    }
    perform(world, node, &list);
}

static void move_save(struct world *world, struct node *node)
{
    struct commit_actions list = {0};
    uint32_t rank = below(&world->sim, RANKS), first = below(&world->sim, COMMIT_SAVES_MAX);
    const struct commit_save *save = NULL;
    bool fails = fault(&world->sim); /* also late */
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX && !save; i++) {
        const struct commit_save *one = &node->commit->saves[(first + i) % COMMIT_SAVES_MAX];
        if (fails ? one->state != COMMIT_FREE : one->state == COMMIT_STAGING)
            save = one;
    }
    struct saved *saved = save ? find_saved(node, save->id) : NULL;
    if (!saved)
        return;
    if (fails) {
        commit_failed(node->commit, &list, saved->id, rank, ERR_IO, "simulated");
        commit_let_go(node->commit, node->answered, rank);
    } else if (save->ranks[rank] == RANK_BEGUN) {
        commit_ended(node->commit, &list, saved->id, rank);
    } else if (save->ranks[rank] == RANK_ENDED) {
        saved->shard[rank] = true;
        commit_durable(node->commit, &list, saved->id, rank);
    }
    perform(world, node, &list);
}

#endif
