/* trainer_stragglers.c - a rank that delays the others.
 *
 * Goal: a rank that waits much less than the others of its stage is named, once its host was late
 * twice in a row. Method: a table of waits; four threads that meet in barriers, of which one comes
 * late. */
#include "proto/base/clock.h"
#include "proto/base/process.h"
#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "trainer/comm/flight.h"
#include "trainer/observe/stragglers.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define PERCENT 20.0
#define RANKS 4u
#define LATE 2u
#define LATE_SECONDS 0.06
#define NOBODY RANKS

TEST(test_find__the_latest_of_a_stage_is_found)
{
    static const struct {
        double called[RANKS];
        uint32_t stages[RANKS];
        uint32_t late, num_late; /* NOBODY: none */
    } rows[] = {
        {{50, 50, 50, 50}, {0, 0, 0, 0}, NOBODY, 0},
        {{50, 50, 31, 50}, {0, 0, 0, 0}, NOBODY, 0}, /* by less than PERCENT */
        {{50, 50, 30, 50}, {0, 0, 0, 0}, 2, 1},      /* by as much */
        {{90, 10, 30, 90}, {0, 0, 0, 0}, 1, 2},      /* the least; 2 is of its host, too */
        {{10, 90, 90, 30}, {0, 0, 0, 0}, 0, 1},      /* 3 is late, but of another host */
        {{5, 80, 5, 80}, {0, 1, 0, 1}, NOBODY, 0},   /* stages differ */
        {{80, 5, 40, 30}, {0, 1, 0, 1}, 2, 1},       /* 40 before its other, not 25 */
        {{0, 99, 99, 99}, {0, 1, 1, 1}, NOBODY, 0},  /* alone in its stage */
    };
    static const char *const hosts[RANKS] = {"a", "b", "b", "c"};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct straggler_note notes[RANKS] = {0};
        for (uint32_t r = 0; r < RANKS; r++) {
            notes[r] = (struct straggler_note){2, 0.02 * rows[i].called[r], rows[i].stages[r], ""};
            snprintf(notes[r].host, sizeof(notes[r].host), "%s", hosts[r]);
        }
        struct straggler found = stragglers_find(notes, RANKS, PERCENT);
        assert_int_equal(found.num_late, rows[i].num_late);
        if (rows[i].num_late == 0)
            continue;
        assert_int_equal(found.rank, rows[i].late);
        assert_string_equal(found.host, hosts[rows[i].late]);
    }
}

TEST(test_judge__a_host_is_said_when_it_is_late_twice_in_a_row)
{
    static const struct {
        const char *host; /* "": none */
        bool is_said;
    } turns[] = {{"a", false}, {"a", true}, {"a", false}, {"b", false}, {"a", false}, {"", false},
                 {"a", false}, {"a", true}, {"", false},  {"b", false}, {"b", true}};
    struct stragglers s = {0};
    for (size_t i = 0; i < sizeof(turns) / sizeof(turns[0]); i++) {
        struct straggler found = {.num_late = turns[i].host[0] != '\0'};
        snprintf(found.host, sizeof(found.host), "%s", turns[i].host);
        assert_int_equal(stragglers_update(&s, &found), turns[i].is_said);
    }
}

/* Found by the threads. */
static atomic_int num_said, num_wrong;

static int make_steps(struct stragglers *s, const struct mesh *mesh, int64_t *step)
{
    struct comm *world = mesh->world;
    for (uint32_t i = 0; i < STRAGGLER_STEPS_MIN; i++, ++*step) {
        double began = clock_seconds(), called = flight_called_seconds(world->flight);
        ERR_TRY(comm_barrier(world));
        clock_sleep(world->rank == LATE ? 2 * LATE_SECONDS : LATE_SECONDS);
        ERR_TRY(comm_barrier(world));
        stragglers_add(s, clock_seconds() - began, flight_called_seconds(world->flight) - called);
    }
    return 0;
}

/* 20 steps of 0.12 s, half of which three ranks wait in the second barrier. */
static int hold_up(struct comm *world, void *user)
{
    const struct config *config = user;
    struct mesh mesh = {.world = world};
    struct stragglers s = {.config = config};
    char host[STRAGGLER_HOST_MAX];
    int64_t step = 0;
    process_host(host, sizeof(host));
    for (uint32_t turn = 0; turn < 2; turn++) {
        struct straggler late;
        ERR_TRY(make_steps(&s, &mesh, &step));
        ERR_TRY(stragglers_compare(&s, &mesh, step, &late));
        if (late.num_late == 0)
            continue;
        atomic_fetch_add(&num_said, 1);
        if (world->rank != 0 || turn != 1 || late.rank != LATE || late.num_late != 1 ||
            strcmp(late.host, host) != 0 || late.percent > late.others)
            atomic_fetch_add(&num_wrong, 1);
    }
    return 0;
}

TEST(test_compare__rank_0_learns_who_came_late)
{
    static struct config config = {.straggler_percent = PERCENT, .log_freq = 10};
    atomic_store(&num_said, 0);
    atomic_store(&num_wrong, 0);
    assert_int_equal(comm_local_run(RANKS, hold_up, &config), 0);
    assert_int_equal(atomic_load(&num_said), 1);
    assert_int_equal(atomic_load(&num_wrong), 0);
}

/* Steps of 30 ms: ten of them are too short a time to compare. */
static int hold_up_quick_steps(struct comm *world, void *user)
{
    struct mesh mesh = {.world = world};
    struct stragglers s = {.config = user};
    for (int64_t step = 1; step <= 150; step++) {
        struct straggler late;
        double began = clock_seconds(), called = flight_called_seconds(world->flight);
        clock_sleep(world->rank == LATE ? 0.03 : 0.001);
        ERR_TRY(comm_barrier(world));
        stragglers_add(&s, clock_seconds() - began, flight_called_seconds(world->flight) - called);
        ERR_TRY(stragglers_compare(&s, &mesh, step, &late));
        if (late.num_late == 0)
            continue;
        atomic_fetch_add(&num_said, 1);
        if (world->rank != 0 || late.rank != LATE)
            atomic_fetch_add(&num_wrong, 1);
    }
    return 0;
}

TEST(test_compare__quick_steps_are_gathered_until_they_are_enough)
{
    static struct config config = {.straggler_percent = PERCENT, .log_freq = 10};
    atomic_store(&num_said, 0);
    atomic_store(&num_wrong, 0);
    assert_int_equal(comm_local_run(RANKS, hold_up_quick_steps, &config), 0);
    assert_int_equal(atomic_load(&num_said), 1);
    assert_int_equal(atomic_load(&num_wrong), 0);
}

SUITE(NULL, NULL)
