/* trainer_pipe.c - schedules of a pipeline.
 *
 * Goal: each action once, in an order that can be run. No more leaves under way than the schedule
 * promises. The idle part of the time is the published one. A file that cannot be run is refused
 * with the action. Method: schedules for many numbers of ranks and leaves are replayed by the rules
 * of dependence alone. */
#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "trainer/plan/pipe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct pipe *make(enum pipe_schedule schedule, uint32_t ranks, uint32_t chunks,
                         uint32_t leaves)
{
    struct pipe *pipe = NULL;
    struct pipe_options options = {ranks, chunks, leaves, schedule, NULL};
    assert_int_equal(pipe_new(&pipe, &options), 0);
    return pipe;
}

/* Runs all ranks as far as the inputs of their actions are there; true: to the end. */
static bool runs_to_the_end(const struct pipe *pipe)
{
    uint32_t at[64] = {0}, stages = pipe->num_ranks * pipe->chunks;
    bool *forward = calloc((size_t)stages * pipe->num_leaves, 1);
    bool *input = calloc((size_t)stages * pipe->num_leaves, 1), has_moved = true, is_over = true;
    while (has_moved) {
        has_moved = false;
        for (uint32_t r = 0; r < pipe->num_ranks; r++) {
            if (at[r] == pipe->num_actions[r])
                continue;
            const struct pipe_action *a = &pipe->actions[r][at[r]];
            size_t here = (size_t)a->stage * pipe->num_leaves + a->leaf;
            bool is_ready =
                a->kind == PIPE_FORWARD ? a->stage == 0 || forward[here - pipe->num_leaves]
                : a->kind == PIPE_WEIGHT
                    ? input[here]
                    : forward[here] && (a->stage + 1 == stages || input[here + pipe->num_leaves]);
            assert_int_equal(a->stage % pipe->num_ranks, r);
            if (!is_ready)
                continue;
            forward[here] = forward[here] || a->kind == PIPE_FORWARD;
            input[here] = input[here] || a->kind == PIPE_BACKWARD || a->kind == PIPE_INPUT;
            at[r]++;
            has_moved = true;
        }
    }
    for (uint32_t r = 0; r < pipe->num_ranks; r++)
        is_over = is_over && at[r] == pipe->num_actions[r];
    free(forward);
    free(input);
    return is_over;
}

static uint32_t most_under_way(const struct pipe *pipe, uint32_t rank)
{
    uint32_t now = 0, most = 0;
    for (uint32_t i = 0; i < pipe->num_actions[rank]; i++) {
        enum pipe_kind kind = pipe->actions[rank][i].kind;
        now += kind == PIPE_FORWARD;
        most = now > most ? now : most;
        now -= kind == PIPE_BACKWARD || kind == PIPE_WEIGHT;
    }
    return most;
}

static void check_each_once(const struct pipe *pipe, bool is_split)
{
    for (uint32_t r = 0; r < pipe->num_ranks; r++) {
        uint32_t each = pipe->num_leaves * pipe->chunks;
        assert_int_equal(pipe->num_actions[r], each * (is_split ? 3 : 2));
        for (uint32_t c = 0; c < pipe->chunks; c++) {
            uint32_t next[4] = {0};
            const struct pipe_action *a = pipe->actions[r];
            for (uint32_t i = 0; i < pipe->num_actions[r]; i++, a++)
                assert_true(a->stage / pipe->num_ranks != c || a->leaf == next[a->kind]++);
        }
    }
}

TEST(test_pipe__every_schedule_runs_each_action_once_in_leaf_order)
{
    static const struct {
        enum pipe_schedule schedule;
        bool is_split, has_chunks;
    } all[] = {{PIPE_GPIPE, false, false},          {PIPE_GPIPE, false, true},
               {PIPE_1F1B, false, false},           {PIPE_INTERLEAVED, false, true},
               {PIPE_INTERLEAVED_ZERO, true, true}, {PIPE_ZBH1, true, false}};
    for (size_t s = 0; s < sizeof(all) / sizeof(all[0]); s++)
        for (uint32_t ranks = 1; ranks <= 8; ranks++)
            for (uint32_t leaves = 1; leaves <= 19; leaves += 3) {
                uint32_t chunks = all[s].has_chunks ? 1 + ranks % 3 : 1;
                struct pipe *pipe = make(all[s].schedule, ranks, chunks, leaves);
                check_each_once(pipe, all[s].is_split);
                assert_true(runs_to_the_end(pipe));
                pipe_free(pipe);
            }
}

/* Leaves under way: at most so many on the first of 4 ranks with 12 leaves, `less` fewer on each
 * later rank; or that is a bound. Idle, with p ranks, m leaves and equal times (backward two): of
 * (m + p - 1) parts p - 1; v chunks divide that by v; where the weights' halves wait they fill all
 * but p - 1 of 3 v m + p - 1 units. */
TEST(test_pipe__activations_and_the_idle_part_are_the_known_ones)
{
    static const struct {
        enum pipe_schedule schedule;
        uint32_t chunks, most, less;
        bool is_bound;
        double idle, within;
    } all[] = {
        {PIPE_GPIPE, 1, 12, 0, false, 3.0 / 15.0, 1e-9},
        {PIPE_GPIPE, 2, 24, 0, false, 1.5 / 13.5, 1e-9},
        {PIPE_1F1B, 1, 4, 1, false, 3.0 / 15.0, 1e-9},
        {PIPE_ZBH1, 1, 4, 0, true, 3.0 / 39.0, 1e-9},
        {PIPE_INTERLEAVED, 2, 4 + 2 * 3 + 1, 2, false, 1.5 / 13.5, 0.02},
        {PIPE_INTERLEAVED_ZERO, 2, 4 + 2 * 3 + 1, 0, true, 3.0 / 75.0, 1e-9},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct pipe *pipe = make(all[i].schedule, 4, all[i].chunks, 12);
        for (uint32_t r = 0; r < 4; r++) {
            uint32_t got = most_under_way(pipe, r), most = all[i].most - r * all[i].less;
            assert_true(got == most || (all[i].is_bound && got < most));
        }
        assert_true(fabs(pipe->bubble - all[i].idle) < all[i].within);
        pipe_free(pipe);
    }
}

static void want_file(const char *text, const char *reason)
{
    char path[] = "/tmp/pipe-XXXXXX";
    struct pipe *pipe = NULL;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    struct pipe_options options = {2, 1, 2, PIPE_FILE, path};
    int rc = pipe_new(&pipe, &options);
    assert_int_equal(rc, reason == NULL ? 0 : ERR_INVALID);
    if (reason != NULL && strstr(report_message(), reason) == NULL)
        fail_msg("\"%s\" is not in: %s", reason, report_message());
    pipe_free(pipe);
    unlink(path);
}

TEST(test_pipe__a_file_is_followed_or_refused_with_the_action)
{
    want_file("0F0,0F1,,0B0,0B1\n1F0,1B0,1F1,1I1,1W1\n", NULL);
    want_file("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n", "1B1 comes before");
    want_file("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "never gets to");
    want_file("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n", "the backward of stage 0 for micro-batch 1");
    want_file("0F0,0F1,0B0,0B0\n1F0,1B0,1F1,1B1\n", "0B0 comes twice");
    want_file("0F0,1F1\n", "action \"1F1\" of line 1");
    want_file("0F0,0F7\n", "action \"0F7\"");
    want_file("0F0,0F1,0B0,0B1\n", "has 1 lines");
}

SUITE(NULL, NULL)
