/* trainer_flight.c - the flight recorder of a rank's calls.
 *
 * Goal: the ring has the last calls with their states; a rank that waits too long ends, with a dump
 * of the ring. Method: ranks run in threads and check their own recorder; errors are counted, and
 * the test's own thread asserts. The dump is read as text. When one of two ranks stops in mid-step,
 * the dump shows the position of both in their program. */
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "tests/unit/parallel_bed.h"
#include "tests/unit/suite.h"
#include "trainer/comm/comm.h"
#include "trainer/comm/flight.h"
#include "trainer/parallel/execution.h"
#include "trainer/run/timeouts.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Counted by the threads; all tests expect 0. */
static atomic_int num_wrong;

static void want(bool condition)
{
    if (!condition)
        atomic_fetch_add(&num_wrong, 1);
}

/* Calls 1 to 6, of which a ring of four has the last. */
static int fill_ring(struct comm *comm, void *user)
{
    struct flight_options options = {.num_records = 4, .folder = "", .prefix = ""};
    struct flight_record record = {0};
    int64_t values[3] = {0};
    (void)user;
    ERR_TRY(flight_set(comm->flight, &options));
    for (uint32_t i = 0; i < 5; i++)
        ERR_TRY(comm_barrier(comm));
    ERR_TRY(comm_all_reduce_i64(comm, values, 3));
    want(!flight_find(comm->flight, 2, &record) && flight_find(comm->flight, 3, &record));
    want(flight_find(comm->flight, 6, &record) && !flight_find(comm->flight, 7, &record));
    want(record.kind == COMM_SUM_I64 && record.bytes == 24 && record.sequence == 5);
    want(record.state == FLIGHT_DONE && strcmp(record.group, "world") == 0);
    want(record.enqueued_ns <= record.started_ns && record.started_ns <= record.ended_ns);
    return comm_barrier(comm);
}

TEST(test_comm_flight__the_ring_has_the_last_calls_and_how_they_ended)
{
    assert_int_equal(comm_local_run(2, fill_ring, NULL), 0);
    assert_int_equal(num_wrong, 0);
}

struct comm_bed {
    atomic_bool is_over, has_come; /* rank 0 has given up waiting; rank 1 comes later */
    char folder[512];
    struct comm_request request; /* of a message without a receiver */
};

/* A message under way is not listed as an ended call. Rank 1 comes to the barrier when rank 0,
 * which still runs, has given up: it meets no rank there. */
static int come_late(struct comm *comm, void *user)
{
    struct comm_bed *bed = user;
    struct flight_options options = {
        .num_records = 8, .timeout_seconds = 1, .folder = bed->folder, .prefix = "r"};
    struct flight_record record = {0};
    static char data[5];
    ERR_TRY(flight_set(comm->flight, &options));
    if (comm->rank == 1) {
        while (!bed->is_over)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        want(comm_barrier(comm) == ERR_UNAVAILABLE);
        bed->has_come = true;
        return 0;
    }
    ERR_TRY(comm_send(comm, 1, COMM_TAG_TIED, data, sizeof(data), &bed->request));
    want(flight_find(comm->flight, 1, &record) && record.state == FLIGHT_STARTED);
    int rc = comm_barrier(comm);
    want(rc == ERR_UNAVAILABLE && strstr(report_line(), "train_timeout_seconds") != NULL);
    want(flight_find(comm->flight, 2, &record) && record.state == FLIGHT_FAILED);
    bed->is_over = true;
    while (!bed->has_come)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return rc;
}

TEST(test_comm_flight__who_waits_too_long_ends_with_a_dump)
{
    struct comm_bed bed = {.is_over = false};
    char path[600], *text = NULL;
    size_t bytes = 0;
    snprintf(bed.folder, sizeof(bed.folder), "%s/flight-%d", getenv("TMPDIR"), (int)getpid());
    assert_int_equal(comm_local_run(2, come_late, &bed), ERR_UNAVAILABLE);
    assert_int_equal(num_wrong, 0);
    snprintf(path, sizeof(path), "%s/r0.json", bed.folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_true(getdelim(&text, &bytes, 0, file) > 0);
    assert_non_null(strstr(text, "\"profiling_name\": \"barrier\""));
    assert_non_null(strstr(text, "\"state\": \"started\""));
    fclose(file);
    free(text);
    unlink(path);
    rmdir(bed.folder);
}

/* ---- patience ---- */

/* Seconds that a wait which begins now may last; 0: for ever. */
static int64_t limit_of(const struct flight *flight)
{
    struct timespec now, at = flight_deadline(flight);
    clock_gettime(CLOCK_MONOTONIC, &now);
    return at.tv_sec == 0 ? 0 : at.tv_sec - now.tv_sec;
}

TEST(test_comm_flight__patience_is_that_of_what_goes_on)
{
    struct flight *flight = flight_new(0);
    struct config config = {.comm_init_timeout = 300, .comm_timeout = 100, .pause_at_step = -1};
    config.busy_wait_seconds = 20;
    config.final_seconds = 3;
    assert_non_null(flight);
    timeouts_set(NULL, &config, TIMEOUT_INIT);
    timeouts_set(flight, &config, TIMEOUT_INIT);
    assert_in_range(limit_of(flight), 299, 300);
    assert_string_equal(flight_limit_setting(flight), "comm.init_timeout_seconds");
    timeouts_set(flight, &config, TIMEOUT_TRAIN);
    assert_in_range(limit_of(flight), 99, 100);
    assert_string_equal(flight_limit_setting(flight), "comm.train_timeout_seconds");
    timeouts_set(flight, &config, TIMEOUT_SERVER);
    assert_in_range(limit_of(flight), 722, 723);
    timeouts_set(flight, &config, TIMEOUT_DATA);
    assert_int_equal(limit_of(flight), 0);
    config.comm_timeout = 0;
    timeouts_set(flight, &config, TIMEOUT_SERVER);
    assert_int_equal(limit_of(flight), 0);
    config.pause_at_step = 8;
    timeouts_set(flight, &config, TIMEOUT_INIT);
    assert_int_equal(limit_of(flight), 0);
    flight_free(flight);
}

/* ---- the step's program ---- */

static const char *const fake[] = {"gather", "forward", "exchange"};

static bool next_fake(const void *user, const char *lane, uint32_t index, struct flight_place *out)
{
    (void)user;
    if (index >= 3 || strcmp(lane, "compute") != 0)
        return false;
    *out = (struct flight_place){.what = fake[index], .index = index, .leaf = 4, .block = 7};
    return true;
}

/* Rank 1 skips an operation of its program, so that its next call differs. */
static int skip_one(struct comm *comm, void *user)
{
    struct flight *flight = comm->flight;
    struct flight_place place;
    int64_t value = 0;
    char *texts = user;
    flight_follow(flight, &(struct flight_program){next_fake, NULL});
    (void)next_fake(NULL, "compute", 0, &place);
    flight_enter_op(flight, "compute", &place);
    ERR_TRY(comm_barrier(comm));
    (void)next_fake(NULL, "compute", 1 + comm->rank, &place);
    flight_enter_op(flight, "compute", &place);
    int rc = comm->rank == 0 ? comm_all_reduce_i64(comm, &value, 1) : comm_barrier(comm);
    snprintf(texts + comm->rank * 1024, 1024, "%s", report_message());
    flight_leave_op();
    return rc;
}

TEST(test_comm_flight__a_call_that_differs_names_what_the_program_has)
{
    char texts[2][1024];
    assert_int_equal(comm_local_run(2, skip_one, texts), ERR_MISMATCH);
    for (int i = 0; i < 2; i++) {
        print_message("%s\n", texts[i]);
        assert_non_null(strstr(texts[i], "in operation 1, forward of stage 0, leaf 4, block 7"));
        assert_non_null(strstr(texts[i], "in operation 2, exchange of stage 0, leaf 4, block 7, "
                                         "where its program expects operation 1, forward of"));
    }
}

struct stuck {
    struct config config;
    struct walk execution[2];
    struct model_batch batch[2];
    struct flight *flight[2];
    atomic_bool is_over;
    char *dump; /* of rank 1, when rank 0 has waited too long */
    char text[1024];
};

/* Rank 1 never ends the forward of block 2 of its second leaf. */
static int stop_at(struct parallel *p, struct walk *e, const struct op *op)
{
    uint32_t rank = p->plan->mesh.world->rank;
    struct stuck *s = (struct stuck *)((char *)(e - rank) - offsetof(struct stuck, execution));
    if (op->kind == OP_BEGIN)
        e->batch = &s->batch[rank];
    bool is_there = op->kind == OP_FORWARD && op->block == 2 && op->leaf == 1;
    while (rank == 1 && is_there && !s->is_over)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return 0;
}

static int step_until_stuck(struct rank *r, void *user)
{
    struct stuck *s = user;
    struct comm *world = r->world;
    struct flight_options options = {
        .num_records = 64, .timeout_seconds = world->rank == 0, .folder = "", .prefix = ""};
    size_t bytes;
    ERR_TRY(flight_set(world->flight, &options));
    s->flight[world->rank] = world->flight;
    s->batch[world->rank] = step_batch(r->p, &r->p->run.tokens[0]);
    s->execution[world->rank].at_op = stop_at;
    ERR_TRY(comm_barrier(world));
    int rc = execute_program(r->p, r->p->run.program, &s->execution[world->rank]);
    if (world->rank != 0)
        return rc;
    snprintf(s->text, sizeof(s->text), "%s", report_message());
    FILE *out = open_memstream(&s->dump, &bytes);
    flight_write(s->flight[1], "test", out);
    fclose(out);
    s->is_over = true;
    return rc;
}

TEST(test_comm_flight__a_rank_that_is_stuck_is_found_in_its_program)
{
    struct stuck s = {.config = configure("canonical.micro_batches=8")};
    struct rank_options options = {
        .config = &s.config, .run = step_until_stuck, .user = &s, .has_no_data = true};
    assert_int_equal(on_ranks(2, &options), ERR_UNAVAILABLE);
    print_message("%s\n", s.text);
    assert_non_null(strstr(s.text, "in operation "));
    assert_true(
        strstr(s.text, "gather of stage 0, leaf 1, block ") ||
        strstr(s.text, "exchange of stage 0, leaf 1, block ")); /* whichever lane is first */
    const char *at = strstr(s.dump, "\"lane\": \"compute\"");
    assert_non_null(at);
    at = strstr(at, "\"operation_name\": \"forward\", \"stage\": 0, \"leaf\": 1, \"block\": 2");
    assert_non_null(at);
    assert_non_null(strstr(at, "\"next_name\": \"drop\""));
    assert_non_null(strstr(at, "\"lane\": \"gather\""));
    free(s.dump);
}

TEST(test_flight__the_time_of_calls_that_overlap_counts_once)
{
    struct flight *flight = flight_new(0);
    assert_non_null(flight);
    double began = clock_seconds();
    flight_call_begins(flight);
    clock_sleep(0.02);
    flight_call_begins(flight);
    flight_call_ends(flight);
    flight_call_ends(flight);
    double called = flight_called_seconds(flight), took = clock_seconds() - began;
    assert_true(called >= 0.02 && called <= took);
    clock_sleep(0.01); /* of which nothing counts */
    assert_true(flight_called_seconds(flight) == called);
    flight_free(flight);
}

/* Called with the recorder's lock held. */
static void beat(void *user, const struct flight_record *record)
{
    (void)record;
    alarm(20);
    flight_beat_all();
    alarm(0);
    ++*(int *)user;
}

TEST(test_flight__signs_of_life_do_not_wait_for_a_recorder_in_use)
{
    int num_beats = 0;
    struct flight_mirror mirror = {.begin = beat, .user = &num_beats};
    struct flight *flight = flight_new(0);
    assert_non_null(flight);
    flight_set_mirror(flight, &mirror);
    flight_begin(flight, &(struct comm){.name = "world", .lane = "main", .size = 1},
                 &(struct comm_call){.kind = COMM_BARRIER, .site = "here"});
    assert_int_equal(num_beats, 1);
    flight_free(flight);
}

SUITE(make_tokens, remove_tokens)
