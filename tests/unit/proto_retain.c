/* proto_retain.c - which checkpoints may go.
 *
 * Goal: every rule keeps the checkpoints that its text names, rules are OR-ed, and no rules can
 * remove a checkpoint that must stay. Method: small runs by hand, then random ones against
 * properties from a second, naive implementation of retain.h. The seed is printed; SEED= repeats a
 * run. */
#include "proto/base/report.h"
#include "proto/format/retain.h"
#include "proto/format/verified.h"
#include "tests/unit/random.h"
#include "tests/unit/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ITEMS_MAX 40u
#define ROUNDS 20000

/* Steps 10, 20, ... of attempt 1, a minute apart, loss falling. */
static void make_run(struct retain_item *items, uint32_t count)
{
    memset(items, 0, count * sizeof *items);
    for (uint32_t i = 0; i < count; i++)
        items[i] = (struct retain_item){.step = 10 * (i + 1),
                                        .attempt = 1,
                                        .time = 1000000 + 60 * (int64_t)i,
                                        .has_metric = true,
                                        .metric = 9.0 - i};
}

static uint32_t plan(struct retain_item *items, uint32_t count, struct retain_rules rules)
{
    uint32_t removed;
    rules.may_remove_most = true;
    assert_int_equal(retain_plan(items, count, &rules, &removed), 0);
    return removed;
}

TEST(test_retain__each_rule_keeps_what_it_says)
{
    struct retain_item items[10];
    make_run(items, 10);
    assert_int_equal(plan(items, 10, (struct retain_rules){.keep_last = 3}), 7);
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal((items[i].reasons & RETAIN_LAST) != 0, i >= 7);
    assert_int_equal(plan(items, 10, (struct retain_rules){.keep_every = 30}), 10 - 3 - 1);
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal((items[i].reasons & RETAIN_EVERY) != 0, i % 3 == 2);
    assert_int_equal(plan(items, 10, (struct retain_rules){.keep_within = 180}), 6);
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal((items[i].reasons & RETAIN_WITHIN) != 0, i >= 6);
    items[4].metric = -5;
    assert_int_equal(plan(items, 10, (struct retain_rules){.keep_best = 1}), 7);
    assert_int_equal(items[4].reasons, RETAIN_BEST);
    plan(items, 10, (struct retain_rules){.keep_best = 2, .best_is_highest = true});
    assert_int_equal(items[0].reasons, RETAIN_BEST);
    assert_int_equal(items[1].reasons, RETAIN_BEST);
}

/* Newer ones that were never read back may all turn out to be damaged. */
TEST(test_retain__the_last_two_that_were_read_back_stay_too)
{
    struct retain_item items[10];
    char text[64];
    make_run(items, 10);
    for (uint32_t i = 1; i < 6; i++)
        items[i].is_proven = true;
    items[4].is_damaged = true;
    assert_int_equal(plan(items, 10, (struct retain_rules){.keep_last = 2}), 5);
    assert_string_equal(retain_text(text, sizeof text, items[5].reasons), "proven");
    assert_string_equal(retain_text(text, sizeof text, items[4].reasons), "unverifiable");
    assert_string_equal(retain_text(text, sizeof text, items[3].reasons), "proven");
    assert_string_equal(retain_text(text, sizeof text, items[2].reasons), "remove");
    items[8].is_proven = items[9].is_proven = true;
    assert_int_equal(plan(items, 10, (struct retain_rules){.keep_last = 2}), 7);
    assert_string_equal(retain_text(text, sizeof text, items[9].reasons), "last, good, proven");
    assert_string_equal(retain_text(text, sizeof text, items[5].reasons), "remove");
}

TEST(test_retain__what_is_damaged_counts_nowhere)
{
    struct retain_item items[7];
    uint32_t removed;
    make_run(items, 4);
    items[0].is_proven = items[1].is_proven = items[3].is_proven = true;
    items[2].is_damaged = items[3].is_damaged = true;
    assert_int_equal(plan(items, 4, (struct retain_rules){.keep_last = 2}), 0);
    items[0].is_proven = false;
    items[3].is_damaged = items[3].is_proven = false; /* unknown to the catalog */
    assert_int_equal(plan(items, 4, (struct retain_rules){.keep_last = 1}), 1);
    assert_int_equal(items[0].reasons, 0);
    assert_int_equal(items[1].reasons, RETAIN_GOOD | RETAIN_PROVEN);
    make_run(items, 7);
    items[5].is_damaged = items[6].is_damaged = true; /* half of the others are not half of all */
    assert_int_equal(retain_plan(items, 7, &(struct retain_rules){.keep_last = 1}, &removed),
                     ERR_DENIED);
    assert_non_null(strstr(report_line(), "3 of 5"));
}

TEST(test_retain__rules_are_ored)
{
    struct retain_item items[10];
    char text[64];
    make_run(items, 10);
    assert_int_equal(plan(items, 10, (struct retain_rules){.keep_last = 1, .keep_every = 50}), 7);
    assert_string_equal(retain_text(text, sizeof text, items[9].reasons), "last, every, good");
    assert_string_equal(retain_text(text, sizeof text, items[8].reasons), "good");
    assert_string_equal(retain_text(text, sizeof text, items[4].reasons), "every");
    assert_string_equal(retain_text(text, sizeof text, items[3].reasons), "remove");
    assert_string_equal(retain_text(text, 4, items[9].reasons), "las"); /* cut, not overrun */
}

TEST(test_retain__the_newest_is_of_the_newest_attempt)
{
    struct retain_item items[4] = {{.step = 100, .attempt = 1, .time = 50},
                                   {.step = 90, .attempt = 1, .time = 40},
                                   {.step = 50, .attempt = 2, .time = 60},
                                   {.step = 90, .attempt = 2, .time = 70}};
    assert_int_equal(plan(items, 4, (struct retain_rules){.keep_every = 45}), 2);
    assert_int_equal(items[0].reasons, 0);
    assert_int_equal(items[1].reasons, 0); /* attempt 2 has made step 90 again */
    assert_int_equal(items[3].reasons, RETAIN_EVERY | RETAIN_GOOD);
}

TEST(test_retain__a_clock_that_jumped_empties_nothing)
{
    struct retain_item items[6];
    make_run(items, 6);
    items[5].time = INT64_MAX; /* the newest is dated in the far future */
    assert_int_equal(plan(items, 6, (struct retain_rules){.keep_within = 3600}), 0);
    items[5].time = 1000000 + 60 * 60 * 24 * 365;
    assert_int_equal(plan(items, 6, (struct retain_rules){.keep_within = 120}), 2);
    assert_int_equal(items[1].reasons, 0); /* three minutes before it, as far as one can say */
    assert_int_equal(items[2].reasons, RETAIN_WITHIN);
    make_run(items, 6);
    items[5].time = 0; /* the newest is dated long ago: the others seem to come after it */
    assert_int_equal(plan(items, 6, (struct retain_rules){.keep_within = 3600}), 0);
    make_run(items, 6);
    items[5].time = INT64_MAX;
    items[0].time = INT64_MIN; /* no age at all */
    plan(items, 6, (struct retain_rules){.keep_within = 3600});
    assert_true(items[0].reasons & RETAIN_WITHIN);
}

/* For any jump of the clock: a checkpoint that a rule keeps without the jump it keeps with it. */
TEST(test_retain__a_jump_of_the_clock_only_keeps_more)
{
    struct retain_item steady[20], jumped[20];
    for (int round = 0; round < 2000; round++) {
        const struct retain_rules rules = {.keep_within = 60 * (1 + next_random(15))};
        int64_t jump = (int64_t)next_random(20u * 365 * 86400) - 10ll * 365 * 86400;
        uint32_t first = (uint32_t)next_random(20), last = first + (uint32_t)next_random(20);
        make_run(steady, 20);
        for (uint32_t i = 0; i < 20; i++)
            steady[i].time += (int64_t)next_random(30);
        memcpy(jumped, steady, sizeof steady);
        for (uint32_t i = first; i < 20 && i <= last; i++) /* and back again, or not */
            jumped[i].time += jump;
        plan(steady, 20, rules);
        plan(jumped, 20, rules);
        if (llabs(jump) <= 90 * RETAIN_JUMP)
            continue; /* a pause as well as a jump */
        for (uint32_t i = 0; i < 20; i++)
            assert_true(steady[i].reasons == 0 || jumped[i].reasons != 0);
    }
}

/* A run whose checkpoints are further apart than the rule's span is pruned all the same. */
TEST(test_retain__a_span_shorter_than_the_usual_gap_works)
{
    struct retain_item items[10];
    make_run(items, 10);
    assert_int_equal(plan(items, 10, (struct retain_rules){.keep_within = 1}), 8);
}

/* One has vanished, then the state is unknown. */
static int look_once(void *user, uint32_t index)
{
    struct retain_item *items = user;
    items[index].is_vanished = true;
    return index == 0 ? 0 : ERR_UNAVAILABLE;
}

TEST(test_retain__nothing_goes_by_a_plan_that_could_not_look)
{
    const struct retain_rules rules = {.keep_last = 2, .may_remove_most = true};
    struct retain_item items[4];
    uint32_t removed = 0;
    for (uint64_t i = 0; i < 4; i++)
        items[i] = (struct retain_item){.step = i + 1, .attempt = 1, .time = (int64_t)i};
    assert_int_equal(retain_plan_seen(items, 4, &rules, &removed, look_once, items),
                     ERR_UNAVAILABLE);
}

TEST(test_retain__refusals_say_why)
{
    struct retain_item items[10];
    uint32_t removed;
    make_run(items, 10);
    assert_int_equal(retain_plan(items, 10, &(struct retain_rules){0}, &removed), ERR_INVALID);
    assert_non_null(strstr(report_line(), "no rule"));
    assert_int_equal(retain_plan(items, 10, &(struct retain_rules){.keep_last = 4}, &removed),
                     ERR_DENIED);
    assert_int_equal(removed, 6);
    assert_non_null(strstr(report_line(), "6 of 10"));
    assert_int_equal(retain_plan(items, 10, &(struct retain_rules){.keep_last = 5}, &removed), 0);
    assert_int_equal(removed, 5);
    for (uint32_t i = 0; i < 10; i++)
        items[i].metric = 0.0 / 0.0;
    assert_int_equal(retain_plan(items, 10, &(struct retain_rules){.keep_best = 1}, &removed),
                     ERR_INVALID);
    assert_int_equal(retain_plan(NULL, 0, &(struct retain_rules){.keep_last = 1}, &removed), 0);
}

TEST(test_retain__only_names_that_we_write_parse)
{
    uint64_t step, attempt;
    assert_true(retain_parse("step-00001000-a0003", &step, &attempt));
    assert_int_equal(step, 1000);
    assert_int_equal(attempt, 3);
    assert_true(retain_parse("step-9223372036854775807-a9223372036854775807", &step, &attempt));
    assert_true(step == INT64_MAX && attempt == INT64_MAX); /* the most that a manifest takes */
    assert_false(retain_parse("step-9223372036854775808-a0001", &step, &attempt));
    assert_false(retain_parse("step-00001000-a9223372036854775808", &step, &attempt));
    assert_false(retain_parse("step-00001000-a0000", &step, &attempt));
    assert_false(retain_parse("step-1000-a0003", &step, &attempt)); /* not as we write it */
    assert_false(retain_parse("step-00001000-a0003.tmp", &step, &attempt));
    assert_false(retain_parse("notes", &step, &attempt));
    assert_int_equal(retain_time("1970-01-02T00:00:01Z"), 86401);
    assert_int_equal(retain_time("yesterday"), 0);
}

TEST(test_retain__a_metric_is_a_number_of_that_name)
{
    struct retain_item item = {0};
    const char *text = "{\"metrics\": {\"loss\": 2.5, \"steps\": 7, \"note\": \"2.5\"}}";
    assert_int_equal(retain_metric(&item, text, "loss"), 0);
    assert_true(item.has_metric && item.metric == 2.5);
    assert_int_equal(retain_metric(&item, text, "steps"), 0);
    assert_true(item.has_metric && item.metric == 7);
    assert_int_equal(retain_metric(&item, text, "note"), 0);
    assert_false(item.has_metric);
    assert_int_equal(retain_metric(&item, "no state", "loss"), 0);
    assert_false(item.has_metric);
}

/* The store of one note. */
static char stored_note[VERIFIED_BYTES_MAX];

static int read_note(struct verified *out, const struct manifest_summary *summary)
{
    return verified_read(out, stored_note, strlen(stored_note), summary);
}

static enum verified_known known_after(double percent, uint64_t damages)
{
    const struct manifest_summary summary = {
        .run = "book", .step = 7, .attempt = 2, .nonce = "0123456789abcdef0123456789abcdef"};
    struct verified now = {.percent = percent, .damages = damages}, found;
    assert_int_equal(read_note(&found, &summary), stored_note[0] ? 0 : ERR_NOT_FOUND);
    verified_write(stored_note, &summary, &now, &found);
    assert_int_equal(read_note(&found, &summary), 0);
    assert_true(found.percent == percent && found.damages == damages);
    return found.known;
}

/* A matching part says nothing about the rest: known results stay known. */
TEST(test_retain__a_note_of_verify_says_what_is_known)
{
    struct manifest_summary summary = {
        .run = "book", .step = 7, .attempt = 2, .nonce = "0123456789abcdef0123456789abcdef"};
    struct verified found;
    stored_note[0] = '\0';
    assert_int_equal(known_after(5, 0), VERIFIED_UNKNOWN);
    assert_int_equal(known_after(100, 0), VERIFIED_WHOLE);
    assert_int_equal(known_after(5, 0), VERIFIED_WHOLE);
    assert_int_equal(known_after(5, 1), VERIFIED_DAMAGED);
    assert_int_equal(known_after(5, 0), VERIFIED_DAMAGED);
    assert_int_equal(known_after(100, 0), VERIFIED_WHOLE);
    summary.nonce[0] = 'f'; /* saved again in its place */
    assert_int_equal(read_note(&found, &summary), ERR_NOT_FOUND);
    assert_false(verified_stays(ERR_NOT_FOUND, &found));
    assert_true(verified_stays(ERR_IO, &found));
    assert_int_equal(found.known, VERIFIED_UNKNOWN);
    summary.nonce[0] = '0'; /* as an earlier version wrote it */
    static const char *const tails[] = {"100,\"seed\":0,\"damages\":0}",
                                        "5,\"seed\":9,\"damages\":0}",
                                        "5,\"seed\":9,\"damages\":2}"};
    const enum verified_known want[] = {VERIFIED_WHOLE, VERIFIED_UNKNOWN, VERIFIED_DAMAGED};
    for (int i = 0; i < 3; i++) {
        snprintf(stored_note, sizeof stored_note,
                 "{\"nonce\":\"%s\",\"time\":\"2026-01-02T03:04:05Z\",\"percent\":%s",
                 summary.nonce, tails[i]);
        assert_int_equal(read_note(&found, &summary), 0);
        assert_int_equal(found.known, want[i]);
    }
}

/* ---- random runs ---- */

static uint32_t make_random(struct retain_item *items)
{
    uint32_t count = 0, wanted = (uint32_t)next_random(ITEMS_MAX) + 1;
    for (uint64_t attempt = 1; count < wanted; attempt++)
        for (uint64_t step = next_random(5); count < wanted && next_random(8) > 0;
             step += 1 + next_random(3))
            items[count++] = (struct retain_item){.step = step,
                                                  .attempt = attempt,
                                                  .time = (int64_t)next_random(1000),
                                                  .has_metric = next_random(4) > 0,
                                                  .is_pinned = next_random(10) == 0,
                                                  .is_leased = next_random(10) == 0,
                                                  .is_damaged = next_random(6) == 0,
                                                  .is_proven = next_random(3) == 0,
                                                  .metric = (double)next_random(20)};
    for (uint32_t i = count; i > 1; i--) { /* the order of the list means nothing */
        uint32_t other = (uint32_t)next_random(i);
        struct retain_item item = items[other];
        items[other] = items[i - 1];
        items[i - 1] = item;
    }
    return count;
}

static bool is_newer(const struct retain_item *a, const struct retain_item *b)
{
    return a->attempt > b->attempt || (a->attempt == b->attempt && a->step > b->step);
}

static uint32_t newer_whole(const struct retain_item *items, uint32_t count, uint32_t index)
{
    uint32_t newer = 0;
    for (uint32_t i = 0; i < count; i++)
        newer += !items[i].is_damaged && is_newer(&items[i], &items[index]);
    return newer;
}

/* Likewise that are known whole. */
static uint32_t newer_proven(const struct retain_item *items, uint32_t count, uint32_t index)
{
    uint32_t newer = 0;
    for (uint32_t i = 0; i < count; i++)
        newer += items[i].is_proven && !items[i].is_damaged && is_newer(&items[i], &items[index]);
    return newer;
}

static bool has_metric(const struct retain_item *item)
{
    return item->has_metric && !item->is_damaged;
}

/* How many have a better metric; of equals the newer is better. */
static uint32_t num_better(const struct retain_item *items, uint32_t count, uint32_t index,
                           bool highest)
{
    uint32_t better = 0;
    for (uint32_t i = 0; i < count; i++) {
        double by =
            highest ? items[i].metric - items[index].metric : items[index].metric - items[i].metric;
        better +=
            has_metric(&items[i]) && (by > 0 || (by == 0 && is_newer(&items[i], &items[index])));
    }
    return better;
}

TEST(test_retain__no_rules_remove_what_must_stay)
{
    static struct retain_item items[ITEMS_MAX];
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t count = make_random(items), removed, gone = 0;
        struct retain_rules rules = {.keep_last = (uint32_t)next_random(5),
                                     .keep_every = next_random(4),
                                     .keep_within = next_random(3) * 100,
                                     .keep_best = (uint32_t)next_random(4),
                                     .best_is_highest = next_random(2) > 0,
                                     .may_remove_most = next_random(2) > 0};
        uint32_t num_metrics = 0, num_whole = 0;
        for (uint32_t i = 0; i < count; i++) {
            num_metrics += has_metric(&items[i]);
            num_whole += !items[i].is_damaged;
        }
        rules.keep_last += rules.keep_every == 0 && rules.keep_within == 0;
        int error = retain_plan(items, count, &rules, &removed);
        if (rules.keep_best > 0 && num_metrics == 0) {
            assert_int_equal(error, ERR_INVALID);
            continue;
        }
        assert_true(error == 0 || error == ERR_DENIED);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t newer = newer_whole(items, count, i);
            bool r1 = items[i].is_proven && newer_proven(items, count, i) < RETAIN_GOOD_MIN;
            bool r2 = newer < RETAIN_GOOD_MIN, r3 = items[i].is_damaged;
            bool r4 = items[i].is_pinned || items[i].is_leased, must_stay = r1 || r2 || r3 || r4;
            bool is_last = !items[i].is_damaged && newer < rules.keep_last;
            gone += items[i].reasons == 0;
            assert_true(!must_stay || items[i].reasons != 0);
            bool is_best = has_metric(&items[i]) &&
                           num_better(items, count, i, rules.best_is_highest) < rules.keep_best;
            assert_int_equal((items[i].reasons & RETAIN_LAST) != 0, is_last);
            assert_int_equal((items[i].reasons & RETAIN_BEST) != 0, is_best);
            assert_int_equal((items[i].reasons & RETAIN_GOOD) != 0, r2 && !r3);
            assert_int_equal((items[i].reasons & RETAIN_UNVERIFIABLE) != 0, r3);
            assert_int_equal((items[i].reasons & RETAIN_PINNED) != 0, items[i].is_pinned);
            assert_int_equal((items[i].reasons & RETAIN_LEASED) != 0, items[i].is_leased);
        }
        assert_int_equal(gone, removed);
        assert_int_equal(error == ERR_DENIED, removed > num_whole / 2 && !rules.may_remove_most);
    }
}

TEST(test_retain__a_cursor_of_the_scrub_is_read_as_it_was_written)
{
    struct scrub_cursor written = {9, 8, 7, 6, 5, -4, 3, 2, 1, 12, 13, 14, 1, 11}, read;
    char text[SCRUB_CURSOR_BYTES_MAX];
    scrub_cursor_write(text, &written);
    assert_true(scrub_cursor_read(&read, 11, text));
    assert_memory_equal(&read, &written, sizeof read);
    memset(text, '9', sizeof text); /* the longest one fits */
    memset(&read, 0xff, sizeof read);
    scrub_cursor_write(text, &read);
    assert_true(scrub_cursor_read(&read, 1, text) && read.missed == UINT64_MAX);
    assert_true(scrub_cursor_read(&read, 11, "1 9 8 7 6 5 4 3 2\n")); /* of an earlier version */
    assert_true(scrub_has_proven(&read, 2, 3) && scrub_has_proven(&read, 99, 2));
    assert_false(scrub_has_proven(&read, 3, 3) || scrub_has_proven(&read, 0, 4));
    assert_true(scrub_cursor_read(&read, 11, "1 9 8 7 6 5 4\n")); /* nothing was verified */
    assert_false(scrub_has_proven(&read, 0, 1));
    assert_true(scrub_cursor_read(&read, 0, "")); /* there is none */
    assert_true(read.attempt == 0 && !scrub_has_proven(&read, 0, 1));
    static const char *const others[] = {"2 9 8 7 6 5 4 3 2\n", "1 9 8", ""};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        read = written;
        assert_false(scrub_cursor_read(&read, 12, others[i]));
        assert_true(read.attempt == 0 && read.number == 12); /* the next is not hidden by it */
        assert_false(scrub_has_proven(&read, 0, 1));
    }
}

/* A shorter one has no results for the rest. */
TEST(test_retain__a_cursor_that_we_never_wrote_has_read_nothing_back)
{
    struct scrub_cursor written = {9, 8, 7, 6, 5, 4, 30, 20, 10, 12, 13, 14, 1, 11}, read;
    char text[SCRUB_CURSOR_BYTES_MAX], cut[SCRUB_CURSOR_BYTES_MAX];
    scrub_cursor_write(text, &written);
    assert_true(scrub_cursor_read(&read, 1, text) && scrub_has_proven(&read, 1, 1));
    for (size_t length = 0; length < strlen(text); length++) {
        snprintf(cut, sizeof cut, "%.*s", (int)length, text);
        assert_false(scrub_cursor_read(&read, 1, cut));
        assert_false(scrub_has_proven(&read, 1, 1));
    }
    strcat(text, "\n");
    assert_false(scrub_cursor_read(&read, 1, text));
    static const char *const others[] = {
        "1 9 8 7 6 5 4 3\n",                      /* seven numbers */
        "1 9 8 7 6 5 4 3 2 1 1\n",                /* ten */
        "1 9 8 7 6 5 4 3 2 1 1 1 1 1 1\n",        /* fourteen */
        "1 9 8 7 6 5 4 3 2\n\n",                  /* more after them */
        "1 9 8 7 6 5 4 3 2 x\n",                  /* no number */
        "1 9 8 7 6 5 4 3 -2\n",                   /* a sign */
        "1 9 8 7 6 5 4 3 +2\n",                   /* another */
        "1 9 8 7 6 5 4 3 02\n",                   /* a zero before it */
        "1 9 8 7 6 5 4 3  2\n",                   /* two blanks */
        "1 9 8 7 6 5 4 3 18446744073709551616\n", /* 2^64 */
        "1 9 8 7 6 9223372036854775808 4 3 2\n",  /* 2^63 */
        "19 8 7 6 5 4 3 2 1\n",                   /* the version is a part of one */
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (scrub_cursor_read(&read, 1, others[i]) || scrub_has_proven(&read, 0, 1))
            fail_msg("%s was read", others[i]);
}

TEST(test_retain__what_was_missed_was_not_read_back_whatever_is_newer)
{
    struct scrub_cursor cursor = {.begun = 1, .attempt = 2, .step = 50};
    cursor.proven_attempt = 2;
    cursor.proven_step = 40;
    assert_true(scrub_has_proven(&cursor, 0, 1) && scrub_has_proven(&cursor, 40, 2));
    scrub_cursor_except(&cursor, 20, 2);
    assert_true(scrub_has_proven(&cursor, 19, 2) && scrub_has_proven(&cursor, 21, 2));
    assert_false(scrub_has_proven(&cursor, 20, 2));
    assert_true(scrub_has_proven(&cursor, 20, 1)); /* of another attempt */
    scrub_cursor_except(&cursor, 90, 1);           /* with unknown checkpoints in between */
    assert_true(scrub_has_proven(&cursor, 89, 1) && scrub_has_proven(&cursor, 21, 2));
    assert_false(scrub_has_proven(&cursor, 90, 1) || scrub_has_proven(&cursor, 19, 2));
    scrub_cursor_brought(&cursor, 50, 2); /* which the pass reaches */
    assert_true(cursor.missed == 0 && !scrub_has_proven(&cursor, 40, 2));
    scrub_cursor_brought(&cursor, 49, 2);
    assert_true(cursor.missed == 1);
    cursor = (struct scrub_cursor){.attempt = 2, .step = 50};
    scrub_cursor_brought(&cursor, 1, 1); /* between two passes */
    assert_true(cursor.missed == 0);
}

int main(void)
{
    seed_random();
    return suite_run(NULL, NULL);
}
