/* ckptd_commit.c - the state machine that decides when a checkpoint exists.
 *
 * Goal: the transitions drawn in commit.c, and its invariants I1 to I8 under any order of
 * events. Method: first single transitions. Then a simulation: a seeded scheduler plays ranks, disk
 * and operator against the machine; completions come late, in any order, twice, or for saves that
 * are gone; I/O fails or its outcome is unknown; ranks die; the daemon crashes at any point and
 * starts from what its disk shows. After every event the world is checked: no acknowledged
 * checkpoint is lost, and nothing with a manifest lacks a file. At the end the faults stop and
 * everything must settle. Replay one world with SIM_SEED=<seed>; SIM_WORLDS=<n> sets how many. */
#include "ckptd/run/commit.h"
#include "proto/report.h"
#include "tests/unit/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- single transitions ---- */

static struct commit machine;
static struct commit_actions actions;

static int set_up(void **state)
{
    (void)state;
    commit_init(&machine, 0);
    actions.count = 0;
    return 0;
}

/* Takes the one action that is expected. */
static struct commit_action expect_action(enum commit_action_kind kind)
{
    assert_int_equal(actions.count, 1);
    assert_int_equal(actions.items[0].kind, kind);
    actions.count = 0;
    return actions.items[0];
}

static void expect_none(void)
{
    assert_int_equal(actions.count, 0);
}

static void open_attempt(uint32_t world_size)
{
    assert_int_equal(commit_open(&machine, &actions, world_size), 0);
    struct commit_action take = expect_action(COMMIT_TAKE);
    commit_taken(&machine, &actions, take.number, 0);
    assert_int_equal(expect_action(COMMIT_OPENED).number, take.number);
}

static uint64_t begin_all(uint32_t world_size, uint64_t step)
{
    uint64_t save = 0, first = 0;
    for (uint32_t rank = 0; rank < world_size; rank++) {
        assert_int_equal(commit_begin(&machine, &actions, &save, machine.attempt, rank, step), 0);
        first = rank == 0 ? save : first;
        assert_true(save == first);
    }
    expect_none();
    return save;
}

static void end_all(uint32_t world_size, uint64_t save)
{
    for (uint32_t rank = 0; rank < world_size; rank++)
        commit_ended(&machine, &actions, save, rank);
}

static void make_all_durable(uint32_t world_size, uint64_t save)
{
    for (uint32_t rank = 0; rank < world_size; rank++)
        commit_durable(&machine, &actions, save, rank);
}

/* A save of one rank whose manifest is about to be written. */
static uint64_t bring_to_publication(void)
{
    open_attempt(1);
    uint64_t save = begin_all(1, 1);
    end_all(1, save);
    make_all_durable(1, save);
    expect_action(COMMIT_SYNC_NAMES);
    commit_names_synced(&machine, &actions, save, 0);
    expect_action(COMMIT_PUBLISH);
    return save;
}

static void test_commit__a_save_is_done_after_shards_names_and_manifest(void **state)
{
    (void)state;
    open_attempt(2);
    uint64_t save = begin_all(2, 10);
    end_all(2, save);
    expect_none();
    commit_durable(&machine, &actions, save, 0);
    expect_none();
    commit_durable(&machine, &actions, save, 1);
    expect_action(COMMIT_SYNC_NAMES);
    commit_names_synced(&machine, &actions, save, 0);
    expect_action(COMMIT_PUBLISH);
    commit_published(&machine, &actions, save, OUTCOME_DURABLE, 0);
    assert_true(expect_action(COMMIT_DONE).save == save);
    assert_int_equal(commit_num_saves(&machine), 0);
}

static void test_commit__a_shard_is_not_durable_before_its_rank_ended(void **state)
{
    (void)state;
    open_attempt(1);
    uint64_t save = begin_all(1, 1);
    commit_durable(&machine, &actions, save, 0);
    expect_none();
    assert_int_equal(commit_find(&machine, save)->ranks[0], RANK_BEGUN);
}

static void test_commit__a_failed_sync_of_names_discards(void **state)
{
    (void)state;
    open_attempt(1);
    uint64_t save = begin_all(1, 1);
    end_all(1, save);
    make_all_durable(1, save);
    expect_action(COMMIT_SYNC_NAMES);
    commit_names_synced(&machine, &actions, save, ERR_IO);
    assert_int_equal(expect_action(COMMIT_DISCARD).error, ERR_IO);
    commit_names_synced(&machine, &actions, save, 0); /* it never comes back */
    expect_none();
}

static void test_commit__an_unknown_publication_keeps_the_files(void **state)
{
    (void)state;
    uint64_t save = bring_to_publication();
    commit_published(&machine, &actions, save, OUTCOME_UNKNOWN, ERR_IO);
    expect_action(COMMIT_KEEP);
    assert_int_equal(commit_num_saves(&machine), 0);
}

static void test_commit__an_outcome_that_nobody_set_is_no_commit(void **state)
{
    struct {
        enum commit_outcome outcome;
    } fresh = {0};
    (void)state;
    uint64_t save = bring_to_publication();
    commit_published(&machine, &actions, save, fresh.outcome, ERR_MEMORY);
    expect_action(COMMIT_KEEP);
}

static void test_commit__an_absent_publication_discards(void **state)
{
    (void)state;
    uint64_t save = bring_to_publication();
    commit_published(&machine, &actions, save, OUTCOME_ABSENT, ERR_SPACE);
    expect_action(COMMIT_DISCARD);
}

static void test_commit__a_new_attempt_waits_for_saves_that_every_rank_ended(void **state)
{
    (void)state;
    open_attempt(2);
    uint64_t save = begin_all(2, 5);
    end_all(2, save);
    assert_int_equal(commit_open(&machine, &actions, 1), 0);
    expect_none();
    make_all_durable(2, save); /* the old world's size counts */
    expect_action(COMMIT_SYNC_NAMES);
    commit_names_synced(&machine, &actions, save, 0);
    expect_action(COMMIT_PUBLISH);
    commit_published(&machine, &actions, save, OUTCOME_DURABLE, 0);
    assert_int_equal(actions.count, 2);
    assert_int_equal(actions.items[0].kind, COMMIT_DONE);
    assert_int_equal(actions.items[1].kind, COMMIT_TAKE);
    assert_int_equal(actions.items[1].number, 2);
}

static void test_commit__a_new_attempt_gives_up_saves_that_a_rank_has_not_ended(void **state)
{
    (void)state;
    open_attempt(2);
    uint64_t save = begin_all(2, 5);
    commit_ended(&machine, &actions, save, 0);
    assert_int_equal(commit_open(&machine, &actions, 2), 0);
    expect_action(COMMIT_DISCARD);
    commit_discarded(&machine, &actions, save);
    expect_action(COMMIT_TAKE);
}

static void test_commit__a_second_open_while_settling_spares_what_is_ended(void **state)
{
    (void)state;
    open_attempt(2);
    uint64_t save = begin_all(2, 5);
    end_all(2, save);
    assert_int_equal(commit_open(&machine, &actions, 8), 0);
    assert_int_equal(commit_open(&machine, &actions, 8), 0);
    expect_none();
    make_all_durable(2, save);
    expect_action(COMMIT_SYNC_NAMES);
}

static void test_commit__an_open_while_a_number_is_taken_takes_another(void **state)
{
    (void)state;
    assert_int_equal(commit_open(&machine, &actions, 2), 0);
    assert_int_equal(expect_action(COMMIT_TAKE).number, 1);
    assert_int_equal(commit_open(&machine, &actions, 3), 0);
    expect_none();
    commit_taken(&machine, &actions, 1, 0);
    assert_int_equal(expect_action(COMMIT_TAKE).number, 2);
    commit_taken(&machine, &actions, 2, 0);
    assert_int_equal(expect_action(COMMIT_OPENED).number, 2);
    assert_int_equal(machine.world_size, 3);
}

static void test_commit__a_taken_number_is_passed_over(void **state)
{
    (void)state;
    assert_int_equal(commit_open(&machine, &actions, 1), 0);
    assert_int_equal(expect_action(COMMIT_TAKE).number, 1);
    commit_taken(&machine, &actions, 1, ERR_EXISTS);
    assert_int_equal(expect_action(COMMIT_TAKE).number, 2);
    commit_taken(&machine, &actions, 2, ERR_IO);
    assert_int_equal(expect_action(COMMIT_NOT_OPENED).error, ERR_IO);
}

static void test_commit__an_older_attempt_is_stale(void **state)
{
    (void)state;
    uint64_t save;
    open_attempt(1);
    open_attempt(1);
    assert_int_equal(commit_begin(&machine, &actions, &save, 1, 0, 1), ERR_STALE);
    assert_int_equal(commit_resume(&machine, 1, 1), ERR_STALE);
}

static void test_commit__a_restart_goes_on_with_the_newest_attempt_only(void **state)
{
    (void)state;
    commit_init(&machine, 7);
    assert_int_equal(commit_resume(&machine, 6, 2), ERR_STALE);
    assert_int_equal(commit_resume(&machine, 8, 2), ERR_STALE);
    assert_int_equal(commit_resume(&machine, 7, 2), 0);
    begin_all(2, 3);
}

static void test_commit__a_rank_that_goes_on_gives_up_the_save_it_left(void **state)
{
    (void)state;
    uint64_t first, second;
    open_attempt(2);
    assert_int_equal(commit_begin(&machine, &actions, &first, 1, 0, 10), 0);
    assert_int_equal(commit_begin(&machine, &actions, &second, 1, 1, 20), 0);
    assert_true(expect_action(COMMIT_DISCARD).save == first);
    /* Rank 0 comes to the same save; a rank cannot come back to the one that is over. */
    assert_int_equal(commit_begin(&machine, &actions, &second, 1, 0, 20), 0);
    assert_int_equal(commit_begin(&machine, &actions, &second, 1, 1, 10), ERR_EXISTS);
}

static void test_commit__a_step_that_all_know_to_be_given_up_is_begun_again(void **state)
{
    (void)state;
    uint64_t first, again;
    open_attempt(2);
    assert_int_equal(commit_begin(&machine, &actions, &first, 1, 0, 10), 0);
    commit_failed(&machine, &actions, first, 0, ERR_IO, "test");
    expect_action(COMMIT_DISCARD);
    /* Rank 0 still copies: a late rank cannot begin what it would take for the same save. */
    assert_int_equal(commit_begin(&machine, &actions, &again, 1, 1, 10), ERR_ABORTED);
    commit_let_go(&machine, 1, 0);
    /* The files of the first save still go. */
    assert_int_equal(commit_begin(&machine, &actions, &again, 1, 1, 10), ERR_BUSY);
    commit_discarded(&machine, &actions, first);
    assert_int_equal(commit_begin(&machine, &actions, &again, 1, 1, 10), 0);
    assert_int_not_equal(again, first);
    assert_int_equal(begin_all(1, 10), again); /* rank 0 joins */
    expect_none();
}

static void test_commit__a_rank_that_begins_a_step_again_gives_up_what_it_had(void **state)
{
    (void)state;
    uint64_t save;
    open_attempt(2);
    begin_all(2, 10);
    assert_int_equal(commit_begin(&machine, &actions, &save, 1, 0, 10), ERR_ABORTED);
    commit_leave(&machine, &actions, 0, 10);
    save = expect_action(COMMIT_DISCARD).save;
    commit_discarded(&machine, &actions, save);
    assert_int_equal(commit_begin(&machine, &actions, &save, 1, 0, 10), ERR_ABORTED); /* rank 1 */
    commit_let_go(&machine, 1, 1);
    begin_all(2, 10);
}

static void test_commit__a_step_that_may_have_a_manifest_is_not_begun_again(void **state)
{
    (void)state;
    for (int outcome = OUTCOME_UNKNOWN; outcome <= OUTCOME_DURABLE; outcome++) {
        set_up(NULL);
        open_attempt(1);
        uint64_t save = begin_all(1, 10);
        assert_int_equal(commit_begin(&machine, &actions, &save, 1, 0, 10), ERR_ABORTED);
        commit_ended(&machine, &actions, save, 0);
        assert_int_equal(commit_begin(&machine, &actions, &save, 1, 0, 10), ERR_EXISTS);
        commit_durable(&machine, &actions, save, 0);
        commit_names_synced(&machine, &actions, save, 0);
        commit_published(&machine, &actions, save, outcome, ERR_IO);
        commit_discarded(&machine, &actions, save);
        assert_int_equal(commit_begin(&machine, &actions, &save, 1, 0, 10),
                         outcome == OUTCOME_ABSENT ? 0 : ERR_EXISTS);
    }
}

static void test_commit__a_death_after_the_end_harms_nothing(void **state)
{
    (void)state;
    open_attempt(2);
    uint64_t save = begin_all(2, 5);
    commit_ended(&machine, &actions, save, 0);
    commit_rank_died(&machine, &actions, 1, 0);
    expect_none();
    commit_rank_died(&machine, &actions, 1, 1);
    assert_int_equal(expect_action(COMMIT_DISCARD).rank, 1);
}

static void test_commit__too_many_saves_are_busy(void **state)
{
    (void)state;
    uint64_t save;
    open_attempt(1);
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++) {
        save = begin_all(1, i + 1);
        commit_ended(&machine, &actions, save, 0);
    }
    assert_int_equal(commit_begin(&machine, &actions, &save, 1, 0, 100), ERR_BUSY);
    expect_none();
}

static void test_commit__the_largest_world_commits_and_a_larger_one_is_refused(void **state)
{
    (void)state;
    assert_int_equal(commit_open(&machine, &actions, COMMIT_RANKS_MAX + 1), ERR_INVALID);
    expect_none();
    open_attempt(COMMIT_RANKS_MAX);
    uint64_t save = begin_all(COMMIT_RANKS_MAX, 1);
    end_all(COMMIT_RANKS_MAX, save);
    make_all_durable(COMMIT_RANKS_MAX - 1, save);
    expect_none();
    commit_durable(&machine, &actions, save, COMMIT_RANKS_MAX - 1);
    expect_action(COMMIT_SYNC_NAMES);
}

static void test_commit__ranks_of_a_larger_world_before_count_for_nothing(void **state)
{
    (void)state;
    open_attempt(3);
    uint64_t save = begin_all(3, 7);
    end_all(3, save);
    commit_failed(&machine, &actions, save, 0, ERR_IO, "test");
    expect_action(COMMIT_DISCARD);
    commit_discarded(&machine, &actions, save);
    open_attempt(2);
    save = begin_all(2, 1); /* earlier than what the larger world began */
    end_all(2, save);
    commit_ended(&machine, &actions, save, 2);
    commit_durable(&machine, &actions, save, 2); /* it had ended then */
    commit_rank_died(&machine, &actions, machine.attempt, 2);
    expect_none();
    assert_int_equal(commit_find(&machine, save)->num_durable, 0);
    commit_durable(&machine, &actions, save, 0);
    expect_none();
    commit_durable(&machine, &actions, save, 1);
    expect_action(COMMIT_SYNC_NAMES);
}

/* ---- the simulation ---- */

#define RANKS_MAX 5u
#define SAVES_LOGGED 4096u
#define PENDING_MAX 64u

/* One save as the disk and an outside observer see it. */
struct truth {
    uint64_t id, step, attempt;
    uint32_t world_size;
    bool shard_durable[RANKS_MAX];
    bool names_durable, removed;
    bool handed_out; /* to PUBLISH */
    bool manifest;   /* present and durable */
    bool maybe;      /* publication unknown: a crash decides */
    bool acknowledged;
    bool live;   /* in the machine */
    bool listed; /* a restart has found it */
};

/* An answer that is on its way to the machine. */
struct pending {
    enum commit_action_kind kind;
    uint64_t save, number;
};

struct world {
    uint64_t seed, random;
    struct commit machine;
    struct truth log[SAVES_LOGGED];
    uint32_t num_saves;
    struct pending pending[PENDING_MAX];
    uint32_t num_pending;
    uint64_t durable_attempt, answered_attempt;
    uint64_t rank_attempt[RANKS_MAX], rank_step[RANKS_MAX]; /* what each rank believes */
    uint64_t rank_save[RANKS_MAX];                          /* that it copies; 0: nothing */
    uint32_t world_size;
    uint32_t faults;                                         /* per thousand; 0: heal */
    uint64_t num_done, num_crashes, done_attempt, done_step; /* the last: of the newest commit */
    const char *broken; /* the first invariant that did not hold */
};

static uint64_t roll(struct world *world)
{
    return splitmix64(&world->random);
}

static uint32_t below(struct world *world, uint32_t limit)
{
    return (uint32_t)(roll(world) % limit);
}

static bool fault(struct world *world)
{
    return below(world, 1000) < world->faults;
}

static void require(struct world *world, bool holds, const char *what)
{
    if (!holds && !world->broken)
        world->broken = what;
}

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
        require(world, truth != NULL, "an action concerns a live save");
        if (!truth)
            return;
    }
    switch (action->kind) {
    case COMMIT_SYNC_NAMES:
        require(world, all_durable(truth), "I1: shards before names");
        break;
    case COMMIT_PUBLISH:
        require(world, all_durable(truth) && truth->names_durable, "I1: all before the manifest");
        truth->handed_out = true;
        break;
    case COMMIT_DONE:
        require(world, truth->manifest, "I2: done means durable");
        require(world, truth->attempt != world->done_attempt || truth->step > world->done_step,
                "I8: commits come in the order of steps");
        world->done_attempt = truth->attempt;
        world->done_step = truth->step;
        truth->acknowledged = true;
        truth->live = false;
        world->num_done++;
        return;
    case COMMIT_DISCARD:
        require(world, !truth->manifest && !truth->maybe, "I3: no file goes that a manifest names");
        break;
    case COMMIT_KEEP:
        truth->live = false;
        return;
    case COMMIT_OPENED:
        require(world, commit_num_saves(&world->machine) == 0, "I4: settled before it is answered");
        require(world, action->number > world->answered_attempt, "I5: attempts grow");
        require(world, action->number <= world->durable_attempt, "I5: durable before answered");
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
        require(world, commit_num_saves(&world->machine) == 0, "I4: settled before it is taken");
        break;
    }
    require(world, world->num_pending < PENDING_MAX, "answers on their way are bounded");
    if (world->num_pending < PENDING_MAX)
        world->pending[world->num_pending++] =
            (struct pending){action->kind, action->save, action->number};
}

static void perform(struct world *world, const struct commit_actions *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        perform_one(world, &list->items[i]);
}

/* The disk does what was asked, or not, and the machine hears of it. */
static void complete(struct world *world, const struct pending *pending)
{
    struct commit_actions list = {0};
    struct truth *truth = find_truth(world, pending->save);
    bool fails = fault(world);
    switch (pending->kind) {
    case COMMIT_SYNC_NAMES:
        if (truth && !fails)
            truth->names_durable = true;
        commit_names_synced(&world->machine, &list, pending->save, fails ? ERR_IO : 0);
        break;
    case COMMIT_PUBLISH: {
        enum commit_outcome outcome = !fails                 ? OUTCOME_DURABLE
                                      : below(world, 2) == 0 ? OUTCOME_ABSENT
                                                             : OUTCOME_UNKNOWN;
        if (truth) {
            truth->manifest = outcome == OUTCOME_DURABLE;
            truth->maybe = outcome == OUTCOME_UNKNOWN;
        }
        commit_published(&world->machine, &list, pending->save, outcome, fails ? ERR_IO : 0);
        break;
    }
    case COMMIT_DISCARD:
        if (truth) {
            truth->removed = true;
            truth->live = false;
        }
        commit_discarded(&world->machine, &list, pending->save);
        break;
    default: { /* COMMIT_TAKE */
        int error = fails ? (below(world, 2) ? ERR_IO : ERR_EXISTS) : 0;
        if (error != ERR_IO && pending->number > world->durable_attempt)
            world->durable_attempt = pending->number;
        commit_taken(&world->machine, &list, pending->number, error);
    }
    }
    perform(world, &list);
}

/* The answer once more, as a success: whatever the first one was, it changes nothing. */
static void repeat(struct world *world, const struct pending *pending)
{
    struct commit_actions list = {0};
    if (pending->kind == COMMIT_SYNC_NAMES)
        commit_names_synced(&world->machine, &list, pending->save, 0);
    else if (pending->kind == COMMIT_PUBLISH)
        commit_published(&world->machine, &list, pending->save, OUTCOME_DURABLE, 0);
    else if (pending->kind == COMMIT_DISCARD)
        commit_discarded(&world->machine, &list, pending->save);
    else
        commit_taken(&world->machine, &list, pending->number, 0);
    require(world, list.count == 0, "a second answer changes nothing");
}

static void complete_any(struct world *world)
{
    if (world->num_pending == 0)
        return;
    uint32_t index = below(world, world->num_pending);
    struct pending pending = world->pending[index];
    world->pending[index] = world->pending[--world->num_pending];
    complete(world, &pending);
    if (fault(world))
        repeat(world, &pending);
}

/* begin.c asks the catalog, too. */
static bool is_listed(const struct world *world, uint64_t attempt, uint64_t step)
{
    for (uint32_t i = 0; i < world->num_saves; i++)
        if (world->log[i].listed && world->log[i].attempt == attempt && world->log[i].step == step)
            return true;
    return false;
}

/* The first rank of a save: nothing is left of those of the same step before. */
static void log_save(struct world *world, uint64_t id, uint64_t step)
{
    uint64_t attempt = world->machine.attempt;
    for (uint32_t i = 0; i < world->num_saves; i++) {
        const struct truth *former = &world->log[i];
        if (former->attempt != attempt || former->step != step)
            continue;
        require(world, former->removed && !former->live, "I6: the files of a step are of one save");
        require(world, !former->manifest && !former->maybe, "I9: what may be committed stays");
    }
    require(world, world->num_saves < SAVES_LOGGED, "the log is long enough");
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
    uint64_t step = world->rank_step[rank] + (uint64_t[]){0, 0, 1, 1, 1, 1, 1, 2}[below(world, 8)];
    if (is_listed(world, attempt, step))
        return;
    int may = commit_may_begin(&world->machine, attempt, rank, step);
    if (may == ERR_ABORTED && attempt == world->machine.attempt) {
        commit_leave(&world->machine, &list, rank, step);
        world->rank_save[rank] = 0;
    }
    int error = commit_begin(&world->machine, &list, &id, attempt, rank, step);
    require(world, may == error || may == ERR_ABORTED, "may_begin and begin agree");
    if (attempt != world->machine.attempt || world->machine.state != RUN_OPEN)
        require(world, error == ERR_STALE, "I4: only the open attempt saves");
    if (error == 0 || error == ERR_ABORTED)
        world->rank_step[rank] = step;
    perform(world, &list);
    if (error != 0)
        return;
    if (!find_truth(world, id))
        log_save(world, id, step);
    world->rank_save[rank] = id;
    for (uint32_t i = 0; i < world->world_size; i++)
        require(world,
                world->rank_attempt[i] != attempt || world->rank_step[i] != step ||
                    world->rank_save[i] == 0 || world->rank_save[i] == id,
                "I6: all ranks that copy a step mean the same save");
}

/* A rank gives up what it copies, or has copied all of a save that is over. */
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

static struct truth *any_live(struct world *world)
{
    uint32_t count = 0;
    struct truth *chosen = NULL;
    uint32_t first = world->num_saves > 32 ? world->num_saves - 32 : 0;
    for (uint32_t i = first; i < world->num_saves; i++)
        if (world->log[i].live && below(world, ++count) == 0)
            chosen = &world->log[i];
    return chosen;
}

/* The stage of some rank goes on: END, or a durable shard; or it fails. */
static void stage_moves(struct world *world)
{
    struct commit_actions list = {0};
    struct truth *truth = any_live(world);
    if (!truth)
        return;
    const struct commit_save *save = commit_find(&world->machine, truth->id);
    uint32_t rank = below(world, truth->world_size);
    if (!save)
        return;
    if (fault(world))
        commit_failed(&world->machine, &list, truth->id, rank, ERR_IO, "simulated");
    else if (save->ranks[rank] == RANK_BEGUN) {
        commit_ended(&world->machine, &list, truth->id, rank);
        if (world->rank_save[rank] == truth->id)
            world->rank_save[rank] = 0;
    } else if (save->ranks[rank] == RANK_ENDED && save->state == COMMIT_STAGING) {
        truth->shard_durable[rank] = true;
        commit_durable(&world->machine, &list, truth->id, rank);
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
        if (world->pending[i].kind == COMMIT_TAKE && below(world, 2) == 0 &&
            world->pending[i].number > world->durable_attempt)
            world->durable_attempt = world->pending[i].number;
    }
    world->num_pending = 0;
    for (uint32_t i = 0; i < world->num_saves; i++) {
        struct truth *truth = &world->log[i];
        if (truth->maybe) {
            truth->manifest = below(world, 2) == 0;
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
        require(world, error == ERR_STALE, "only the newest attempt resumes");
}

static void opens(struct world *world)
{
    struct commit_actions list = {0};
    world->world_size = 1 + below(world, RANKS_MAX);
    require(world, commit_open(&world->machine, &list, world->world_size) == 0, "open is accepted");
    perform(world, &list);
}

static void check_world(struct world *world)
{
    for (uint32_t i = 0; i < world->num_saves; i++) {
        const struct truth *truth = &world->log[i];
        require(world, !truth->acknowledged || (truth->manifest && !truth->removed),
                "no acknowledged checkpoint is lost");
        require(world, !truth->manifest || (all_durable(truth) && truth->names_durable),
                "whatever has a manifest is whole");
        require(world, !truth->manifest || !truth->removed, "no file of a manifest is removed");
    }
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++) {
        for (uint32_t j = 0; j < i; j++) {
            const struct commit_save *a = &world->machine.saves[i], *b = &world->machine.saves[j];
            bool both = a->state != COMMIT_FREE && b->state != COMMIT_FREE &&
                        a->state != COMMIT_DISCARDING && b->state != COMMIT_DISCARDING;
            require(world, !both || a->step != b->step, "I6: one save of a step");
        }
    }
}

static void one_event(struct world *world)
{
    uint32_t choice = below(world, 100);
    uint32_t rank = below(world, world->world_size);
    struct commit_actions list = {0};
    if (choice < 25)
        rank_begins(world, rank);
    else if (choice < 70)
        stage_moves(world);
    else if (choice < 90)
        complete_any(world);
    else if (choice < 92 && world->faults) {
        commit_rank_died(&world->machine, &list, world->rank_attempt[rank], rank);
        world->rank_save[rank] = 0;
        perform(world, &list);
    } else if (choice < 93)
        opens(world);
    else if (choice < 94 && world->faults)
        crash(world);
    else if (choice < 97)
        rank_restarts_daemon_side(world);
    else if (choice < 98 && world->faults) {
        commit_abort_all(&world->machine, &list, "simulated");
        perform(world, &list);
    } else if (choice == 98)
        rank_lets_go(world, rank);
}

/* Without faults: answers arrive, an attempt opens, and a save of all ranks is committed. */
static void heal(struct world *world)
{
    world->faults = 0;
    opens(world);
    for (uint32_t i = 0; i < 2000 && world->machine.state != RUN_OPEN; i++) {
        stage_moves(world);
        complete_any(world);
    }
    require(world, world->machine.state == RUN_OPEN, "after the faults an attempt opens");
    uint64_t done = world->num_done;
    for (uint32_t i = 0; i < world->world_size && world->machine.state == RUN_OPEN; i++) {
        struct commit_actions list = {0};
        uint64_t id;
        require(world, commit_begin(&world->machine, &list, &id, world->machine.attempt, i, 1) == 0,
                "after the faults a save begins");
        if (i == 0)
            log_save(world, id, 1);
        perform(world, &list);
    }
    for (uint32_t i = 0; i < 2000 && world->num_done == done; i++) {
        stage_moves(world);
        complete_any(world);
    }
    require(world, world->num_done == done + 1, "after the faults a save is committed");
}

static void run_world(struct world *world, uint64_t seed)
{
    memset(world, 0, sizeof *world);
    world->seed = world->random = seed;
    world->world_size = 1;
    world->faults = below(world, 4) * 40; /* swarm: none, few, many */
    opens(world);
    for (uint32_t i = 0; i < 600 && !world->broken; i++) {
        one_event(world);
        check_world(world);
    }
    heal(world);
    check_world(world);
}

static void test_commit__no_order_of_events_loses_or_tears_a_checkpoint(void **state)
{
    (void)state;
    static struct world world;
    const char *one = getenv("SIM_SEED"), *many = getenv("SIM_WORLDS");
    uint64_t count = many ? strtoull(many, NULL, 10) : 10000;
    uint64_t done = 0, crashes = 0;
    for (uint64_t i = 0; i < (one ? 1 : count); i++) {
        uint64_t seed = one ? strtoull(one, NULL, 10) : 1 + i;
        run_world(&world, seed);
        done += world.num_done;
        crashes += world.num_crashes;
        if (world.broken)
            fail_msg("SIM_SEED=%llu breaks: %s", (unsigned long long)seed, world.broken);
    }
    print_message("%llu worlds, %llu commits, %llu crashes\n", (unsigned long long)count,
                  (unsigned long long)done, (unsigned long long)crashes);
    assert_true(done > 0);
}

static void test_commit__the_same_seed_gives_the_same_world(void **state)
{
    (void)state;
    static struct world first, second;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        run_world(&first, seed);
        run_world(&second, seed);
        assert_memory_equal(&first.machine, &second.machine, sizeof first.machine);
        assert_true(first.num_done == second.num_done && first.random == second.random);
    }
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup(name, set_up)
    const struct CMUnitTest tests[] = {
        CASE(test_commit__a_save_is_done_after_shards_names_and_manifest),
        CASE(test_commit__a_shard_is_not_durable_before_its_rank_ended),
        CASE(test_commit__a_failed_sync_of_names_discards),
        CASE(test_commit__an_unknown_publication_keeps_the_files),
        CASE(test_commit__an_outcome_that_nobody_set_is_no_commit),
        CASE(test_commit__an_absent_publication_discards),
        CASE(test_commit__a_new_attempt_waits_for_saves_that_every_rank_ended),
        CASE(test_commit__a_new_attempt_gives_up_saves_that_a_rank_has_not_ended),
        CASE(test_commit__a_second_open_while_settling_spares_what_is_ended),
        CASE(test_commit__an_open_while_a_number_is_taken_takes_another),
        CASE(test_commit__a_taken_number_is_passed_over),
        CASE(test_commit__an_older_attempt_is_stale),
        CASE(test_commit__a_restart_goes_on_with_the_newest_attempt_only),
        CASE(test_commit__a_rank_that_goes_on_gives_up_the_save_it_left),
        CASE(test_commit__a_step_that_all_know_to_be_given_up_is_begun_again),
        CASE(test_commit__a_rank_that_begins_a_step_again_gives_up_what_it_had),
        CASE(test_commit__a_step_that_may_have_a_manifest_is_not_begun_again),
        CASE(test_commit__a_death_after_the_end_harms_nothing),
        CASE(test_commit__too_many_saves_are_busy),
        CASE(test_commit__the_largest_world_commits_and_a_larger_one_is_refused),
        CASE(test_commit__ranks_of_a_larger_world_before_count_for_nothing),
        CASE(test_commit__no_order_of_events_loses_or_tears_a_checkpoint),
        CASE(test_commit__the_same_seed_gives_the_same_world),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
