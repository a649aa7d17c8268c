/* ckptd_participating.c - a node's part of a save that another node coordinates
 * (ckptd/machines/participating.c).
 *
 * Goal: the effect of each verdict in each state, the reports of a part that is over or in work,
 * and participating.P5 and P7. Method: one event at a time; tests/unit/ckptd_sim_nodes.c combines
 * nodes, trainers and failures, and checks P2, P3 and P6. */
#include "ckptd/machines/participating.h"
#include "tests/unit/suite.h"

#define WAIT HOLDFAST__V1__PART_VERDICT__VERDICT_WAIT
#define PLACE HOLDFAST__V1__PART_VERDICT__VERDICT_PLACE
#define COMMITTED HOLDFAST__V1__PART_VERDICT__VERDICT_COMMITTED
#define KEPT HOLDFAST__V1__PART_VERDICT__VERDICT_KEPT
#define OVER HOLDFAST__V1__PART_VERDICT__VERDICT_OVER
#define VERDICTS 6u /* and one that is not known */
#define STATES 4u   /* enum participating_state */

static const struct participating_report no_report;

/* participating.P7. */
TEST(test_participating__an_attempt_is_followed_in_its_turn)
{
    static const struct {
        struct participating_arrival arrival;
        bool is_unknown;
        enum participating_entry entry;
    } rows[] = {
        {{.attempt = 3, .whose = PARTICIPATING_A_PEERS}, true, PARTICIPATING_FOLLOW},
        {{.attempt = 3, .whose = PARTICIPATING_OURS}, true, PARTICIPATING_DESCRIBE},
        {{.attempt = 3, .whose = PARTICIPATING_A_STRANGERS}, true, PARTICIPATING_REFUSE},
        {{.attempt = 3, .served = 2, .whose = PARTICIPATING_A_PEERS}, true, PARTICIPATING_FOLLOW},
        {{.attempt = 3, .newest = 3, .whose = PARTICIPATING_A_PEERS}, true, PARTICIPATING_FOLLOW},
        {{.attempt = 3, .newest = 4, .whose = PARTICIPATING_OURS}, false, PARTICIPATING_DESCRIBE},
        {{.attempt = 3, .served = 3, .whose = PARTICIPATING_A_PEERS, .has_saves = true},
         false,
         PARTICIPATING_DESCRIBE},
        {{.attempt = 2, .served = 3, .whose = PARTICIPATING_A_PEERS, .has_saves = true},
         false,
         PARTICIPATING_DESCRIBE},
        {{.attempt = 3, .served = 2, .whose = PARTICIPATING_A_PEERS, .has_saves = true},
         true,
         PARTICIPATING_SETTLE},
        {{.attempt = 3, .whose = PARTICIPATING_OURS, .has_saves = true, .has_waited = true},
         true,
         PARTICIPATING_GIVE_UP},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(participating_is_unknown(&rows[i].arrival), rows[i].is_unknown);
        assert_int_equal(participating_arrive(&rows[i].arrival), rows[i].entry);
    }
}

static struct participating part_in(enum participating_state state)
{
    return (struct participating){.state = state};
}

static void answer_table_of(bool is_left, enum participating_action placed,
                            enum participating_state placed_state)
{
    static const enum participating_action actions[STATES][VERDICTS] = {
        [PARTICIPATING_UNDECIDED] = {PARTICIPATING_WAIT, PARTICIPATING_PLACE, PARTICIPATING_WAIT,
                                     PARTICIPATING_PLACE, PARTICIPATING_DISCARD,
                                     PARTICIPATING_WAIT},
        [PARTICIPATING_PLACED] = {PARTICIPATING_WAIT, PARTICIPATING_WAIT, PARTICIPATING_DONE,
                                  PARTICIPATING_KEEP, PARTICIPATING_WAIT, PARTICIPATING_WAIT},
    };
    for (uint32_t state = 0; state < STATES; state++)
        for (uint32_t verdict = 0; verdict < VERDICTS; verdict++) {
            struct participating part = {.state = (enum participating_state)state,
                                         .is_left = is_left};
            enum participating_action action =
                participating_answered(&part, &no_report, (Holdfast__V1__PartVerdict)verdict);
            assert_int_equal(action, actions[state][verdict]);
            if (action != PARTICIPATING_PLACE)
                continue;
            assert_int_equal(part.state, PARTICIPATING_PLACING);
            assert_int_equal(participating_placed(&part, true, false), placed);
            assert_int_equal(part.state, placed_state);
        }
}

TEST(test_participating__each_verdict_has_its_action_in_each_state)
{
    answer_table_of(false, PARTICIPATING_SEND, PARTICIPATING_PLACED);
    answer_table_of(true, PARTICIPATING_KEEP, PARTICIPATING_OVER);
}

TEST(test_participating__a_part_that_is_over_hears_nothing)
{
    static const Holdfast__V1__PartVerdict ends[] = {COMMITTED, KEPT, OVER};
    for (uint32_t i = 0; i < 3; i++) {
        struct participating part =
            part_in(ends[i] == OVER ? PARTICIPATING_UNDECIDED : PARTICIPATING_PLACED);
        participating_answered(&part, &no_report, ends[i]);
        assert_int_equal(part.state, PARTICIPATING_OVER);
        assert_int_equal(participating_changed(&part), PARTICIPATING_NOTHING);
        assert_int_equal(participating_unanswered(&part), PARTICIPATING_NOTHING);
        assert_int_equal(participating_completed(&part), PARTICIPATING_NOTHING);
        assert_int_equal(participating_placed(&part, true, false), PARTICIPATING_NOTHING);
        assert_int_equal(participating_leave(&part, 2, 1), PARTICIPATING_NOTHING);
        assert_false(part.is_whole);
    }
}

/* participating.P5. */
TEST(test_participating__one_report_is_under_way_and_the_next_has_the_news)
{
    struct participating part = {0};
    assert_int_equal(participating_changed(&part), PARTICIPATING_SEND);
    assert_int_equal(participating_changed(&part), PARTICIPATING_NOTHING);
    assert_int_equal(participating_answered(&part, &no_report, WAIT), PARTICIPATING_SEND);
    assert_int_equal(participating_answered(&part, &no_report, WAIT), PARTICIPATING_WAIT);
    assert_int_equal(participating_changed(&part), PARTICIPATING_SEND);
    assert_int_equal(participating_changed(&part), PARTICIPATING_NOTHING);
    assert_int_equal(participating_unanswered(&part),
                     PARTICIPATING_WAIT); /* a part whose coordinator is away rests */
    assert_int_equal(participating_changed(&part), PARTICIPATING_SEND);
    assert_int_equal(participating_answered(&part, &no_report, WAIT), PARTICIPATING_WAIT);
}

TEST(test_participating__nothing_is_reported_while_the_manifest_is_written)
{
    struct participating part = {0};
    assert_int_equal(participating_changed(&part), PARTICIPATING_SEND);
    assert_int_equal(participating_answered(&part, &no_report, PLACE), PARTICIPATING_PLACE);
    assert_int_equal(participating_changed(&part), PARTICIPATING_NOTHING);
    assert_int_equal(participating_answered(&part, &no_report, OVER), PARTICIPATING_NOTHING);
    assert_int_equal(participating_unanswered(&part), PARTICIPATING_NOTHING);
    assert_int_equal(participating_completed(&part), PARTICIPATING_NOTHING);
    assert_int_equal(participating_leave(&part, 2, 1), PARTICIPATING_NOTHING); /* P2 */
    assert_int_equal(participating_placed(&part, true, false), PARTICIPATING_SEND);
}

TEST(test_participating__a_shard_is_reported_as_far_as_it_came)
{
    static const struct participating_shard shards[] = {
        {0},
        {.is_ended = true},
        {.is_ended = true, .is_durable = true},
        {.is_ended = true, .has_failed = true},
        {.is_durable = true, .has_failed = true},
    };
    static const Holdfast__V1__PartState states[] = {
        HOLDFAST__V1__PART_STATE__PART_BEGUN,   HOLDFAST__V1__PART_STATE__PART_ENDED,
        HOLDFAST__V1__PART_STATE__PART_DURABLE, HOLDFAST__V1__PART_STATE__PART_FAILED,
        HOLDFAST__V1__PART_STATE__PART_FAILED,
    };
    struct participating part = {0};
    struct participating_report report = participating_report(&part);
    for (uint32_t i = 0; i < sizeof states / sizeof *states; i++) {
        struct participating_line line = participating_add(&report, &shards[i]);
        assert_int_equal(line.state, states[i]);
        assert_int_equal(line.has_digests, i == 2);
    }
    assert_int_equal(report.num_durable, 1);
}

SUITE(NULL, NULL)
