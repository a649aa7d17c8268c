/* trainer_flight.c - the flight recorder of a rank's calls.
 *
 * Goal: the ring has the last calls, in which state each is; who waits too long ends, with a dump
 * of it. Method: ranks run in threads and look into their own recorder; what they find wrong is
 * counted, and the test's own thread asserts. The dump is read as text. */
#include "proto/report.h"
#include "trainer/comm/flight.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* Found by the threads; 0 is what all want. */
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

static void test_comm_flight__the_ring_has_the_last_calls_and_how_they_ended(void **state)
{
    (void)state;
    assert_int_equal(comm_local_run(2, fill_ring, NULL), 0);
    assert_int_equal(num_wrong, 0);
}

struct comm_bed {
    atomic_bool is_over;
    char folder[512];
    struct comm_request request; /* of what nobody receives */
};

/* A message under way is no call that has ended; rank 1 never comes to the barrier. */
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
        return 0;
    }
    ERR_TRY(comm_send(comm, 1, COMM_TAG_TIED, data, sizeof(data), &bed->request));
    want(flight_find(comm->flight, 1, &record) && record.state == FLIGHT_STARTED);
    int rc = comm_barrier(comm);
    want(rc == ERR_UNAVAILABLE && strstr(report_line(), "train_timeout_seconds") != NULL);
    want(flight_find(comm->flight, 2, &record) && record.state == FLIGHT_FAILED);
    bed->is_over = true;
    return rc;
}

static void test_comm_flight__who_waits_too_long_ends_with_a_dump(void **state)
{
    struct comm_bed bed = {.is_over = false};
    char path[600], *text = NULL;
    size_t bytes = 0;
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_flight__the_ring_has_the_last_calls_and_how_they_ended),
        cmocka_unit_test(test_comm_flight__who_waits_too_long_ends_with_a_dump),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
