/* ckptd_throttle.c - when chunks may begin (ckptd/machines/throttle.c).
 *
 * Goal: a rate is held within 1 % and never exceeded over any stretch of time, a save ends
 * regardless of the phases that a trainer announces, and no counter overflows. Method: the module
 * is pure, so time is a number here. A small world has chunks that wait, a timer that comes late, a
 * disk that takes its time, and a trainer with phases. It records when each chunk began. Random
 * worlds are seeded (SEED=). */
#include "ckptd/machines/throttle.h"
#include "tests/unit/random.h"
#include "tests/unit/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1u << 20)
#define CHUNKS_MAX 20000u
#define WINDOW 8u

struct world {
    struct throttle pace;
    int64_t now_ms;
    uint32_t late_ms;           /* a timer comes so much late, at most */
    uint32_t disk_ms;           /* a chunk is under way for so long */
    int64_t busy_ms, period_ms; /* the first busy_ms of each period are busy; period 0: all are */
    uint64_t random;
    uint32_t num_chunks, num_begun, num_ended;
    int64_t stamps[CHUNKS_MAX], ready_ms[CHUNKS_MAX], begun_ms[CHUNKS_MAX];
    uint32_t bytes; /* of each chunk */
};

static struct world world;

static struct throttle_options options_of(int64_t rate, bool quiet, int64_t quiet_wait_ms)
{
    return (struct throttle_options){.write_rate = rate,
                                     .quiet = quiet,
                                     .quiet_wait_ms = quiet_wait_ms,
                                     .in_flight_max = WINDOW,
                                     .chunk_bytes = MIB};
}

static struct world *new_world(struct throttle_options options)
{
    struct world *w = &world;
    memset(w, 0, sizeof *w);
    w->bytes = options.chunk_bytes;
    w->now_ms = 1000;
    w->random = 88172645463325252ull;
    w->period_ms = 1000; /* and never busy */
    throttle_init(&w->pace, &options);
    return w;
}

static uint32_t random_below(struct world *w, uint32_t limit)
{
    return limit == 0 ? 0 : (uint32_t)(splitmix64(&w->random) % limit);
}

static bool is_busy(const struct world *w, int64_t at_ms)
{
    return w->period_ms == 0 || at_ms % w->period_ms < w->busy_ms;
}

static void add_chunks(struct world *w, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++, w->num_chunks++) {
        assert_true(w->num_chunks < CHUNKS_MAX);
        w->ready_ms[w->num_chunks] = w->now_ms;
        w->stamps[w->num_chunks] = throttle_enter(&w->pace, w->now_ms);
    }
}

/* Starts the allowed chunks; returns when to check again. */
static int64_t look(struct world *w)
{
    int64_t wait_ms = -1;
    while (w->num_ended < w->num_begun && w->begun_ms[w->num_ended] + w->disk_ms <= w->now_ms)
        w->num_ended++;
    while (w->num_begun < w->num_chunks) {
        struct throttle_moment moment = {w->now_ms, is_busy(w, w->now_ms),
                                         w->disk_ms ? w->num_begun - w->num_ended : 0};
        if (throttle_ask(&w->pace, &moment, w->bytes, w->stamps[w->num_begun], &wait_ms) !=
            THROTTLE_GO)
            break;
        w->begun_ms[w->num_begun++] = w->now_ms;
    }
    int64_t next = wait_ms >= 0 ? w->now_ms + wait_ms + random_below(w, w->late_ms + 1) : INT64_MAX;
    if (w->num_ended < w->num_begun && w->disk_ms > 0) {
        int64_t ends = w->begun_ms[w->num_ended] + w->disk_ms;
        next = ends < next ? ends : next;
    }
    /* The trainer wakes us when it becomes quiet. */
    if (w->period_ms > 0 && is_busy(w, w->now_ms)) {
        int64_t quiet = w->now_ms - w->now_ms % w->period_ms + w->busy_ms;
        next = quiet < next ? quiet : next;
    }
    return next;
}

/* Until all chunks have begun. */
static void run(struct world *w)
{
    for (uint32_t turns = 0; w->num_begun < w->num_chunks; turns++) {
        assert_true(turns < 20 * CHUNKS_MAX);
        int64_t next = look(w);
        if (w->num_begun == w->num_chunks)
            return;
        assert_true(next > w->now_ms && next < INT64_MAX); /* nothing waits for ever */
        w->now_ms = next;
    }
}

/* ---- the rate ---- */

/* Of all chunks, from the moment when they were ready. */
static double rate_of(const struct world *w)
{
    int64_t ms = w->begun_ms[w->num_begun - 1] - w->ready_ms[0];
    return (double)w->num_begun * w->bytes / (double)ms * 1000.0;
}

TEST(test_pace__a_rate_is_held_within_one_percent_though_timers_come_late)
{
    static const int64_t rates[] = {THROTTLE_RATE_MIN, 7777777, 100 * MIB, 1000000000, 3000000000};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        struct throttle_options options = options_of(rates[i], false, 0);
        struct world *w = new_world(options);
        w->late_ms = THROTTLE_LATE_MS / 2;
        add_chunks(w, CHUNKS_MAX); /* so many that the lateness of the last timer is negligible */
        run(w);
        double ratio = rate_of(w) / (double)rates[i];
        if (ratio > 1.0 || ratio < 0.99)
            fail_msg("rate %lld: held to %f of it", (long long)rates[i], ratio);
    }
}

TEST(test_pace__n_bytes_take_at_least_n_over_the_rate)
{
    for (uint32_t count = 1; count < 50; count++) {
        struct throttle_options options = options_of(10 * MIB, false, 0);
        struct world *w = new_world(options);
        add_chunks(w, count);
        run(w);
        assert_true((w->begun_ms[count - 1] - 1000) * 10 >= (int64_t)count * 1000);
    }
}

/* In every stretch of time at most its share, plus the amount that one late timer catches up. */
TEST(test_pace__no_stretch_of_a_burst_exceeds_the_rate)
{
    struct world *w = new_world(options_of(200 * MIB, false, 0));
    w->late_ms = 400;
    add_chunks(w, 3000);
    run(w);
    for (uint32_t i = 0; i < w->num_begun; i++)
        for (uint32_t j = i; j < w->num_begun && j < i + 200; j++) {
            double share =
                200.0 * (double)(w->begun_ms[j] - w->begun_ms[i] + THROTTLE_LATE_MS) / 1000;
            assert_true((double)(j - i + 1) <= share + 1);
        }
}

TEST(test_pace__time_in_which_nobody_waits_is_not_saved_up)
{
    struct world *w = new_world(options_of(10 * MIB, false, 0));
    add_chunks(w, 20);
    run(w);
    w->now_ms += 3600000;
    uint32_t first = w->num_chunks;
    add_chunks(w, 20);
    run(w);
    assert_true(w->begun_ms[first] - w->ready_ms[first] >= 100);
    assert_true(w->begun_ms[first + 19] - w->ready_ms[first] >= 2000);
}

TEST(test_pace__a_chunk_larger_than_the_credit_of_a_late_timer_begins_in_its_time)
{
    struct throttle_options options = options_of(THROTTLE_RATE_MIN, false, 0);
    options.chunk_bytes = 64 * MIB;
    struct world *w = new_world(options);
    add_chunks(w, 3);
    run(w);
    assert_int_equal(w->begun_ms[0] - w->ready_ms[0], 64000);
    assert_int_equal(w->begun_ms[2] - w->ready_ms[0], 192000);
}

TEST(test_pace__without_a_rate_nothing_waits)
{
    struct world *w = new_world(options_of(0, false, 0));
    assert_false(throttle_is_on(&w->pace));
    add_chunks(w, 1000);
    look(w);
    assert_int_equal(w->num_begun, 1000);
    assert_int_equal(w->pace.rate_ms, 0);
}

/* ---- phases ---- */

TEST(test_pace__chunks_begin_in_quiet_phases_only)
{
    struct world *w = new_world(options_of(0, true, 1000000));
    w->busy_ms = 300;
    w->disk_ms = 5;
    add_chunks(w, 5000);
    run(w);
    for (uint32_t i = 0; i < w->num_begun; i++)
        assert_false(is_busy(w, w->begun_ms[i]));
    /* 8 chunks of 5 ms each at a time, in 70 % of the time. */
    double ms = (double)(w->begun_ms[4999] - w->ready_ms[0]);
    assert_true(ms < 5000.0 / WINDOW * 5 / 0.7 * 1.05);
    assert_int_equal(w->pace.num_late, 0);
}

TEST(test_pace__a_trainer_that_is_busy_for_ever_holds_a_save_up_by_the_bound)
{
    struct world *w = new_world(options_of(0, true, 2000));
    w->period_ms = 0;
    w->disk_ms = 1;
    add_chunks(w, 4000);
    run(w);
    assert_int_equal(w->begun_ms[0] - w->ready_ms[0], 2000);
    assert_true(w->begun_ms[3999] - w->ready_ms[0] <= 2000 + 4000 / WINDOW + 1);
    assert_int_equal(w->pace.num_late, 4000);
    assert_int_equal(w->pace.quiet_ms, 2000);
}

TEST(test_pace__waiting_for_the_rate_does_not_use_the_patience_up)
{
    struct world *w = new_world(options_of(10 * MIB, true, 5000));
    w->busy_ms = 100;
    add_chunks(w, 300); /* 30 s by the rate, of which 3 s are busy */
    run(w);
    for (uint32_t i = 0; i < w->num_begun; i++)
        assert_false(is_busy(w, w->begun_ms[i]));
    assert_int_equal(w->pace.num_late, 0);
    assert_true(w->pace.rate_ms >= 20000);
    assert_true(w->pace.quiet_ms > 0 && w->pace.quiet_ms <= 5000);
}

TEST(test_pace__no_chunk_is_held_back_by_phases_longer_than_the_bound)
{
    seed_random();
    uint64_t seed = random_state;
    for (uint32_t round = 0; round < 200; round++) {
        struct throttle_options options =
            options_of(0, true, 50 + (int64_t)(seed + round * 37) % 3000);
        struct world *w = new_world(options);
        w->random ^= seed + round;
        w->period_ms = 1 + random_below(w, 2000);
        w->busy_ms = random_below(w, (uint32_t)w->period_ms + 1);
        w->disk_ms = 1 + random_below(w, 4);
        for (uint32_t burst = 0; burst < 5; burst++) {
            add_chunks(w, 1 + random_below(w, 200));
            run(w);
            w->now_ms += random_below(w, 500);
        }
        /* Its own bound, and the disk's time for the chunks before it. */
        for (uint32_t i = 0; i < w->num_begun; i++)
            assert_true(w->begun_ms[i] - w->ready_ms[i] <=
                        options.quiet_wait_ms + (int64_t)(200 / WINDOW + 2) * w->disk_ms);
    }
}

TEST(test_pace__no_more_is_under_way_than_the_window)
{
    struct world *w = new_world(options_of(0, true, 1000));
    w->disk_ms = 10;
    add_chunks(w, 1000);
    look(w);
    assert_int_equal(w->num_begun, WINDOW);
    run(w);
    for (uint32_t i = WINDOW; i < w->num_begun; i++)
        assert_true(w->begun_ms[i] - w->begun_ms[i - WINDOW] >= 10);
}

/* ---- the edges ---- */

TEST(test_pace__the_largest_numbers_do_not_overflow)
{
    struct throttle_options options = options_of(THROTTLE_RATE_MAX, true, INT64_MAX / 4);
    int64_t wait_ms;
    options.chunk_bytes = UINT32_MAX;
    struct throttle pace;
    throttle_init(&pace, &options);
    int64_t stamp = throttle_enter(&pace, 0);
    throttle_enter(&pace, INT64_MAX / 4);
    /* A quarter of all time passes at once, under the highest rate. */
    struct throttle_moment moment = {INT64_MAX / 4 + 1, true, 0};
    assert_int_equal(throttle_ask(&pace, &moment, UINT32_MAX, stamp, &wait_ms),
                     THROTTLE_HOLD_QUIET);
    assert_true(wait_ms > 0);
    moment.now_ms = INT64_MAX / 2 - 10;
    assert_int_equal(throttle_ask(&pace, &moment, UINT32_MAX, stamp, &wait_ms),
                     THROTTLE_HOLD_QUIET);
    moment.now_ms = INT64_MAX;
    assert_int_equal(throttle_ask(&pace, &moment, UINT32_MAX, stamp, &wait_ms), THROTTLE_GO);
    assert_true(pace.credit <=
                (uint64_t)THROTTLE_RATE_MAX * THROTTLE_LATE_MS + UINT32_MAX * 1000ull);
    moment.busy = false;
    assert_int_equal(throttle_ask(&pace, &moment, UINT32_MAX, stamp, &wait_ms), THROTTLE_GO);
    assert_int_equal(pace.num_waiting, 0);
}

TEST(test_pace__a_clock_that_goes_back_stands_still)
{
    struct throttle_options options = options_of(10 * MIB, false, 0);
    struct throttle pace;
    int64_t wait_ms;
    throttle_init(&pace, &options);
    int64_t stamp = throttle_enter(&pace, 5000);
    struct throttle_moment moment = {4000, false, 0};
    assert_int_equal(throttle_ask(&pace, &moment, MIB, stamp, &wait_ms), THROTTLE_HOLD_RATE);
    assert_int_equal(wait_ms, 100);
    moment.now_ms = 5100;
    assert_int_equal(throttle_ask(&pace, &moment, MIB, stamp, &wait_ms), THROTTLE_GO);
}

TEST(test_pace__a_chunk_may_leave_without_having_begun)
{
    struct throttle_options options = options_of(10 * MIB, false, 0);
    struct throttle pace;
    int64_t wait_ms;
    throttle_init(&pace, &options);
    throttle_enter(&pace, 0);
    int64_t stamp = throttle_enter(&pace, 0);
    throttle_leave(&pace, 50);
    struct throttle_moment moment = {100, false, 0};
    assert_int_equal(throttle_ask(&pace, &moment, MIB, stamp, &wait_ms), THROTTLE_GO);
    assert_int_equal(pace.num_waiting, 0);
}

SUITE(NULL, NULL)
