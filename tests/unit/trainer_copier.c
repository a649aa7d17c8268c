/* trainer_copier.c - the copy thread and the calls that wait for it.
 *
 * Goal: a copy holds the state at its start, whatever the update changes meanwhile. The update of a
 * slice waits for that slice and for no other. Method: a state of some slices is copied by a
 * function that takes its time, while another value is written over each; gates, which the test
 * opens, make "still copying" certain instead of likely. Run under ThreadSanitizer too. */
#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "trainer/snapshot/copier.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SLICES = 6, EACH = 65536, ROUNDS = 5, NEVER = SLICES };

struct bed {
    unsigned char state[SLICES][EACH], image[SLICES][EACH];
    uint32_t copied_at[SLICES]; /* a slice is a piece, but where a test says otherwise */
    struct copier *copier;
    /* The work of the copy. */
    long pause_us;
    uint32_t fail_at, gate_at; /* a slice, or NEVER */
    int end_rc;
    sem_t gate;
    atomic_uint num_copied, num_ends;
    atomic_int end_saw;
};

static void pause_us(long us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

static int copy(void *user, uint32_t slice)
{
    struct bed *bed = user;
    if (slice == bed->gate_at)
        sem_wait(&bed->gate);
    if (slice == bed->fail_at)
        return report_error(ERR_UNAVAILABLE, "wait", "slice %u was lost", slice);
    if (bed->pause_us > 0)
        pause_us(bed->pause_us);
    memcpy(bed->image[slice], bed->state[slice], EACH);
    atomic_fetch_add(&bed->num_copied, 1);
    return 0;
}

static int end(void *user, int rc)
{
    struct bed *bed = user;
    atomic_store(&bed->end_saw, rc);
    atomic_fetch_add(&bed->num_ends, 1);
    return rc == 0 && bed->end_rc != 0 ? report_error(bed->end_rc, NULL, "no end") : rc;
}

enum { PIECE_SECONDS = 20 }; /* at one byte a second */

static uint64_t piece_bytes(void *user, uint32_t piece)
{
    (void)user;
    (void)piece;
    return PIECE_SECONDS;
}

static int setup_at(void **out, uint64_t bytes_per_second)
{
    struct bed *bed = calloc(1, sizeof(*bed));
    assert_non_null(bed);
    assert_int_equal(sem_init(&bed->gate, 0, 0), 0);
    bed->fail_at = bed->gate_at = NEVER;
    for (uint32_t i = 0; i < SLICES; i++)
        bed->copied_at[i] = i + 1;
    struct copier_options copier = {.num_pieces = SLICES,
                                    .num_slices = SLICES,
                                    .copied_at = bed->copied_at,
                                    .copy = copy,
                                    .end = end,
                                    .bytes_per_second = bytes_per_second,
                                    .piece_bytes = piece_bytes,
                                    .user = bed};
    assert_int_equal(copier_open(&bed->copier, &copier), 0);
    *out = bed;
    return 0;
}

static int setup(void **out)
{
    return setup_at(out, 0);
}

static int setup_slow(void **out)
{
    return setup_at(out, 1);
}

static int teardown(void **state)
{
    struct bed *bed = *state;
    sem_post(&bed->gate); /* a test that failed may have left the copy there */
    copier_close(bed->copier);
    sem_destroy(&bed->gate);
    free(bed);
    return 0;
}

/* As a step that follows a save: all is posted at once. */
static void start(struct copier *copier)
{
    copier_start(copier);
    for (uint32_t i = 0; i < SLICES; i++)
        (void)copier_post(copier, i);
}

static void update(struct bed *bed, int value)
{
    for (uint32_t i = 0; i < SLICES; i++) {
        copier_wait_slice(bed->copier, i, NULL);
        memset(bed->state[i], value, EACH);
    }
}

#define COPIER_TEST(name) TEST_WITH(struct bed *bed, name, setup, teardown)

COPIER_TEST(test_copier__a_copy_holds_the_state_as_it_was_before_the_update)
{
    static unsigned char before[EACH];
    struct copier_times times;
    bed->pause_us = 1500;
    for (int round = 1; round <= ROUNDS; round++) {
        memset(before, round - 1, sizeof(before));
        start(bed->copier);
        update(bed, round);
        assert_int_equal(copier_wait(bed->copier, &times), 0);
        assert_true(times.waited_seconds > 0 && times.copy_seconds >= 1e-6 * 1500 * SLICES);
        for (uint32_t i = 0; i < SLICES; i++)
            assert_memory_equal(bed->image[i], before, EACH);
    }
    assert_int_equal(atomic_load(&bed->num_ends), ROUNDS);
}

COPIER_TEST(test_copier__an_update_waits_for_its_slice_and_for_no_later_one)
{
    struct copier_times times;
    bed->gate_at = 3;
    start(bed->copier);
    for (uint32_t i = 0; i < 3; i++)
        copier_wait_slice(bed->copier, i, NULL); /* returns while slice 3 stands at the gate */
    assert_int_equal(atomic_load(&bed->num_copied), 3);
    sem_post(&bed->gate);
    copier_wait_slice(bed->copier, 3, NULL);
    assert_true(atomic_load(&bed->num_copied) >= 4);
    copier_wait_slice(bed->copier, SLICES - 1, NULL);
    assert_int_equal(atomic_load(&bed->num_copied), SLICES);
    assert_int_equal(copier_wait(bed->copier, &times), 0);
    assert_true(times.copy_seconds >= 0 && times.ended_at > 0);
}

COPIER_TEST(test_copier__a_slice_of_several_pieces_is_held_until_the_last)
{
    struct copier_times times;
    bed->copied_at[0] = 5; /* its last piece is the fifth */
    bed->copied_at[1] = 2;
    bed->gate_at = 2;
    start(bed->copier);
    copier_wait_slice(bed->copier, 1, NULL); /* returns while piece 2 stands at the gate */
    assert_int_equal(atomic_load(&bed->num_copied), 2);
    sem_post(&bed->gate);
    copier_wait_slice(bed->copier, 0, NULL);
    assert_true(atomic_load(&bed->num_copied) >= 5);
    assert_int_equal(copier_wait(bed->copier, &times), 0);
}

COPIER_TEST(test_copier__nothing_is_copied_before_it_is_posted)
{
    struct copier_times times;
    copier_start(bed->copier);
    assert_true(copier_post(bed->copier, 1));
    assert_false(copier_post(bed->copier, 0)); /* it precedes the posted work */
    copier_wait_slice(bed->copier, 1, NULL);
    pause_us(20000);
    assert_int_equal(atomic_load(&bed->num_copied), 2);
    assert_true(copier_post(bed->copier, 2));
    copier_wait_slice(bed->copier, 2, NULL);
    assert_int_equal(copier_wait(bed->copier, &times), 0); /* the rest without a word */
    assert_int_equal(atomic_load(&bed->num_copied), SLICES);
    assert_false(copier_post(bed->copier, SLICES - 1));
}

COPIER_TEST(test_copier__a_failed_copy_lets_every_slice_go_and_says_why_to_who_waits)
{
    struct copier_times times;
    bed->fail_at = 1;
    start(bed->copier);
    update(bed, 1); /* returns, although slices 1 to 5 are never copied */
    report_clear();
    assert_int_equal(copier_wait(bed->copier, &times), ERR_UNAVAILABLE);
    assert_string_equal(report_message(), "slice 1 was lost");
    assert_string_equal(report_hint(), "wait");
    assert_int_equal(atomic_load(&bed->num_copied), 1);
    assert_int_equal(atomic_load(&bed->end_saw), ERR_UNAVAILABLE);

    bed->fail_at = NEVER; /* the next one is as good as the first */
    start(bed->copier);
    assert_int_equal(copier_wait(bed->copier, &times), 0);
    assert_int_equal(atomic_load(&bed->num_copied), 1 + SLICES);
}

COPIER_TEST(test_copier__a_copy_that_cannot_be_ended_has_failed)
{
    struct copier_times times;
    bed->end_rc = ERR_ABORTED;
    start(bed->copier);
    assert_int_equal(copier_wait(bed->copier, &times), ERR_ABORTED);
    assert_string_equal(report_message(), "no end");
}

TEST_BETWEEN(test_copier__a_copy_keeps_to_its_rate_until_it_is_waited_for, setup_slow, teardown)
{
    struct bed *bed = *state;
    struct copier_times times;
    start(bed->copier);
    while (atomic_load(&bed->num_copied) == 0) /* the first piece is due at once */
        pause_us(1000);
    pause_us(50000);
    assert_int_equal(atomic_load(&bed->num_copied), 1);
    copier_wait_slice(bed->copier, 1, NULL);
    assert_int_equal(copier_wait(bed->copier, &times), 0);
    assert_int_equal(atomic_load(&bed->num_copied), SLICES);
    assert_true(times.copy_seconds < PIECE_SECONDS);
}

COPIER_TEST(test_copier__closing_completes_the_copy_in_progress)
{
    bed->pause_us = 500;
    start(bed->copier);
    copier_close(bed->copier);
    bed->copier = NULL;
    assert_int_equal(atomic_load(&bed->num_copied), SLICES);
    assert_int_equal(atomic_load(&bed->num_ends), 1);
}

SUITE(NULL, NULL)
