/* kernels_cuda_lanes.c - the lanes of a CPU detect the faults of a kernel.
 *
 * Goal: each fault of tests/cuda/faulty.cu shows: refused with a message, or as a wrong or changing
 * result, in the orders of some seed; the kernels without a fault pass in all. Method: a child
 * process for each fault and seed; its exit and its output on stderr. check_kernels_cuda.c tests
 * faults that need a sanitizer. */

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda/faulty.h"
#include "tests/cuda/lanes.h"
#include "tests/unit/suite.h"

#define NUM_VALUES 64
#define NUM_SEEDS 6 /* all kinds of order */

/* The outcome of a child: its exit, its messages, its results. */
struct outcome {
    int status;
    char said[4096];
    float values[NUM_VALUES];
};

static void child(void (*fault)(float *), uint64_t seed, int out)
{
    float *values = malloc(NUM_VALUES * sizeof(*values));
    for (int i = 0; values && i < NUM_VALUES; i++)
        values[i] = (float)i;
    lanes_seed(seed);
    fault(values);
    _exit(write(out, values, NUM_VALUES * sizeof(*values)) ==
                  (ssize_t)(NUM_VALUES * sizeof(*values))
              ? 0
              : 1);
}

static struct outcome run(void (*fault)(float *), uint64_t seed)
{
    struct outcome outcome = {0};
    int said[2], values[2];
    assert_int_equal(pipe(said), 0);
    assert_int_equal(pipe(values), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(said[1], STDERR_FILENO);
        close(said[1]);
        child(fault, seed, values[1]);
    }
    close(said[1]);
    close(values[1]);
    size_t at = 0;
    for (ssize_t got; at < sizeof(outcome.said) - 1 &&
                      (got = read(said[0], outcome.said + at, sizeof(outcome.said) - 1 - at)) > 0;)
        at += (size_t)got;
    (void)!read(values[0], outcome.values, sizeof(outcome.values));
    close(said[0]);
    close(values[0]);
    assert_int_equal(waitpid(pid, &outcome.status, 0), pid);
    return outcome;
}

static void refused(void (*fault)(float *), const char *with)
{
    for (uint64_t seed = 0; seed < NUM_SEEDS; seed++) {
        struct outcome outcome = run(fault, seed);
        if (outcome.status == 0 || !strstr(outcome.said, with) || !strstr(outcome.said, "lanes: "))
            fail_msg("seed %d: expected \"%s\", but it ended with %d and said: %s", (int)seed, with,
                     outcome.status, outcome.said);
    }
}

static bool is_reversed(const struct outcome *outcome)
{
    for (int i = 0; i < NUM_VALUES; i++)
        if (!(outcome->values[i] == (float)(NUM_VALUES - 1 - i)))
            return false;
    return outcome->status == 0;
}

/* In some seed the values differ from those of the same kernel without the fault. */
static void seen_in_the_result(void (*fault)(float *))
{
    int seen = 0;
    for (uint64_t seed = 0; seed < NUM_SEEDS; seed++) {
        struct outcome outcome = run(fault, seed);
        seen += !is_reversed(&outcome);
    }
    assert_in_range(seen, 1, NUM_SEEDS);
}

TEST(test_lanes__kernels_without_a_fault_pass_in_every_order)
{
    for (uint64_t seed = 0; seed < 4 * NUM_SEEDS; seed++) {
        struct outcome outcome = run(faulty_none, seed);
        for (int i = 0; i < NUM_VALUES; i++)
            assert_true(outcome.values[i] == (float)i); /* reversed twice */
        assert_int_equal(outcome.status, 0);
        assert_string_equal(outcome.said, "");
    }
}
TEST(test_lanes__a_missing_barrier_changes_the_result_in_some_order)
{
    seen_in_the_result(faulty_no_barrier);
}
TEST(test_lanes__a_barrier_that_some_threads_do_not_reach_is_refused)
{
    refused(faulty_barrier_in_a_branch, "waits for ever at a barrier");
    refused(faulty_barriers_at_two_lines, "reaches a barrier while other threads wait at another");
}
TEST(test_lanes__a_shuffle_that_half_a_warp_reaches_is_refused)
{
    refused(faulty_shuffle_in_half_a_warp, "waits for ever in a collective");
}
TEST(test_lanes__an_asynchronous_copy_that_is_not_waited_for_is_seen)
{
    seen_in_the_result(faulty_copy_read_before_the_wait);
    bool is_refused = false; /* where copies are late */
    for (uint64_t seed = 0; seed < NUM_SEEDS; seed++) {
        struct outcome outcome = run(faulty_copy_never_waited_for, seed);
        is_refused |= strstr(outcome.said, "ends before it waited for its asynchronous") != NULL;
    }
    assert_true(is_refused);
}
TEST(test_lanes__an_asynchronous_copy_over_what_is_read_is_seen)
{
    int wrong = 0;
    for (uint64_t seed = 0; seed < NUM_SEEDS; seed++) {
        struct outcome outcome = run(faulty_copy_over_what_is_read, seed);
        for (int i = 0, is_wrong = 0; i < NUM_VALUES && !is_wrong; i++)
            wrong += is_wrong = outcome.values[i] != (float)((i + 32) % 64 + i);
    }
    assert_in_range(wrong, 1, NUM_SEEDS);
}
TEST(test_lanes__shared_memory_that_was_not_written_reads_as_nan)
{
    for (uint64_t seed = 0; seed < NUM_SEEDS; seed++)
        assert_true(isnan(run(faulty_shared_memory_read_unwritten, seed).values[63 - 5]));
}
TEST(test_lanes__more_shared_memory_than_a_gpu_has_is_refused)
{
    refused(faulty_more_shared_memory_than_a_gpu_has, "more shared memory than a GPU takes");
}
TEST(test_lanes__a_result_of_the_order_of_blocks_differs_between_seeds)
{
    float first = run(faulty_result_of_the_order_of_blocks, 0).values[0];
    assert_true(first != run(faulty_result_of_the_order_of_blocks, 1).values[0]);
}
SUITE(NULL, NULL)
