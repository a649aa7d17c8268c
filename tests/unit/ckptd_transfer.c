/* ckptd_transfer.c - the machine that copies a checkpoint into another tier, and the choice of the
 * next checkpoint.
 *
 * Goal: behaviour outside the invariants of transfer.c: its pauses, calls that come late or
 * twice, shards that a tier has lost; the order of pick.c. Method: one event at a time.
 * ckptd_sim.c checks the invariants, with requests of two nodes to a bucket that fail, are late,
 * or are not answered. */
#include "ckptd/machines/pick.h"
#include "ckptd/machines/transfer.h"
#include "proto/base/report.h"
#include "tests/unit/suite.h"

#define RETRY_MS 100

/* No action is requested, and the machine's state is unchanged. */
static void expect_nothing(struct transfer *transfer, enum transfer_state before,
                           struct transfer_action action)
{
    assert_int_equal(action.kind, TRANSFER_NOTHING);
    assert_int_equal(transfer->state, before);
}

TEST(test_transfer__calls_that_come_late_or_twice_change_nothing)
{
    struct transfer transfer = {0};
    for (uint32_t at = 0; at < 5; at++) {
        if (at == 1)
            transfer_begin(&transfer, 1, RETRY_MS);
        else if (at == 2)
            transfer_claimed(&transfer, PUBLICATION_DURABLE);
        else if (at == 3)
            transfer_copied(&transfer, 0, 0, false);
        else if (at == 4)
            transfer_named(&transfer, 0);
        enum transfer_state state = transfer.state;
        if (at > 0)
            expect_nothing(&transfer, state, transfer_begin(&transfer, 1, RETRY_MS));
        if (at != 1)
            expect_nothing(&transfer, state, transfer_claimed(&transfer, PUBLICATION_DURABLE));
        if (at != 2)
            expect_nothing(&transfer, state, transfer_copied(&transfer, 0, 0, false));
        if (at != 3)
            expect_nothing(&transfer, state, transfer_named(&transfer, 0));
        if (at != 4)
            expect_nothing(&transfer, state, transfer_published(&transfer, PUBLICATION_DURABLE));
        expect_nothing(&transfer, state, transfer_settled(&transfer, PUBLICATION_DURABLE));
        expect_nothing(&transfer, state, transfer_rested(&transfer));
    }
}

TEST(test_transfer__pauses_double_up_to_a_bound_and_begin_anew)
{
    struct transfer transfer = {0};
    transfer_begin(&transfer, 1, RETRY_MS);
    for (unsigned i = 0; i < 10; i++) {
        struct transfer_action action = transfer_claimed(&transfer, PUBLICATION_UNKNOWN);
        assert_int_equal(action.kind, TRANSFER_REST);
        assert_int_equal(action.ms, RETRY_MS << (i < TRANSFER_DOUBLINGS ? i : TRANSFER_DOUBLINGS));
        assert_int_equal(transfer_rested(&transfer).kind, TRANSFER_CLAIM);
    }
    assert_int_equal(transfer_claimed(&transfer, PUBLICATION_DURABLE).kind, TRANSFER_COPY);
    assert_int_equal(transfer_copied(&transfer, 0, ERR_SPACE, false).ms, RETRY_MS);
}

/* ---- pick ---- */

static int64_t next_of(enum pick_what what, struct pick_item *items, uint32_t count, uint32_t *left)
{
    const struct pick_rule rule = {what, 10};
    pick_mark(&rule, items, count);
    return pick_next(items, count, left);
}

TEST(test_pick__the_newest_goes_first_but_behind_what_is_waited_for)
{
    struct pick_item items[] = {{.step = 31, .is_kept = true, .is_far = true},
                                {.step = 30, .is_kept = true, .is_local = true},
                                {.step = 25, .is_kept = true, .is_local = true},
                                {.step = 20, .is_kept = true, .is_local = true},
                                {.step = 10, .is_kept = true, .is_local = true, .is_far = true}};
    uint32_t left;
    assert_int_equal(next_of(PICK_ALL, items, 5, &left), 1);
    assert_int_equal(left, 3);
    items[2].is_wanted = true;
    assert_int_equal(next_of(PICK_ALL, items, 5, &left), 2);
    items[2].is_far = true;
    items[1].is_given_up = true;
    assert_int_equal(next_of(PICK_ALL, items, 5, &left), 3);
    assert_int_equal(left, 1);
    items[3].is_local = false; /* removed, or damaged */
    assert_int_equal(next_of(PICK_ALL, items, 5, &left), -1);
    assert_int_equal(left, 0);
}

TEST(test_pick__the_rules_say_which_go_and_who_waits_overrules_them)
{
    struct pick_item items[] = {{.step = 35, .is_kept = true, .is_local = true},
                                {.step = 30, .is_kept = true, .is_local = true},
                                {.step = 25, .is_kept = true, .is_local = true}};
    uint32_t left;
    assert_int_equal(next_of(PICK_LAST, items, 3, &left), 0);
    assert_int_equal(next_of(PICK_EVERY, items, 3, &left), 1);
    items[1].is_kept = false; /* the rules there do not keep it */
    assert_int_equal(next_of(PICK_EVERY, items, 3, &left), -1);
    items[1].is_kept = items[0].is_far = items[1].is_far = true;
    assert_int_equal(next_of(PICK_LAST, items, 3, &left), -1);
    assert_int_equal(next_of(PICK_EVERY, items, 3, &left), -1);
    items[2].is_kept = false;
    items[2].is_wanted = true;
    assert_int_equal(next_of(PICK_LAST, items, 3, &left), 2);
}

/* The tier was restarted: everything is verified or sent once more, after a new claim. */
TEST(test_transfer__shards_that_were_lost_are_sent_again_before_the_manifest)
{
    struct transfer transfer = {0};
    transfer_begin(&transfer, 2, RETRY_MS);
    transfer_claimed(&transfer, PUBLICATION_DURABLE);
    transfer_copied(&transfer, 0, 0, false);
    assert_int_equal(transfer_copied(&transfer, 1, 0, false).kind, TRANSFER_NAMES);
    assert_int_equal(transfer_named(&transfer, 0).kind, TRANSFER_PUBLISH);
    assert_int_equal(transfer_published(&transfer, PUBLICATION_LOST).kind, TRANSFER_REST);
    assert_int_equal(transfer_rested(&transfer).kind, TRANSFER_CLAIM);
    struct transfer_action action = transfer_claimed(&transfer, PUBLICATION_DURABLE);
    assert_int_equal(action.kind, TRANSFER_COPY);
    assert_int_equal(action.shard, 0);
}

SUITE(NULL, NULL)
