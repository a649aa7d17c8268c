/* clients_advise.c - what advise recommends.
 *
 * Goal: a failure is an end that nobody asked for, and pauses between starts are no training. What
 * is kept fits on the disk with the save that is being written, and is never less than two. A copy
 * goes where the least is lost, if one completes between two failures. Method: tables of numbers
 * worked out by hand. */
#include "clients/cli/advise/plan.h"
#include "tests/unit/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DAY 86400
#define NUM(array) (sizeof(array) / sizeof(array)[0])

/* ---- failures ---- */

/* `text`: S a start, c a commit, t its copy in a tier, L a lost rank, s a stop, E the end of the
 * last rank, o another event, each with its time. */
static const struct {
    const char *text;
    uint64_t starts, lost, unexplained;
    double trained, mean;
    bool is_assumed;
} histories[] = {
    {"", 0, 0, 0, 0, 0, false},
    {"o5", 0, 0, 0, 0, 0, false},
    {"S10 c110", 1, 0, 0, 100, DAY, true},
    {"S10 c259210", 1, 0, 0, 3 * DAY, 3 * DAY, true},
    {"S10 c60 L110 S1110 c1210", 2, 1, 0, 200, 200, false}, /* the pause is no training */
    {"S10 c110 s120 S200", 2, 0, 0, 100, DAY, true},
    {"S10 s20 L30 S200", 2, 0, 0, 20, DAY, true}, /* killed as asked for */
    {"S10 L20 s30", 1, 1, 0, 10, 10, false},
    {"S10 L20 L30 S40 L50", 2, 2, 0, 30, 15, false},      /* the ranks of a start are one failure */
    {"S10 c110 E115 S200", 2, 0, 0, 105, DAY, true},      /* the last save came with the end */
    {"S10 c110 E116 S200", 2, 0, 1, 106, 106, false},     /* some training was lost */
    {"S10 c110 t112 E116 S200", 2, 0, 0, 106, DAY, true}, /* it waited for the copy */
    {"S10 c110 E112 t180 S200", 2, 0, 0, 102, DAY, true}, /* the copy came later */
    {"S10 c110 E111 c160 L200", 1, 1, 0, 190, 190, false}, /* its ckptd was restarted meanwhile */
    {"S10 c110 E111 c160 E200 S300", 2, 0, 1, 190, 190, false},
    {"S10 E111 c113 S200", 2, 0, 0, 103, DAY, true},
    {"S10 E12 S20 c100", 2, 0, 1, 82, 82, false},
    {"S10 c110 t180 S200", 2, 0, 1, 100, 100, false},
    {"S10 c110 S200 c300", 2, 0, 1, 200, 200, false},
    {"c10 c110 S200", 2, 0, 1, 100, 100, false},   /* the first start is lost to the journal */
    {"S500 c10 c600 L0", 1, 0, 0, 100, DAY, true}, /* a clock that was set back; no time */
};

static enum plan_event event_of(char letter)
{
    static const char letters[] = "SctLsEo";
    static const enum plan_event events[] = {PLAN_START, PLAN_SAVE, PLAN_COPY, PLAN_LOST,
                                             PLAN_STOP,  PLAN_END,  PLAN_OTHER};
    return events[strchr(letters, letter) - letters];
}

static void note_all(struct plan_failures *failures, const char *text)
{
    while (*text != '\0') {
        char *end;
        long at = strtol(text + 1, &end, 10);
        plan_failures_note(failures, event_of(*text), at);
        text = *end == ' ' ? end + 1 : end;
    }
    plan_failures_end(failures);
}

TEST(test_failures__an_end_that_nobody_asked_for_is_one)
{
    for (size_t i = 0; i < NUM(histories); i++) {
        struct plan_failures failures = {0};
        bool is_assumed;
        note_all(&failures, histories[i].text);
        assert_int_equal(failures.starts, histories[i].starts);
        assert_int_equal(failures.lost, histories[i].lost);
        assert_int_equal(failures.unexplained, histories[i].unexplained);
        assert_true(failures.trained == histories[i].trained);
        assert_true(plan_failures_mean(&failures, &is_assumed) == histories[i].mean);
        assert_true(is_assumed == histories[i].is_assumed);
    }
}

/* ---- retention ---- */

static const struct {
    struct plan_disk disk;
    uint64_t fit, keep_last;
    bool has_space;
    double missing, reach, trash, full;
} disks[] = {
    /* 20 fit: one is being saved, and five may stay beside the rule */
    {{10, 150, 40, 10, 3600}, 20, 14, true, 0, 13 * 3600, 0, 16 * 3600},
    /* enough: a week back, and one */
    {{10, 2000, 0, 0, DAY}, 200, 8, true, 0, 7 * DAY, 7 * DAY, 200 * DAY},
    {{10, 160, 0, 0, DAY}, 16, 8, true, 0, 7 * DAY, 2 * DAY, 16 * DAY},
    {{10, 0, 80, 0, 60}, 8, 2, true, 0, 60, 0, 0},
    {{10, 30, 0, 0, 60}, 3, 2, true, 0, 60, 0, 180},
    {{10, 19, 10, 0, 60}, 2, 2, false, 1, 60, 0, 114}, /* no third one can be saved */
    {{10, 4, 0, 0, 60}, 0, 2, false, 26, 60, 0, 24},
    {{10, 500, 0, 0, 20 * DAY}, 50, 2, true, 0, 20 * DAY, 7 * DAY, 1000 * DAY},
    {{10, -1, 50, 0, DAY}, 0, 8, true, 0, 7 * DAY, 0, -1}, /* a bucket has no limit */
};

TEST(test_retention__what_is_kept_fits_beside_the_save_that_is_written)
{
    for (size_t i = 0; i < NUM(disks); i++) {
        struct plan_retention plan = plan_retention(&disks[i].disk);
        assert_int_equal(plan.fit, disks[i].fit);
        assert_int_equal(plan.keep_last, disks[i].keep_last);
        assert_true(plan.has_space == disks[i].has_space);
        assert_true(plan.missing == disks[i].missing);
        assert_true(plan.reach == disks[i].reach);
        assert_true(plan.trash == disks[i].trash);
        assert_true(fabs(plan.full - disks[i].full) < 1e-6);
        assert_true(plan.is_limited == (disks[i].disk.room >= 0));
    }
    struct plan_disk disk = {.bytes = 10, .room = 100, .interval = 60};
    assert_true(plan_full(&disk, 30) == 300);
    assert_true(plan_full(&disk, 0) < 0);
}

/* ---- copies ---- */

static const struct {
    struct plan_copying copying;
    enum plan_place place;
    bool is_there, is_slow, is_every;
    double peer, far;
    int64_t replicas;
} choices[] = {
    /* none: all that was trained is lost; nothing yet if that is less than an interval */
    {{{false, 0}, {false, 0}, 100, 1000, 5000, false, 0}, PLAN_FAR, false, false, true, -1, -1, 2},
    {{{false, 0}, {false, 0}, 100, 1000, 5000, true, 0}, PLAN_PEER, false, false, true, -1, -1, 2},
    {{{false, 0}, {false, 0}, 100, 1000, 90, true, 0}, PLAN_LOCAL, true, false, true, -1, -1, 2},
    /* one */
    {{{true, 20}, {false, 0}, 100, 1000, 5000, true, 3}, PLAN_PEER, true, false, true, 120, -1, 3},
    {{{false, 0}, {true, 100}, 100, 1000, 5000, false, 0}, PLAN_FAR, true, false, true, -1, 200, 2},
    {{{false, 0}, {true, 101}, 100, 1000, 5000, false, 0},
     PLAN_FAR,
     true,
     false,
     false,
     -1,
     302,
     2},
    /* both */
    {{{true, 20}, {true, 30}, 100, 1000, 5000, true, 2}, PLAN_PEER, true, false, true, 120, 130, 2},
    {{{true, 150}, {true, 30}, 100, 1000, 5000, true, 2}, PLAN_FAR, true, false, true, 400, 130, 2},
    {{{true, 0}, {true, 0}, 100, 1000, 5000, true, 2}, PLAN_PEER, true, false, true, 100, 100, 2},
    /* a failure comes before a copy is complete */
    {{{false, 0}, {true, 1000}, 100, 1000, 5000, false, 0},
     PLAN_LOCAL,
     true,
     true,
     false,
     -1,
     2100,
     2},
    {{{true, 1000}, {true, 999}, 100, 1000, 5000, true, 2},
     PLAN_FAR,
     true,
     false,
     false,
     2100,
     2098,
     2},
};

TEST(test_copies__a_copy_goes_where_the_least_is_lost)
{
    for (size_t i = 0; i < NUM(choices); i++) {
        struct plan_copies plan = plan_copies(&choices[i].copying);
        assert_int_equal(plan.place, choices[i].place);
        assert_true(plan.is_there == choices[i].is_there);
        assert_true(plan.is_slow == choices[i].is_slow);
        assert_true(plan.is_every == choices[i].is_every);
        assert_true(plan.lost[PLAN_LOCAL] == choices[i].copying.trained);
        assert_true(plan.lost[PLAN_PEER] == choices[i].peer);
        assert_true(plan.lost[PLAN_FAR] == choices[i].far);
        assert_int_equal(plan.replicas, choices[i].replicas);
    }
}

SUITE(NULL, NULL)
