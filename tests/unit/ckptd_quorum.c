/* ckptd_quorum.c - when most of the nodes hold a number (ckptd/machines/quorum.c).
 *
 * Goal: quorum.Q1 to Q4. Method: all sizes up to nine nodes, then 1,024; answers one at a time;
 * which of five nodes is asked first. */
#include "tests/unit/quorum_all.h"
#include "tests/unit/suite.h"

#define MANY 1024u

static bool suffices(uint32_t holders, uint32_t nodes)
{
    struct quorum quorum = quorum_of_all(nodes);
    quorum.holders = (struct node_set){.words = {(1u << holders) - 1}};
    return !quorum_lacks(&quorum);
}

/* quorum.Q1. */
TEST(test_quorum__half_of_the_nodes_are_no_majority)
{
    for (uint32_t nodes = 1; nodes <= 9; nodes++)
        for (uint32_t a = 0; a <= nodes; a++) /* and those that are left */
            assert_false(suffices(a, nodes) && suffices(nodes - a, nodes));
    assert_true(suffices(2, 3));
    assert_false(suffices(1, 2));
    assert_true(suffices(1, 1));
}

/* quorum.Q2, quorum.Q3: of five nodes. */
TEST(test_quorum__each_answer_counts_as_far_as_it_is_known)
{
    static const struct {
        enum publication answers[4];
        enum quorum_state states[4];
    } rows[] = {
        {{PUBLICATION_DURABLE, PUBLICATION_DURABLE}, {QUORUM_ASKS, QUORUM_HELD}},
        {{PUBLICATION_DURABLE, PUBLICATION_TAKEN}, {QUORUM_ASKS, QUORUM_TAKEN}},
        {{PUBLICATION_UNKNOWN, PUBLICATION_LOST, PUBLICATION_DURABLE, PUBLICATION_DURABLE},
         {QUORUM_ASKS, QUORUM_ASKS, QUORUM_ASKS, QUORUM_HELD}},
        {{PUBLICATION_UNKNOWN, PUBLICATION_ABSENT, PUBLICATION_DURABLE, PUBLICATION_LOST},
         {QUORUM_ASKS, QUORUM_ASKS, QUORUM_ASKS, QUORUM_TOO_FEW}},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct quorum quorum = quorum_of_all(5);
        enum quorum_state now = QUORUM_ASKS;
        for (uint32_t k = 0; k < 4 && now == QUORUM_ASKS; k++) {
            now = quorum_heard(&quorum, k + 1, rows[i].answers[k]);
            assert_int_equal(now, rows[i].states[k]);
        }
    }
}

/* quorum.Q4: the sites of five nodes, as bits; 3, 1, 4, 2 by name. */
TEST(test_quorum__the_first_by_name_that_answers_is_asked_and_then_all_others)
{
    static const uint16_t by_name[] = {2, 0, 3, 1};
    static const struct {
        uint64_t answering, first, then;
    } rows[] = {
        {0x1e, 0x08, 0x16}, {0x16, 0x02, 0x1c}, {0x14, 0x10, 0x0e},
        {0x04, 0x04, 0x1a}, {0, 0x1e, 0},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct quorum quorum = quorum_of_all(5);
        const struct node_set answering = {.words = {rows[i].answering}}, none = {0};
        assert_int_equal(quorum_check(&quorum), QUORUM_ASKS);
        assert_int_equal(quorum_ask(&quorum, by_name, &answering).words[0], rows[i].first);
        assert_int_equal(quorum_ask(&quorum, by_name, &none).words[0], rows[i].then);
        assert_int_equal(quorum_ask(&quorum, by_name, &answering).words[0], 0);
    }
    struct quorum alone = quorum_of_all(1);
    assert_int_equal(quorum_check(&alone), QUORUM_HELD);
    alone.sets[0].nodes = 2;
    assert_int_equal(quorum_check(&alone), QUORUM_TOO_FEW);
}

TEST(test_quorum__most_of_1024_nodes_are_513)
{
    struct quorum quorum = quorum_of_all(MANY);
    for (uint32_t i = 1; i < 512; i++)
        assert_int_equal(quorum_heard(&quorum, i, PUBLICATION_DURABLE), QUORUM_ASKS);
    for (uint32_t i = 512; i < MANY - 1; i++)
        assert_int_equal(quorum_heard(&quorum, i, PUBLICATION_UNKNOWN), QUORUM_ASKS);
    assert_int_equal(quorum_count(&quorum, &quorum.sets[0]), 512);
    assert_int_equal(quorum_heard(&quorum, MANY - 1, PUBLICATION_DURABLE), QUORUM_HELD);
    assert_true(node_set_has(&quorum.holders, MANY - 1) && !node_set_has(&quorum.holders, 600));
    assert_int_equal(node_set_count(&quorum.holders), 513);
}

SUITE(NULL, NULL)
