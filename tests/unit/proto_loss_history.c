/* proto_loss_history.c - the history of losses in a run's checkpoints.
 *
 * Goal: a history has the curve of the whole run within its bound, exactly, whichever starts made
 * it. Other text is not accepted as a history. Method: each added step has its own loss; the
 * history is written as text and read back. */
#include "proto/model/loss_history.h"
#include "tests/unit/suite.h"

#include <math.h>
#include <string.h>

static void add_steps(struct history *h, int64_t from, int64_t to)
{
    for (int64_t step = from; step <= to; step++)
        history_add(h, step, 1 / (double)step);
}

/* Every step that it may have, from `first` to `last`, with the loss of that step. */
static void want_curve(const struct history *h, int64_t first, int64_t last, int64_t every)
{
    assert_int_equal(history_step(h, 0), first);
    assert_int_equal(history_step(h, h->num - 1), last);
    assert_int_equal(h->num, (last - first) / every + 1);
    assert_true(h->num <= HISTORY_POINTS);
    for (uint32_t i = 0; i < h->num; i++)
        assert_true(h->loss[i] == 1 / (double)history_step(h, i));
}

static void through_text(struct history *h)
{
    json_t *json = history_json(h);
    assert_non_null(json);
    memset(h, 0xff, sizeof(*h));
    history_read(h, json);
    json_decref(json);
}

TEST(test_history__a_short_run_has_every_step_and_a_long_one_the_whole_curve)
{
    struct history h = {.num = 0};
    add_steps(&h, 1, 512);
    want_curve(&h, 1, 512, 1);
    add_steps(&h, 513, 513);
    want_curve(&h, 2, 512, 2);
    through_text(&h);
    double loss = 0;
    assert_true(history_find(&h, 2, &loss) && loss == 1 / 2.0);
    assert_true(history_find(&h, 512, &loss) && loss == 1 / 512.0);
    const int64_t not_kept[] = {0, 1, 3, 513, 514};
    for (size_t i = 0; i < sizeof(not_kept) / sizeof(not_kept[0]); i++)
        assert_false(history_find(&h, not_kept[i], &loss));
    add_steps(&h, 514, 100000);
    want_curve(&h, 256, 99840, 256);
    json_t *json = history_json(&h);
    char *text = json_dumps(json, JSON_COMPACT);
    assert_true(strlen(text) < 8192 + 64);
    free(text);
    json_decref(json);
}

TEST(test_history__steps_that_are_made_again_take_the_place_of_what_was)
{
    struct history h = {.num = 0};
    for (int64_t step = 1; step <= 20; step++)
        history_add(&h, step, step > 12 ? NAN : 1 / (double)step);
    through_text(&h);
    assert_true(isnan(h.loss[19]));
    add_steps(&h, 13, 15);
    want_curve(&h, 1, 15, 1);
    history_cut(&h, 4);
    want_curve(&h, 1, 4, 1);
    add_steps(&h, 9, 10); /* of a checkpoint without a history */
    want_curve(&h, 9, 10, 1);
    history_cut(&h, 0);
    add_steps(&h, 1, 3);
    want_curve(&h, 1, 3, 1);
}

TEST(test_history__what_is_no_history_is_none)
{
    static const char *const texts[] = {
        "{}",
        "[]",
        "{\"first\":1,\"halvings\":0,\"losses\":\"3ff\"}",
        "{\"first\":1,\"halvings\":0,\"losses\":\"zff0000000000000\"}",
        "{\"first\":-1,\"halvings\":0,\"losses\":\"3ff0000000000000\"}",
        "{\"first\":9000000000000000,\"halvings\":40,\"losses\":\"3ff0000000000000\"}",
        "{\"first\":1,\"halvings\":64,\"losses\":\"3ff0000000000000\"}"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        struct history h = {.num = 3};
        json_t *json = json_loads(texts[i], 0, NULL);
        assert_non_null(json);
        history_read(&h, json);
        assert_int_equal(h.num, 0);
        json_decref(json);
    }
}

SUITE(NULL, NULL)
