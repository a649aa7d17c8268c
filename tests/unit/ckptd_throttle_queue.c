/* ckptd_throttle_queue.c - the daemon's throttling: rate, phases, and the saves exempt from it.
 *
 * Goal: a save takes the time that pace.write_rate gives it and is committed. A trainer that is
 * busy for ever, or announces nonsense, delays it by pace.quiet_wait_ms at most. Throttling does
 * not delay a save that a client waits for (WaitSave, a drain, a new attempt, a rank without a free
 * image). Method: a service in this process (ckptd_bed.h) with 4 MiB of state; the test polls a
 * save without waiting, since waiting would hurry it, and compares times with those of the rate
 * alone. */
#include "proto/base/clock.h"
#include "tests/unit/ckptd_loading.h"
#include "tests/unit/suite.h"

#define STATE_BYTES ((int64_t)ROWS * COLUMNS * 4)
/* At this rate a save takes more than 4 s: long enough to detect a hurry. */
#define RATE_SLOW ((int64_t)MIB)
#define SLOW_MS (STATE_BYTES * 1000 / RATE_SLOW)
/* A hurried save takes a fraction of a second, and on a busy machine seconds. */
#define HURRIED_MS (SLOW_MS * 7 / 8)
#define PATIENCE_MS 600
#define PATIENCE_LONG_MS 60000
#define SOON_MS (PATIENCE_LONG_MS / 2)

static struct peer peers[RANKS];

/* ---- the bed ---- */

static int tear_down(void **state)
{
    peers_close(peers, RANKS);
    return bed_tear_down(state);
}

/* With a rate, or with phases. */
static struct bed *start_with(void **state, int64_t rate, int64_t quiet_wait_ms,
                              uint32_t world_size)
{
    struct bed *bed = *state;
    bed->config.pace_write_rate = rate;
    bed->config.pace_quiet = quiet_wait_ms > 0;
    bed->config.pace_quiet_wait_ms = quiet_wait_ms;
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, world_size);
    return bed;
}

static void begin_all(uint32_t world_size, uint64_t step)
{
    for (uint32_t i = 0; i < world_size; i++)
        assert_int_equal(peer_begin(&peers[i], step), 0);
    for (uint32_t i = 0; i < world_size; i++)
        peer_finish(&peers[i], step);
}

/* Milliseconds from `since` until it is committed. */
static int64_t until_committed(struct bed *bed, uint64_t step, int64_t since)
{
    Holdfast__V1__SaveState state;
    while ((state = ask_save(bed, step, 0, NULL)) == HOLDFAST__V1__SAVE_STATE__SAVE_STAGING) {
        assert_true(clock_ms() - since < SOON_MS);
        sleep_ms(5);
    }
    assert_int_equal(state, HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    return clock_ms() - since;
}

static double number_of(struct bed *bed, const char *name)
{
    return status_number(bed, "pace", name);
}

static void say(struct peer *peer, enum arena_phase phase)
{
    uint64_t one = 1;
    if (arena_set_phase(peer->control, phase))
        assert_int_equal(write(peer->event_fd, &one, sizeof one), sizeof one);
}

static void say_all(enum arena_phase phase)
{
    for (uint32_t i = 0; i < RANKS; i++)
        say(&peers[i], phase);
}

/* ---- the rate ---- */

TEST_BETWEEN(test_gate__a_save_takes_as_long_as_the_rate_says_and_is_committed, bed_set_up_stopped,
             tear_down)
{
    struct bed *bed = start_with(state, 4 * MIB, 0, RANKS);
    int64_t start = clock_ms(), bytes = 0;
    begin_all(RANKS, 1);
    int64_t ms = until_committed(bed, 1, start);
    for (uint32_t i = 0; i < RANKS; i++)
        bytes += (int64_t)peers[i].image_bytes;
    assert_true(ms >= bytes * 1000 / (4 * MIB));
    assert_true(ms < 10 * bytes * 1000 / (4 * MIB));
    assert_int_equal(load_all(bed, 1, NULL), 0);
    assert_true(number_of(bed, "held_by_rate_seconds") > 0.5);
    assert_true(number_of(bed, "held_by_phases_seconds") == 0);
    assert_true(number_of(bed, "chunks_held") == 0);
}

TEST_BETWEEN(test_gate__loads_are_not_held_to_the_rate, bed_set_up_stopped, tear_down)
{
    struct bed *bed = start_with(state, RATE_SLOW, 0, 1);
    begin_all(1, 1);
    assert_int_equal(wait_save(bed, 1, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    peers_close(peers, 1);
    bed_stop(bed);
    assert_int_equal(bed_start(bed), 0);
    int64_t start = clock_ms();
    assert_int_equal(load_all(bed, 1, NULL), 0);
    assert_true(clock_ms() - start < HURRIED_MS);
}

static void await_held(struct bed *bed)
{
    for (int ms = 0; ms < BED_PATIENCE_MS && number_of(bed, "chunks_held") == 0; ms += 10)
        sleep_ms(10);
    assert_true(number_of(bed, "chunks_held") > 0);
}

/* ---- exempt saves ---- */

static void wait_for_it(struct bed *bed)
{
    assert_int_equal(wait_save(bed, 1, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
}

/* It must be committed before that one. */
static void wait_for_a_later_one(struct bed *bed)
{
    begin_all(RANKS, 2);
    assert_int_equal(wait_save(bed, 2, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
}

static void find_no_image(struct bed *bed)
{
    begin_all(RANKS, 2);
    assert_int_equal(peer_begin(&peers[0], 3), ERR_BUSY);
    until_committed(bed, 1, clock_ms());
}

/* It is finished, not given up. */
static void drain(struct bed *bed)
{
    bed_stop(bed);
    bed->config.pace_write_rate = 0;
    assert_int_equal(bed_start(bed), 0);
}

static void begin_a_new_attempt(struct bed *bed)
{
    peers_close(peers, RANKS); /* dead */
    assert_int_equal(open_attempt(bed, 1), 0);
}

/* Those that are busy: the others decide. */
static void die(struct bed *bed)
{
    peers_close(peers, RANKS);
    until_committed(bed, 1, clock_ms());
}

TEST(test_gate__who_waits_for_a_save_does_not_wait_for_manners)
{
    static const struct {
        void (*hurry)(struct bed *bed);
        bool by_phases;
    } ways[] = {{wait_for_it, false}, {wait_for_a_later_one, false}, {find_no_image, false},
                {drain, false},       {begin_a_new_attempt, false},  {wait_for_it, true},
                {die, true}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        bed_set_up_stopped(state);
        struct bed *bed = ways[i].by_phases ? start_with(state, 0, PATIENCE_LONG_MS, RANKS)
                                            : start_with(state, RATE_SLOW, 0, RANKS);
        say_all(ways[i].by_phases ? ARENA_PHASE_BUSY : ARENA_PHASE_QUIET);
        int64_t start = clock_ms();
        begin_all(RANKS, 1);
        await_held(bed);
        assert_int_equal(ask_save(bed, 1, 0, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_STAGING);
        assert_true(number_of(bed, "chunks_held") > 0); /* so asking did not hurry it */
        ways[i].hurry(bed);
        assert_true(clock_ms() - start < (ways[i].by_phases ? SOON_MS : HURRIED_MS));
        assert_int_equal(load_all(bed, 1, NULL), 0);
        tear_down(state);
    }
}

TEST_BETWEEN(test_gate__what_is_announced_after_somebody_waits_is_not_held_back_either,
             bed_set_up_stopped, tear_down)
{
    struct bed *bed = start_with(state, RATE_SLOW, 0, 1);
    assert_int_equal(peer_begin(&peers[0], 1), 0);
    assert_int_equal(ask_save(bed, 1, 20, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_STAGING);
    int64_t start = clock_ms();
    peer_finish(&peers[0], 1);
    assert_true(until_committed(bed, 1, start) < HURRIED_MS);
}

/* The rank waits for room in it. */
TEST_BETWEEN(test_gate__a_window_is_not_held_back, bed_set_up_stopped, tear_down)
{
    struct bed *bed = *state;
    bed->config.pool_bytes = 4 * MIB; /* an image needs 5 segments */
    bed = start_with(state, RATE_SLOW, 0, 1);
    int64_t start = clock_ms();
    assert_int_equal(peer_begin(&peers[0], 1), 0);
    assert_true(peers[0].num_segments < peers[0].image_bytes / MIB + 1);
    struct arena_window window;
    for (uint64_t at = peers[0].data_byte, end = at + peers[0].bytes; at < end; at = window.end) {
        arena_window_get(&window, peers[0].control);
        assert_true(clock_ms() - start < SOON_MS);
        window.end = window.end < end ? window.end : end;
        if (window.end <= at) {
            window.end = at;
            sleep_ms(1);
            continue;
        }
        peer_announce(&peers[0], ARENA_ENTRY_RANGE, at, window.end - at);
    }
    peer_announce(&peers[0], ARENA_ENTRY_END, 0, 0);
    assert_true(until_committed(bed, 1, start) < HURRIED_MS);
}

TEST_BETWEEN(test_gate__a_save_that_is_given_up_leaves_nothing_behind, bed_set_up_stopped,
             tear_down)
{
    struct bed *bed = start_with(state, RATE_SLOW, 0, 1);
    begin_all(1, 1);
    await_held(bed);
    peer_abort(&peers[0]);
    assert_int_equal(wait_save(bed, 1, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_FAILED);
    assert_true(number_of(bed, "chunks_held") == 0);
    begin_all(1, 2);
    assert_int_equal(wait_save(bed, 2, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
}

/* ---- phases ---- */

TEST_BETWEEN(test_gate__a_trainer_that_is_busy_for_ever_gets_its_save_within_the_bound,
             bed_set_up_stopped, tear_down)
{
    struct bed *bed = start_with(state, 0, PATIENCE_MS, RANKS);
    say_all(ARENA_PHASE_BUSY);
    int64_t start = clock_ms();
    begin_all(RANKS, 1);
    int64_t ms = until_committed(bed, 1, start);
    assert_true(ms >= PATIENCE_MS && ms < PATIENCE_MS + SOON_MS);
    assert_true(number_of(bed, "chunks_in_busy_phases") >= 4);
    assert_true(number_of(bed, "ranks_busy") == RANKS);
    assert_int_equal(load_all(bed, 1, NULL), 0);
}

TEST_BETWEEN(test_gate__a_save_is_written_when_the_last_rank_becomes_quiet, bed_set_up_stopped,
             tear_down)
{
    struct bed *bed = start_with(state, 0, PATIENCE_LONG_MS, RANKS);
    say_all(ARENA_PHASE_BUSY);
    begin_all(RANKS, 1);
    await_held(bed);
    sleep_ms(200);
    say(&peers[0], ARENA_PHASE_QUIET);
    sleep_ms(200);
    assert_int_equal(ask_save(bed, 1, 0, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_STAGING);
    assert_true(number_of(bed, "chunks_held") > 0);
    int64_t start = clock_ms();
    say(&peers[1], ARENA_PHASE_QUIET);
    assert_true(until_committed(bed, 1, start) < SOON_MS);
    assert_true(number_of(bed, "held_by_phases_seconds") >= 0.35);
    assert_true(number_of(bed, "chunks_in_busy_phases") == 0);
}

TEST_BETWEEN(test_gate__any_other_number_in_the_control_page_means_quiet, bed_set_up_stopped,
             tear_down)
{
    static const uint32_t numbers[] = {0, 2, 3, 0x80000001, UINT32_MAX};
    struct bed *bed = start_with(state, 0, PATIENCE_LONG_MS, RANKS);
    for (uint32_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        __atomic_store_n(&peers[0].control->phase, numbers[i], __ATOMIC_RELAXED);
        int64_t start = clock_ms();
        begin_all(RANKS, i + 1);
        assert_true(until_committed(bed, i + 1, start) < SOON_MS);
    }
    assert_true(number_of(bed, "held_by_phases_seconds") == 0);
}

int main(void)
{
    log_setup("ckptd_throttle_queue", NULL);
    return suite_run(NULL, NULL);
}
