/* ckptd_joining.c - a node's reports about its ranks to the coordinator (ckptd/machines/joining.c).
 *
 * Goal: joining.J1 and J3 to J5; ckptd_sim_nodes holds J2. Method: one event at a time, of an
 * attempt of four ranks of which two are at this node. */
#include "ckptd/machines/joining.h"
#include "proto/base/report.h"
#include "tests/unit/suite.h"

#define RANKS 4u

static struct bed {
    bool told[RANKS], is_described[RANKS], is_connected[RANKS];
    struct joining joining;
    struct joining_facts facts;
} bed;

static bool is_described(const void *user, uint32_t rank)
{
    return ((const struct bed *)user)->is_described[rank];
}

static bool is_connected(const void *user, uint32_t rank)
{
    return ((const struct bed *)user)->is_connected[rank];
}

/* Ranks 1 and 2 are here; both are described, and connected when the plan has come. */
static void begin(bool awaits_plan)
{
    bed = (struct bed){.is_described = {[1] = true, [2] = true},
                       .joining = {.told = bed.told, .num_ranks = RANKS},
                       .facts = {.awaits_plan = awaits_plan,
                                 .now_ms = 1000,
                                 .every_ms = 100,
                                 .is_described = is_described,
                                 .is_connected = is_connected,
                                 .user = &bed}};
    bed.is_connected[1] = bed.is_connected[2] = !awaits_plan;
}

/* Checks the next call, and handles its answer. */
static enum joining_action ask(enum joining_action action, uint32_t rank,
                               struct joining_answer answer)
{
    const struct joining_call call = joining_next(&bed.joining, &bed.facts);
    assert_int_equal(call.action, action);
    assert_int_equal(call.rank, rank);
    assert_int_equal(joining_next(&bed.joining, &bed.facts).action, JOINING_NOTHING); /* J4 */
    return joining_answered(&bed.joining, &call, &answer, bed.facts.awaits_plan);
}

static enum joining_action next(void)
{
    return joining_next(&bed.joining, &bed.facts).action;
}

static const struct joining_answer known = {.is_known = true};
static const struct joining_answer forgotten = {.is_known = false};
static const struct joining_answer planned = {.is_known = true, .has_plan = true};

/* joining.J1. */
TEST(test_joining__each_rank_is_told_until_it_is_known)
{
    begin(true);
    assert_int_equal(ask(JOINING_TELL, 1, forgotten), JOINING_WAIT);
    assert_int_equal(ask(JOINING_TELL, 1, known), JOINING_WAIT);
    assert_int_equal(ask(JOINING_TELL, 2, known), JOINING_WAIT);
    assert_int_equal(ask(JOINING_TELL, 2, planned), JOINING_PLAN); /* both are; it is awaited */
    bed.facts.awaits_plan = false;
    bed.is_described[3] = true; /* a rank that comes later */
    assert_int_equal(ask(JOINING_TELL, 3, planned), JOINING_NEXT);
    assert_int_equal(next(), JOINING_REST);
}

/* joining.J1. */
TEST(test_joining__a_coordinator_that_has_forgotten_is_told_of_all)
{
    for (uint32_t by_call = 0; by_call < 2; by_call++) {
        begin(false);
        bed.told[1] = bed.told[2] = true;
        if (by_call)
            assert_int_equal(ask(JOINING_NAME, 1, forgotten), JOINING_NEXT);
        else
            joining_forgotten(&bed.joining);
        assert_int_equal(ask(JOINING_TELL, 1, planned), JOINING_NEXT);
        assert_int_equal(ask(JOINING_TELL, 2, planned), JOINING_NEXT);
        assert_int_equal(next(), JOINING_REST);
    }
}

/* joining.J3. */
TEST(test_joining__names_are_told_so_often_while_a_rank_is_connected)
{
    begin(false);
    bed.told[1] = bed.told[2] = true;
    bed.is_connected[1] = false;
    assert_int_equal(ask(JOINING_NAME, 2, known), JOINING_NEXT);
    assert_int_equal(next(), JOINING_REST);
    bed.facts.now_ms += bed.facts.every_ms - 1;
    assert_int_equal(next(), JOINING_REST);
    bed.facts.now_ms++;
    assert_int_equal(ask(JOINING_NAME, 2, (struct joining_answer){.error = ERR_UNAVAILABLE}),
                     JOINING_NEXT);
    bed.facts.now_ms += bed.facts.every_ms;
    bed.is_connected[2] = false;
    assert_int_equal(next(), JOINING_REST);
    assert_true(bed.told[1] && bed.told[2]); /* an error carries no information about known ranks */
}

/* joining.J5. */
TEST(test_joining__a_coordinator_that_is_away_is_asked_again)
{
    static const int passing[] = {ERR_UNAVAILABLE, ERR_TIMEOUT, ERR_BUSY};
    begin(true);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(ask(JOINING_TELL, 1, (struct joining_answer){.error = passing[i]}),
                         JOINING_WAIT);
    assert_int_equal(ask(JOINING_TELL, 1, (struct joining_answer){.error = ERR_STALE}),
                     JOINING_FAIL);
    assert_false(bed.told[1]);
    assert_int_equal(ask(JOINING_TELL, 1, known), JOINING_WAIT); /* it describes itself again */
}

SUITE(NULL, NULL)
