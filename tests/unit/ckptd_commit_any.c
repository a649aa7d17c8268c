/* ckptd_commit_any.c - the state machine that decides when a checkpoint exists, in any order.
 *
 * Goal: the invariants commit.I1 to I10 and commit.I12 under any order of events. Method: a seeded
 * scheduler plays ranks, disk and operator against the machine; completions come late, in any
 * order, twice, or for saves that are gone; I/O fails or its outcome is unknown. Ranks die, abort,
 * begin again. The daemon crashes at any point and starts from the contents of its disk. After
 * every event the world is checked: no acknowledged checkpoint is lost, nothing with a manifest
 * lacks a file. At the end the faults stop and everything must settle. Replay one world with
 * SIM_SEED=<seed>; SIM_WORLDS=<n> sets how many. */
#include "ckptd/machines/commit.h"
#include "proto/base/report.h"
#include "tests/unit/sim.h"
#include "tests/unit/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX 5u
#define SAVES_LOGGED 4096u
#define PENDING_MAX 64u

/* One save as the disk and an outside observer see it. */
struct truth {
    uint64_t id, step, attempt;
    uint32_t world_size;
    bool shard_durable[RANKS_MAX];
    uint32_t holders, placed; /* a bit per node */
    bool names_durable, removed;
    bool handed_out; /* to PUBLISH */
    bool manifest;   /* present and durable */
    bool maybe;      /* publication unknown: a crash decides */
    bool acknowledged;
    bool live;   /* in the machine */
    bool listed; /* a restart has found it */
};

/* An answer on its way to the machine. */
struct pending {
    enum commit_action_kind kind;
    uint64_t save, number;
};

struct world {
    struct sim sim;
    struct commit machine;
    struct truth log[SAVES_LOGGED];
    uint32_t num_saves;
    struct pending pending[PENDING_MAX];
    uint32_t num_pending;
    uint64_t durable_attempt, answered_attempt;
    uint64_t rank_attempt[RANKS_MAX], rank_step[RANKS_MAX]; /* what each rank assumes */
    uint64_t rank_save[RANKS_MAX];                          /* that it copies; 0: nothing */
    uint32_t world_size;
    uint64_t num_done, num_crashes, done_attempt, done_step; /* the last: of the newest commit */
};

static struct truth *find_truth(struct world *world, uint64_t id)
{
    for (uint32_t i = world->num_saves; i-- > 0;)
        if (world->log[i].live && world->log[i].id == id)
            return &world->log[i];
    return NULL;
}

static bool all_durable(const struct truth *truth)
{
    for (uint32_t i = 0; i < truth->world_size; i++)
        if (!truth->shard_durable[i])
            return false;
    return true;
}

static void perform_one(struct world *world, const struct commit_action *action)
{
    struct truth *truth = NULL;
    if (action->kind < COMMIT_TAKE) {
        truth = find_truth(world, action->save);
        require(&world->sim, truth != NULL, "an action concerns a live save");
        if (!truth)
            return;
    }
    switch (action->kind) {
    case COMMIT_SYNC_NAMES:
        require(&world->sim, all_durable(truth), "commit.I1: shards before names");
        break;
    case COMMIT_PUBLISH:
        require(&world->sim, all_durable(truth) && truth->names_durable,
                "commit.I1: all before the manifest");
        truth->handed_out = true;
        break;
    case COMMIT_PLACE:
        require(&world->sim, truth->manifest, "commit.I10: the coordinator's manifest comes first");
        break;
    case COMMIT_DONE:
        require(&world->sim, truth->manifest, "commit.I2: done means durable");
        require(&world->sim, (truth->holders & ~1u & ~truth->placed) == 0,
                "commit.I10: every holder has the manifest");
        require(&world->sim,
                truth->attempt != world->done_attempt || truth->step > world->done_step,
                "commit.I8: commits come in the order of steps");
        world->done_attempt = truth->attempt;
        world->done_step = truth->step;
        truth->acknowledged = true;
        truth->live = false;
        world->num_done++;
        return;
    case COMMIT_DISCARD:
        require(&world->sim, !truth->manifest && !truth->maybe,
                "commit.I3: no file goes that a manifest names");
        break;
    case COMMIT_KEEP:
        truth->live = false;
        return;
    case COMMIT_OPENED:
        require(&world->sim, commit_num_saves(&world->machine) == 0,
                "commit.I4: settled before it is answered");
        require(&world->sim, action->number > world->answered_attempt, "commit.I5: attempts grow");
        require(&world->sim, action->number <= world->durable_attempt,
                "commit.I5: durable before answered");
        world->answered_attempt = action->number;
        for (uint32_t i = 0; i < world->world_size; i++) {
            world->rank_attempt[i] = action->number;
            world->rank_step[i] = 0;
            world->rank_save[i] = 0;
        }
        return;
    case COMMIT_NOT_OPENED:
        return;
    case COMMIT_TAKE:
        require(&world->sim, commit_num_saves(&world->machine) == 0,
                "commit.I4: settled before it is taken");
        break;
    }
    require(&world->sim, world->num_pending < PENDING_MAX, "answers on their way are bounded");
    if (world->num_pending < PENDING_MAX)
        world->pending[world->num_pending++] =
            (struct pending){action->kind, action->save, action->number};
}

static void perform(struct world *world, const struct commit_actions *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        perform_one(world, &list->items[i]);
}

/* Ranks of every other attempt are on three nodes. */
static uint32_t node_of(const struct truth *truth, uint32_t rank)
{
    return truth->attempt % 2 != 0 ? rank % 3 : 0;
}

/* One of the holders answers, twice, or is abandoned; and one that holds nothing reports. */
static void place(struct world *world, struct truth *truth, struct commit_actions *list, bool fails)
{
    uint32_t node = 1 + below(&world->sim, 2);
    if ((truth->holders >> node & 1u) == 0)
        node = 3 - node;
    if (!fails)
        truth->placed |= 1u << node;
    commit_placed(&world->machine, list, truth->id, 7, 0);
    commit_placed(&world->machine, list, truth->id, node, fails ? ERR_UNAVAILABLE : 0);
    commit_placed(&world->machine, list, truth->id, node, 0);
    if (commit_find(&world->machine, truth->id))
        world->pending[world->num_pending++] = (struct pending){COMMIT_PLACE, truth->id, 0};
}

/* The disk performs the request, or not, and the machine gets the result. */
static void complete(struct world *world, const struct pending *pending)
{
    struct commit_actions list = {0};
    struct truth *truth = find_truth(world, pending->save);
    bool fails = fault(&world->sim);
    switch (pending->kind) {
    case COMMIT_SYNC_NAMES:
        if (truth && !fails)
            truth->names_durable = true;
        commit_names_synced(&world->machine, &list, pending->save, fails ? ERR_IO : 0);
        break;
    case COMMIT_PUBLISH: {
        enum commit_outcome outcome = !fails                       ? OUTCOME_DURABLE
                                      : below(&world->sim, 2) == 0 ? OUTCOME_ABSENT
                                                                   : OUTCOME_UNKNOWN;
        if (truth) {
            truth->manifest = outcome == OUTCOME_DURABLE;
            truth->maybe = outcome == OUTCOME_UNKNOWN;
        }
        commit_published(&world->machine, &list, pending->save, outcome, fails ? ERR_IO : 0);
        break;
    }
    case COMMIT_PLACE:
        if (truth)
            place(world, truth, &list, fails);
        break;
    case COMMIT_DISCARD:
        if (truth) {
            truth->removed = true;
            truth->live = false;
        }
        commit_discarded(&world->machine, &list, pending->save);
        break;
    default: { /* COMMIT_TAKE */
        int error = fails ? (below(&world->sim, 2) ? ERR_IO : ERR_EXISTS) : 0;
        if (error != ERR_IO && pending->number > world->durable_attempt)
            world->durable_attempt = pending->number;
        commit_taken(&world->machine, &list, pending->number, error);
    }
    }
    perform(world, &list);
}

/* Delivers the answer once more, as a success: whatever the first one was, it changes nothing. */
static void repeat(struct world *world, const struct pending *pending)
{
    struct commit_actions list = {0};
    if (pending->kind == COMMIT_SYNC_NAMES)
        commit_names_synced(&world->machine, &list, pending->save, 0);
    else if (pending->kind == COMMIT_PUBLISH)
        commit_published(&world->machine, &list, pending->save, OUTCOME_DURABLE, 0);
    else if (pending->kind == COMMIT_DISCARD)
        commit_discarded(&world->machine, &list, pending->save);
    else if (pending->kind == COMMIT_PLACE)
        commit_placed(&world->machine, &list, pending->save, 0, 0);
    else
        commit_taken(&world->machine, &list, pending->number, 0);
    require(&world->sim, list.count == 0, "a second answer changes nothing");
}

static void complete_any(struct world *world)
{
    if (world->num_pending == 0)
        return;
    uint32_t index = below(&world->sim, world->num_pending);
    struct pending pending = world->pending[index];
    world->pending[index] = world->pending[--world->num_pending];
    complete(world, &pending);
    if (fault(&world->sim))
        repeat(world, &pending);
}

/* begin.c also consults the catalog. */
static bool is_listed(const struct world *world, uint64_t attempt, uint64_t step)
{
    for (uint32_t i = 0; i < world->num_saves; i++)
        if (world->log[i].listed && world->log[i].attempt == attempt && world->log[i].step == step)
            return true;
    return false;
}

/* The first rank of a save: nothing of earlier saves of the step is left. */
static void log_save(struct world *world, uint64_t id, uint64_t step)
{
    uint64_t attempt = world->machine.attempt;
    for (uint32_t i = 0; i < world->num_saves; i++) {
        const struct truth *former = &world->log[i];
        if (former->attempt != attempt || former->step != step)
            continue;
        require(&world->sim, former->removed && !former->live,
                "commit.I6: the files of a step are of one save");
        require(&world->sim, !former->manifest && !former->maybe,
                "commit.I9: what may be committed stays");
    }
    require(&world->sim, world->num_saves < SAVES_LOGGED, "the log is long enough");
    world->log[world->num_saves++] = (struct truth){.id = id,
                                                    .step = step,
                                                    .attempt = attempt,
                                                    .world_size = world->machine.world_size,
                                                    .live = true};
}

static void rank_begins(struct world *world, uint32_t rank)
{
    struct commit_actions list = {0};
    uint64_t id = 0, attempt = world->rank_attempt[rank];
    /* Now and then it skips one, or begins one again. */
    uint64_t step =
        world->rank_step[rank] + (uint64_t[]){0, 0, 1, 1, 1, 1, 1, 2}[below(&world->sim, 8)];
    if (is_listed(world, attempt, step))
        return;
    int may = commit_may_begin(&world->machine, attempt, rank, step);
    if (may == ERR_ABORTED && attempt == world->machine.attempt) {
        commit_leave(&world->machine, &list, rank, step);
        world->rank_save[rank] = 0;
    }
    int error = commit_begin(&world->machine, &list, &id, attempt, rank, step);
    require(&world->sim, may == error || may == ERR_ABORTED, "may_begin and begin agree");
    if (attempt != world->machine.attempt || world->machine.state != RUN_OPEN)
        require(&world->sim, error == ERR_STALE, "commit.I4: only the open attempt saves");
    if (error == 0 || error == ERR_ABORTED)
        world->rank_step[rank] = step;
    perform(world, &list);
    if (error != 0)
        return;
    if (!find_truth(world, id))
        log_save(world, id, step);
    world->rank_save[rank] = id;
    for (uint32_t i = 0; i < world->world_size; i++)
        require(&world->sim,
                world->rank_attempt[i] != attempt || world->rank_step[i] != step ||
                    world->rank_save[i] == 0 || world->rank_save[i] == id,
                "commit.I6: all ranks that copy a step mean the same save");
}

/* A rank aborts its copy, or has copied all of a save that is over. */
static void rank_lets_go(struct world *world, uint32_t rank)
{
    struct commit_actions list = {0};
    if (world->rank_save[rank] == 0 || world->rank_attempt[rank] != world->machine.attempt)
        return;
    commit_failed(&world->machine, &list, world->rank_save[rank], rank, ERR_ABORTED, "simulated");
    commit_let_go(&world->machine, world->rank_attempt[rank], rank);
    world->rank_save[rank] = 0;
    perform(world, &list);
}

/* A rank finds no free image. */
static void one_makes_way(struct world *world)
{
    struct commit_actions list = {0};
    uint64_t earliest = UINT64_MAX, id = commit_give_way(&world->machine, &list);
    const struct commit_save *given = id != 0 ? commit_find(&world->machine, id) : NULL;
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++) {
        const struct commit_save *save = &world->machine.saves[i];
        if (save->state != COMMIT_FREE && save->state != COMMIT_DISCARDING && save->step < earliest)
            earliest = save->step;
    }
    require(&world->sim, !given || given->step > earliest, "commit.I12: the earliest goes on");
    perform(world, &list);
}

static struct truth *any_live(struct world *world)
{
    uint32_t count = 0;
    struct truth *chosen = NULL;
    uint32_t first = world->num_saves > 32 ? world->num_saves - 32 : 0;
    for (uint32_t i = first; i < world->num_saves; i++)
        if (world->log[i].live && below(&world->sim, ++count) == 0)
            chosen = &world->log[i];
    return chosen;
}

/* The stage of some rank advances: END, or a durable shard; or it fails. */
static void stage_moves(struct world *world)
{
    struct commit_actions list = {0};
    struct truth *truth = any_live(world);
    if (!truth)
        return;
    const struct commit_save *save = commit_find(&world->machine, truth->id);
    uint32_t rank = below(&world->sim, truth->world_size);
    if (!save)
        return;
    if (fault(&world->sim))
        commit_failed(&world->machine, &list, truth->id, rank, ERR_IO, "simulated");
    else if (save->ranks[rank] == RANK_BEGUN) {
        commit_ended(&world->machine, &list, truth->id, rank);
        if (world->rank_save[rank] == truth->id)
            world->rank_save[rank] = 0;
    } else if (save->ranks[rank] == RANK_ENDED && save->state == COMMIT_STAGING) {
        truth->shard_durable[rank] = true;
        truth->holders |= 1u << node_of(truth, rank);
        commit_durable_at(&world->machine, &list, truth->id, rank, node_of(truth, rank));
    } else {
        commit_durable(&world->machine, &list, truth->id, rank); /* a repeated or early report */
    }
    perform(world, &list);
}

static void crash(struct world *world)
{
    world->num_crashes++;
    for (uint32_t i = 0; i < world->num_pending; i++) {
        struct truth *truth = find_truth(world, world->pending[i].save);
        if (world->pending[i].kind == COMMIT_PUBLISH && truth)
            truth->maybe = true; /* it was under way */
        if (world->pending[i].kind == COMMIT_TAKE && below(&world->sim, 2) == 0 &&
            world->pending[i].number > world->durable_attempt)
            world->durable_attempt = world->pending[i].number;
    }
    world->num_pending = 0;
    for (uint32_t i = 0; i < world->num_saves; i++) {
        struct truth *truth = &world->log[i];
        if (truth->maybe) {
            truth->manifest = below(&world->sim, 2) == 0;
            truth->maybe = false;
        }
        /* The start-up scan: no manifest, no files. */
        if (!truth->manifest)
            truth->removed = true;
        truth->listed = truth->manifest;
        truth->live = false;
    }
    memset(world->rank_save, 0, sizeof world->rank_save);
    memset(world->machine.latest, 0, RANKS_MAX * sizeof world->machine.latest[0]);
    memset(world->machine.unaware, 0, RANKS_MAX * sizeof world->machine.unaware[0]);
    commit_init(&world->machine, world->durable_attempt);
}

static void rank_restarts_daemon_side(struct world *world)
{
    /* Ranks of the answered attempt describe themselves to the restarted daemon. */
    int error = commit_resume(&world->machine, world->answered_attempt, world->world_size);
    if (world->machine.state == RUN_CLOSED)
        require(&world->sim, error == ERR_STALE, "only the newest attempt resumes");
}

static void opens(struct world *world)
{
    struct commit_actions list = {0};
    world->world_size = 1 + below(&world->sim, RANKS_MAX);
    require(&world->sim, commit_open(&world->machine, &list, world->world_size) == 0,
            "open is accepted");
    perform(world, &list);
}

static void check_world(struct world *world)
{
    for (uint32_t i = 0; i < world->num_saves; i++) {
        const struct truth *truth = &world->log[i];
        require(&world->sim, !truth->acknowledged || (truth->manifest && !truth->removed),
                "no acknowledged checkpoint is lost");
        require(&world->sim, !truth->manifest || (all_durable(truth) && truth->names_durable),
                "whatever has a manifest is whole");
        require(&world->sim, !truth->manifest || !truth->removed,
                "no file of a manifest is removed");
    }
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++) {
        for (uint32_t j = 0; j < i; j++) {
            const struct commit_save *a = &world->machine.saves[i], *b = &world->machine.saves[j];
            bool both = a->state != COMMIT_FREE && b->state != COMMIT_FREE &&
                        a->state != COMMIT_DISCARDING && b->state != COMMIT_DISCARDING;
            require(&world->sim, !both || a->step != b->step, "commit.I6: one save of a step");
        }
    }
}

static void one_event(struct world *world)
{
    uint32_t choice = below(&world->sim, 100);
    uint32_t rank = below(&world->sim, world->world_size);
    struct commit_actions list = {0};
    if (choice < 25)
        rank_begins(world, rank);
    else if (choice < 70)
        stage_moves(world);
    else if (choice < 90)
        complete_any(world);
    else if (choice < 92 && world->sim.faults) {
        commit_rank_died(&world->machine, &list, world->rank_attempt[rank], rank);
        world->rank_save[rank] = 0;
        perform(world, &list);
    } else if (choice < 93)
        opens(world);
    else if (choice < 94 && world->sim.faults)
        crash(world);
    else if (choice < 97)
        rank_restarts_daemon_side(world);
    else if (choice < 98 && world->sim.faults) {
        commit_abort_all(&world->machine, &list, "simulated");
        perform(world, &list);
    } else if (choice == 98)
        rank_lets_go(world, rank);
    else if (choice == 99)
        one_makes_way(world);
}

/* Without faults: answers arrive, an attempt opens, and a save of all ranks is committed. */
static void heal(struct world *world)
{
    world->sim.faults = 0;
    opens(world);
    for (uint32_t i = 0; i < 2000 && world->machine.state != RUN_OPEN; i++) {
        stage_moves(world);
        complete_any(world);
    }
    require(&world->sim, world->machine.state == RUN_OPEN, "after the faults an attempt opens");
    uint64_t done = world->num_done;
    for (uint32_t i = 0; i < world->world_size && world->machine.state == RUN_OPEN; i++) {
        struct commit_actions list = {0};
        uint64_t id;
        require(&world->sim,
                commit_begin(&world->machine, &list, &id, world->machine.attempt, i, 1) == 0,
                "after the faults a save begins");
        if (i == 0)
            log_save(world, id, 1);
        perform(world, &list);
    }
    for (uint32_t i = 0; i < 2000 && world->num_done == done; i++) {
        stage_moves(world);
        complete_any(world);
    }
    require(&world->sim, world->num_done == done + 1, "after the faults a save is committed");
}

static struct world world_of_all;

static void run_world(uint64_t seed)
{
    struct world *world = &world_of_all;
    memset(world, 0, sizeof *world);
    sim_begin(&world->sim, seed, 40);
    world->world_size = 1;
    opens(world);
    for (uint32_t i = 0; i < 600 && !world->sim.broken; i++) {
        one_event(world);
        check_world(world);
    }
    heal(world);
    check_world(world);
}

TEST(test_commit__no_order_of_events_loses_or_tears_a_checkpoint)
{
    const struct world *w = &world_of_all;
    const struct sim_total totals[] = {{"commits", &w->num_done, true},
                                       {"crashes", &w->num_crashes, false}};
    sim_run_many(&w->sim, run_world, totals, sizeof totals / sizeof totals[0]);
}

TEST(test_commit__the_same_seed_gives_the_same_world)
{
    static struct world first;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        run_world(seed);
        first = world_of_all;
        run_world(seed);
        assert_memory_equal(&first.machine, &world_of_all.machine, sizeof first.machine);
        assert_true(first.num_done == world_of_all.num_done &&
                    first.sim.random == world_of_all.sim.random);
    }
}

SUITE(NULL, NULL)
