/* ckptd_ledger.c - reservations of disk space and the hours until the disk is full.
 *
 * Goal: reservations never exceed the free space, in bytes and inodes; they are returned to the
 * byte; the hours follow the last saves and removals. Method: the pure decisions of ledger.c on
 * numbers that can be checked by hand. */
#include "ckptd/core/ledger.h"
#include "tests/unit/suite.h"

#include <string.h>

#define GB 1000000000ull
#define HOUR 3600000

static const struct storage_space disk = {
    .bytes_total = 100 * GB, .bytes_free = 50 * GB, .inodes_total = 1000, .inodes_free = 200};

TEST(test_ledger__saves_at_the_same_time_share_the_room)
{
    struct ledger ledger = {.usable_fraction = 0.8};
    struct ledger_promise a, b, c;
    assert_true(ledger_room(&ledger, &disk) == 30 * GB); /* 80 usable, 50 used */
    assert_int_equal(ledger_promise(&ledger, &a, &disk, 20 * GB, 10), 0);
    assert_int_equal(ledger_promise(&ledger, &b, &disk, 11 * GB, 10), ERR_SPACE);
    assert_non_null(strstr(report_message(), "11000000000 bytes does not fit: 50000000000 of "
                                             "80000000000 usable bytes are in use, 20000000000"));
    assert_int_equal(ledger_promise(&ledger, &c, &disk, 10 * GB, 10), 0);
    assert_true(ledger_room(&ledger, &disk) == 0);
    /* The disk has given half of the first one: it counts there now. */
    struct storage_space later = disk;
    ledger_take(&ledger, &a, 10 * GB, 5);
    later.bytes_free -= 10 * GB;
    assert_true(ledger_room(&ledger, &later) == 0);
    ledger_end(&ledger, &a);
    assert_true(ledger_room(&ledger, &later) == 10 * GB);
    ledger_end(&ledger, &c);
    assert_true(ledger_room(&ledger, &later) == 20 * GB);
    assert_true(ledger.promised.bytes == 0 && ledger.promised.inodes == 0);
}

TEST(test_ledger__a_disk_fuller_than_allowed_has_no_room)
{
    struct ledger ledger = {.usable_fraction = 0.4};
    struct ledger_promise promise;
    assert_true(ledger_room(&ledger, &disk) == 0);
    assert_int_equal(ledger_promise(&ledger, &promise, &disk, 1, 1), ERR_SPACE);
    ledger.usable_fraction = 1.0;
    assert_int_equal(ledger_promise(&ledger, &promise, &disk, 50 * GB, 1), 0);
}

TEST(test_ledger__some_inodes_are_kept_for_removals)
{
    struct ledger ledger = {.usable_fraction = 1.0};
    struct ledger_promise a, b;
    struct storage_space no_inodes = disk;
    assert_int_equal(ledger_promise(&ledger, &a, &disk, 1, 100), 0);
    assert_int_equal(ledger_promise(&ledger, &b, &disk, 1, 37), ERR_SPACE); /* 100 + 64 + 37 */
    assert_non_null(strstr(report_message(), "200 inodes are free, 100 of them promised"));
    assert_int_equal(ledger_promise(&ledger, &b, &disk, 1, 36), 0);
    no_inodes.inodes_total = no_inodes.inodes_free = 0; /* a file system that does not count them */
    assert_int_equal(ledger_promise(&ledger, &b, &no_inodes, 1, 1000), 0);
}

/* So much, and no byte less, must go before a save fits. */
TEST(test_ledger__the_deficit_is_what_a_promise_lacks)
{
    struct ledger ledger = {.usable_fraction = 0.8, .promised = {20 * GB, 100}};
    struct ledger_promise lack = ledger_deficit(&ledger, &disk, 10 * GB, 36), promise;
    assert_true(lack.bytes == 0 && lack.inodes == 0);
    lack = ledger_deficit(&ledger, &disk, 15 * GB, 40);
    assert_true(lack.bytes == 5 * GB && lack.inodes == 4);
    struct storage_space later = disk;
    later.bytes_free += lack.bytes;
    later.inodes_free += lack.inodes;
    assert_int_equal(ledger_promise(&ledger, &promise, &later, 15 * GB + 1, 40), ERR_SPACE);
    assert_int_equal(ledger_promise(&ledger, &promise, &later, 15 * GB, 40), 0);
    later = disk; /* fuller than its usable part: that must go, too */
    later.bytes_free = 5 * GB;
    ledger = (struct ledger){.usable_fraction = 0.8};
    lack = ledger_deficit(&ledger, &later, GB, 1);
    assert_true(lack.bytes == 16 * GB);
    later.bytes_free += lack.bytes;
    assert_int_equal(ledger_promise(&ledger, &promise, &later, GB, 1), 0);
}

TEST(test_ledger__hours_follow_what_comes_and_goes)
{
    struct ledger ledger = {.usable_fraction = 0.8};
    char text[LEDGER_TEXT_BYTES];
    assert_true(ledger_hours_to_full(&ledger, &disk, 0) < 0); /* nothing is known */
    ledger_note(&ledger, 0, 7 * (int64_t)GB);
    assert_true(ledger_growth(&ledger, HOUR) == 0);
    ledger_note(&ledger, 1000, 2 * (int64_t)GB);
    assert_true(ledger_growth(&ledger, 1000) == 0); /* a second says nothing about hours */
    assert_false(ledger_knows_growth(&ledger, LEDGER_SPAN_MS_MIN - 1));
    assert_true(ledger_knows_growth(&ledger, LEDGER_SPAN_MS_MIN));
    ledger_say_hours(text, &ledger, &disk, 1000);
    assert_string_equal(text, "the time until it is full is unknown: no save rate is known");
    ledger_note(&ledger, HOUR, 4 * (int64_t)GB);
    assert_true(ledger_growth(&ledger, HOUR) == 6.0 * (double)GB);
    assert_true(ledger_hours_to_full(&ledger, &disk, HOUR) == 5.0);
    ledger_say_hours(text, &ledger, &disk, HOUR);
    assert_string_equal(text, "it is full in 5.0 hours at the rate of the last saves");
    ledger_note(&ledger, HOUR, -3 * (int64_t)GB);
    assert_true(ledger_hours_to_full(&ledger, &disk, HOUR) == 10.0);
    ledger_note(&ledger, HOUR, -3 * (int64_t)GB);
    assert_true(ledger_hours_to_full(&ledger, &disk, HOUR) < 0); /* as much goes as comes */
    ledger_say_hours(text, &ledger, &disk, HOUR);
    assert_string_equal(text, "it does not fill at the rate of the last saves");
}

TEST(test_ledger__only_the_last_changes_count)
{
    struct ledger ledger = {.usable_fraction = 0.8};
    for (int i = 0; i < 1000; i++) /* a GB an hour, then one a minute */
        ledger_note(&ledger, i * (int64_t)HOUR, (int64_t)GB);
    assert_true(ledger_growth(&ledger, 999ll * HOUR) == (double)GB);
    for (int i = 0; i < 100; i++)
        ledger_note(&ledger, 999ll * HOUR + i * (HOUR / 60), (int64_t)GB);
    double growth = ledger_growth(&ledger, 999ll * HOUR + 99ll * (HOUR / 60));
    assert_true(growth > 59.999 * (double)GB && growth < 60.001 * (double)GB);
}

TEST(test_ledger__a_warning_comes_once_until_it_was_better)
{
    struct ledger ledger = {.usable_fraction = 0.8};
    assert_false(ledger_must_warn(&ledger, &disk, 1, 15 * GB)); /* two more fit */
    assert_true(ledger_must_warn(&ledger, &disk, 1, 16 * GB));
    assert_false(ledger_must_warn(&ledger, &disk, HOUR, 16 * GB));
    assert_false(ledger_must_warn(&ledger, &disk, HOUR + 1, 16 * GB));
    assert_false(ledger_must_warn(&ledger, &disk, HOUR + 1, 15 * GB));
    assert_true(ledger_must_warn(&ledger, &disk, HOUR + 2, 16 * GB));
    assert_false(ledger_must_warn(&ledger, &disk, HOUR + 3, 15 * GB));
    assert_false(ledger_must_warn(&ledger, &disk, HOUR + 4, 16 * GB)); /* it was said just now */
    ledger_note(&ledger, 0, 1);
    ledger_note(&ledger, HOUR, 2 * (int64_t)GB);                         /* 15 hours are left */
    assert_true(ledger_must_warn(&ledger, &disk, 3 * HOUR, 1) == false); /* 45 by now */
    ledger_note(&ledger, 3 * HOUR, 10 * (int64_t)GB);
    assert_true(ledger_must_warn(&ledger, &disk, 3 * HOUR, 1));
}

SUITE(NULL, NULL)
