/* ckptd_precommit.c - what becomes of a save whose bytes go before its commit
 * (ckptd/machines/precommit.c).
 *
 * Goal: precommit.E1 to E7. Method: each state, with and without a claim under way, meets each
 * event; the table has what comes of it, and of what is not in the table nothing comes. That it
 * holds together with saves and replications is told by ckptd_sim_nodes.c. */
#include "ckptd/machines/precommit.h"
#include "tests/unit/suite.h"

static const int save, later;

enum event {
    BEGIN,
    OURS,
    NOT_OURS,
    AT_REST,
    MOVES, /* a copy came to rest, and another has not */
    FAILED,
    FAILED_AND_MOVES,
    COMMITTED,
    GIVEN_UP,
    OTHERS_END, /* another save is over */
    OTHER,
    SAME_STEP,
    SAME,
    TAKE,
    GONE,
    NUM_EVENTS
};

static enum precommit_action meet(struct precommit *precommit, enum event event)
{
    switch (event) {
    case BEGIN:
        return precommit_begin(precommit, &later, true);
    case OURS:
    case NOT_OURS:
        return precommit_claimed(precommit, event == OURS);
    case AT_REST:
    case MOVES:
        return precommit_rested(precommit, false, event == MOVES);
    case FAILED:
    case FAILED_AND_MOVES:
        return precommit_rested(precommit, true, event == FAILED_AND_MOVES);
    case COMMITTED:
    case GIVEN_UP:
        return precommit_ended(precommit, &save, event == COMMITTED);
    case OTHERS_END:
        return precommit_ended(precommit, &later, false);
    case OTHER:
    case SAME_STEP:
    case SAME:
        return precommit_give(precommit, PRECOMMIT_OTHER + (event - OTHER));
    case TAKE:
        return precommit_take(precommit) ? PRECOMMIT_END : PRECOMMIT_NOTHING;
    default:
        return precommit_gone(precommit);
    }
}

#define CLAIMING (1u << 8)
static const struct row {
    unsigned from;
    enum event event;
    enum precommit_action action;
    unsigned to;
} rows[] = {
#define ROW(from, event, action, to)                                \
    {                                                               \
        PRECOMMIT_##from, event, PRECOMMIT_##action, PRECOMMIT_##to \
    }
    ROW(FREE, BEGIN, CLAIM, GOING | CLAIMING),
    ROW(GOING, BEGIN, LATER, GOING),
    ROW(GOING, FAILED, STOP, DROPPING),
    ROW(GOING, FAILED_AND_MOVES, STOP, DROPPING),
    ROW(GOING, COMMITTED, STOP, AWAITED),
    ROW(GOING, GIVEN_UP, STOP, DROPPING),
    ROW(GOING, SAME_STEP, STOP, DROPPING),
    ROW(GOING, SAME, STOP, DROPPING),
    ROW(AWAITED, BEGIN, LATER, AWAITED),
    ROW(AWAITED, FAILED, STOP, DROPPING),
    ROW(AWAITED, FAILED_AND_MOVES, STOP, DROPPING),
    ROW(AWAITED, OTHER, STOP, DROPPING),
    ROW(AWAITED, SAME_STEP, STOP, DROPPING),
    ROW(AWAITED, SAME, STOP, GIVING),
    ROW(GIVING, BEGIN, LATER, GIVING),
    ROW(GIVING, AT_REST, GIVE, GIVING),
    ROW(GIVING, FAILED, STOP, DROPPING),
    ROW(GIVING, FAILED_AND_MOVES, STOP, DROPPING),
    ROW(GIVING, SAME_STEP, STOP, DROPPING),
    ROW(GIVING, SAME, STOP, DROPPING),
    ROW(GIVING, TAKE, END, FREE),
    ROW(DROPPING, BEGIN, LATER, DROPPING),
    ROW(DROPPING, AT_REST, REMOVE, REMOVING),
    ROW(DROPPING, FAILED, REMOVE, REMOVING),
    ROW(REMOVING, BEGIN, LATER, REMOVING),
    ROW(REMOVING, GONE, CLOSE, CLOSING),
    ROW(CLOSING, BEGIN, LATER, CLOSING),
    ROW(CLOSING, GONE, END, FREE),
    /* A claim is under way. */
    ROW(GOING | CLAIMING, OURS, START, GOING),
    ROW(GOING | CLAIMING, NOT_OURS, STOP, DROPPING),
    ROW(AWAITED | CLAIMING, OURS, NOTHING, AWAITED),
    ROW(AWAITED | CLAIMING, NOT_OURS, STOP, DROPPING),
    ROW(GIVING | CLAIMING, OURS, GIVE, GIVING),
    ROW(GIVING | CLAIMING, AT_REST, NOTHING, GIVING | CLAIMING),
    ROW(GIVING | CLAIMING, NOT_OURS, STOP, DROPPING),
    ROW(DROPPING | CLAIMING, OURS, REMOVE, REMOVING),
    ROW(DROPPING | CLAIMING, AT_REST, NOTHING, DROPPING | CLAIMING),
    ROW(DROPPING | CLAIMING, FAILED, NOTHING, DROPPING | CLAIMING),
    ROW(DROPPING | CLAIMING, NOT_OURS, REMOVE, REMOVING),
};
#define NUM_ROWS (sizeof rows / sizeof *rows)

/* With a claim under way all but what the table says is as without one. */
static struct row find_row(unsigned from, enum event event)
{
    for (unsigned claiming = from & CLAIMING;; claiming = 0) {
        unsigned state = (from & ~CLAIMING) | claiming;
        for (size_t i = 0; i < NUM_ROWS; i++)
            if (rows[i].from == state && rows[i].event == event)
                return (struct row){from, event, rows[i].action,
                                    rows[i].to | (state == from ? 0 : from & CLAIMING)};
        if (claiming == 0)
            return (struct row){from, event, PRECOMMIT_NOTHING, from};
    }
}

static bool is_of_a_claim(enum event event)
{
    return event == OURS || event == NOT_OURS;
}

TEST(test_precommit__each_state_meets_each_event)
{
    for (unsigned from = PRECOMMIT_FREE; from <= (PRECOMMIT_DROPPING | CLAIMING); from++)
        for (enum event event = BEGIN; event < NUM_EVENTS; event++) {
            bool is_claiming = from & CLAIMING;
            struct precommit precommit = {from & ~CLAIMING, &save, NULL, is_claiming};
            if ((from & ~CLAIMING) > PRECOMMIT_CLOSING || from == (PRECOMMIT_FREE | CLAIMING) ||
                (is_of_a_claim(event) && !is_claiming))
                continue;
            const struct row want = find_row(from, event);
            enum precommit_action action = meet(&precommit, event);
            unsigned to = precommit.state | (precommit.is_claiming ? CLAIMING : 0);
            if (action != want.action || to != want.to)
                fail_msg("state %#x, event %d: action %d, state %#x", from, event, action, to);
        }
}

/* precommit.E6. */
TEST(test_precommit__the_newest_of_those_that_come_begins_next_unless_it_is_over)
{
    static const int newest;
    struct precommit precommit = {0};
    assert_int_equal(precommit_begin(&precommit, &save, false), PRECOMMIT_START);
    assert_int_equal(precommit_begin(&precommit, &later, true), PRECOMMIT_LATER);
    assert_int_equal(precommit_begin(&precommit, &newest, true), PRECOMMIT_LATER);
    precommit_ended(&precommit, &later, true);
    assert_true(precommit_next(&precommit));
    assert_false(precommit_next(&precommit));
    precommit_begin(&precommit, &newest, true);
    precommit_ended(&precommit, &newest, true);
    assert_false(precommit_next(&precommit));
    assert_int_equal(precommit.state, PRECOMMIT_GOING); /* the other save's end is not its own */
}

/* precommit.E3, precommit.E4, precommit.E7. */
TEST(test_precommit__each_state_says_whom_it_keeps_waiting)
{
    for (enum precommit_state state = PRECOMMIT_FREE; state <= PRECOMMIT_CLOSING; state++) {
        struct precommit precommit = {.state = state, .of = &save};
        assert_int_equal(precommit_is_in_the_way(&precommit, PRECOMMIT_SAME_STEP),
                         state != PRECOMMIT_FREE);
        assert_false(precommit_is_in_the_way(&precommit, PRECOMMIT_OTHER));
        assert_int_equal(precommit_has(&precommit, &save),
                         state != PRECOMMIT_FREE && state != PRECOMMIT_CLOSING);
        assert_false(precommit_has(&precommit, &later));
        assert_int_equal(precommit_may_start(&precommit, &save), state == PRECOMMIT_GOING);
        assert_false(precommit_may_start(&precommit, &later));
        precommit.is_claiming = true;
        assert_false(precommit_may_start(&precommit, &save));
    }
}

SUITE(NULL, NULL)
