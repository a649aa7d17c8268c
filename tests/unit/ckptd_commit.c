/* ckptd_commit.c - the state machine that decides when a checkpoint exists.
 *
 * Goal: behaviour outside the invariants: the saves that a start waits for, the numbers that it
 * takes, the answer to a rank that begins a step again, limits. Method: one event at a time.
 * ckptd_commit_any.c checks the invariants in any order of events, ckptd_sim_nodes.c with several
 * nodes. */
#include "ckptd/machines/commit.h"
#include "proto/base/report.h"
#include "tests/unit/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct commit machine;
static struct commit_actions actions;

static int set_up(void **state)
{
    (void)state;
    memset(&machine, 0, sizeof machine);
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

/* Ranks 1 and 2 are at nodes 3 and 5; the manifest is durable at the coordinator. */
static uint64_t bring_to_placing(void)
{
    open_attempt(3);
    uint64_t save = begin_all(3, 10);
    end_all(3, save);
    commit_durable(&machine, &actions, save, 0);
    commit_durable_at(&machine, &actions, save, 1, 3);
    commit_durable_at(&machine, &actions, save, 1, 4); /* once more, from another node */
    expect_none();
    commit_durable_at(&machine, &actions, save, 2, 5);
    expect_action(COMMIT_SYNC_NAMES);
    commit_names_synced(&machine, &actions, save, 0);
    expect_action(COMMIT_PUBLISH);
    commit_placed(&machine, &actions, save, 3, 0); /* too early: it means nothing */
    commit_published(&machine, &actions, save, OUTCOME_DURABLE, 0);
    expect_action(COMMIT_PLACE);
    return save;
}

TEST_BETWEEN(test_commit__a_save_is_done_when_every_holder_has_the_manifest, set_up, NULL)
{
    uint64_t save = bring_to_placing();
    commit_placed(&machine, &actions, save, 3, 0);
    commit_placed(&machine, &actions, save, 3, 0); /* counts once */
    commit_placed(&machine, &actions, save, 4, 0); /* holds nothing */
    commit_placed(&machine, &actions, save, 0, 0);
    expect_none();
    commit_placed(&machine, &actions, save, 5, 0);
    assert_true(expect_action(COMMIT_DONE).save == save);
    commit_placed(&machine, &actions, save, 5, 0);
    expect_none();
}

TEST_BETWEEN(test_commit__who_follows_has_nothing_in_work, set_up, NULL)
{
    open_attempt(2);
    uint64_t save = begin_all(2, 10), other;
    commit_failed(&machine, &actions, save, 0, ERR_IO, "test");
    expect_action(COMMIT_DISCARD);
    commit_discarded(&machine, &actions, save);
    commit_follow(&machine, machine.attempt + 3, 2);
    assert_int_equal(commit_begin(&machine, &actions, &other, machine.attempt, 0, 5), 0);
    assert_true(other > save); /* ids are not given again */
}

TEST_BETWEEN(test_commit__an_outcome_that_nobody_set_is_no_commit, set_up, NULL)
{
    struct {
        enum commit_outcome outcome;
    } fresh = {0};
    uint64_t save = bring_to_publication();
    commit_published(&machine, &actions, save, fresh.outcome, ERR_MEMORY);
    expect_action(COMMIT_KEEP);
}

TEST_BETWEEN(test_commit__a_new_attempt_waits_for_saves_that_every_rank_ended, set_up, NULL)
{
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

TEST_BETWEEN(test_commit__a_new_attempt_gives_up_saves_that_a_rank_has_not_ended, set_up, NULL)
{
    open_attempt(2);
    uint64_t save = begin_all(2, 5);
    commit_ended(&machine, &actions, save, 0);
    assert_int_equal(commit_open(&machine, &actions, 2), 0);
    expect_action(COMMIT_DISCARD);
    commit_discarded(&machine, &actions, save);
    expect_action(COMMIT_TAKE);
}

TEST_BETWEEN(test_commit__a_second_open_while_settling_spares_what_is_ended, set_up, NULL)
{
    open_attempt(2);
    uint64_t save = begin_all(2, 5);
    end_all(2, save);
    assert_int_equal(commit_open(&machine, &actions, 8), 0);
    assert_int_equal(commit_open(&machine, &actions, 8), 0);
    expect_none();
    make_all_durable(2, save);
    expect_action(COMMIT_SYNC_NAMES);
}

TEST_BETWEEN(test_commit__an_open_while_a_number_is_taken_takes_another, set_up, NULL)
{
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

TEST_BETWEEN(test_commit__a_taken_number_is_passed_over, set_up, NULL)
{
    assert_int_equal(commit_open(&machine, &actions, 1), 0);
    assert_int_equal(expect_action(COMMIT_TAKE).number, 1);
    commit_taken(&machine, &actions, 1, ERR_EXISTS);
    assert_int_equal(expect_action(COMMIT_TAKE).number, 2);
    commit_taken(&machine, &actions, 2, ERR_IO);
    assert_int_equal(expect_action(COMMIT_NOT_OPENED).error, ERR_IO);
}

TEST_BETWEEN(test_commit__a_step_that_all_know_to_be_given_up_is_begun_again, set_up, NULL)
{
    uint64_t first, again;
    open_attempt(2);
    assert_int_equal(commit_begin(&machine, &actions, &first, 1, 0, 10), 0);
    commit_failed(&machine, &actions, first, 0, ERR_IO, "test");
    expect_action(COMMIT_DISCARD);
    /* Rank 0 still copies: a late rank cannot begin a save that it would mistake for the same
     * one. */
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

TEST_BETWEEN(test_commit__a_step_that_may_have_a_manifest_is_not_begun_again, set_up, NULL)
{
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

TEST_BETWEEN(test_commit__a_death_after_the_end_harms_nothing, set_up, NULL)
{
    open_attempt(2);
    uint64_t save = begin_all(2, 5);
    commit_ended(&machine, &actions, save, 0);
    commit_rank_died(&machine, &actions, 1, 0);
    expect_none();
    commit_rank_died(&machine, &actions, 1, 1);
    assert_int_equal(expect_action(COMMIT_DISCARD).rank, 1);
}

TEST_BETWEEN(test_commit__too_many_saves_are_busy, set_up, NULL)
{
    uint64_t save;
    open_attempt(1);
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++) {
        save = begin_all(1, i + 1);
        commit_ended(&machine, &actions, save, 0);
    }
    assert_int_equal(commit_begin(&machine, &actions, &save, 1, 0, 100), ERR_BUSY);
    expect_none();
}

TEST_BETWEEN(test_commit__the_largest_world_commits_and_a_larger_one_is_refused, set_up, NULL)
{
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

SUITE(NULL, NULL)
