/* trainer_comm.c - collectives of the local back-end, and with --mpi under mpirun those of MPI.
 *
 * Goal: every collective moves the right bytes for any number of ranks and any counts, sums are in
 * rank order, sub-groups are independent, and the loss of a rank ends the waits of all others
 * instead of hanging them. Method: ranks run in threads; bytes are a function of (sender, receiver,
 * position), so every received byte is checked; counts are random (seeded). Threads record errors,
 * the test's own thread asserts. tests/integration/comm_mpi.sh starts the --mpi form. */
#include "proto/base/report.h"
#include "tests/unit/comm_rounds.h"
#include "tests/unit/suite.h"
#include "trainer/comm/flight.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const uint32_t sizes[] = {1, 2, 3, 5, 8, RANKS_MAX};
#define NUM_SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* ---- sums ---- */

static float float_of(uint32_t rank, size_t i)
{
    return (float)((double)(int64_t)mix(rank * 31u + i) * 1e-15);
}

/* MPI adds in a different order. */
static bool sums_in_rank_order = true;

static void want_sum(float got, float in_rank_order)
{
    float slack = sums_in_rank_order ? 0 : 1e-5f * (1e4f + fabsf(in_rank_order));
    want(fabsf(got - in_rank_order) <= slack);
}

static float sum_in_rank_order(uint32_t size, size_t i)
{
    float sum = float_of(0, i);
    for (uint32_t j = 1; j < size; j++)
        sum += float_of(j, i);
    return sum;
}

/* Small whole numbers as bf16, whose sums bf16 has, too. */
static uint16_t narrow_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

static float small_of(uint32_t rank, size_t i)
{
    return (float)(mix(rank * 7u + i) % 16);
}

static uint16_t small_sum(uint32_t size, size_t i)
{
    float sum = 0;
    for (uint32_t j = 0; j < size; j++)
        sum += small_of(j, i);
    return narrow_of(sum);
}

static int sum_counts(struct comm *comm, void *user)
{
    (void)user;
    for (size_t count = 0; count < 40; count++) {
        int64_t integers[40];
        float floats[40];
        uint16_t narrow[40];
        for (size_t i = 0; i < count; i++) {
            narrow[i] = narrow_of(small_of(comm->rank, i));
            integers[i] = (int64_t)mix(comm->rank + i) >> 8;
            floats[i] = float_of(comm->rank, i);
        }
        ERR_TRY(comm_all_reduce_i64(comm, integers, count));
        ERR_TRY(comm_all_reduce_floats(comm, floats, count, sizeof(float)));
        ERR_TRY(comm_all_reduce_floats(comm, narrow, count, sizeof(uint16_t)));
        for (size_t i = 0; i < count; i++) {
            int64_t sum = 0;
            for (uint32_t j = 0; j < comm->size; j++)
                sum += (int64_t)mix(j + i) >> 8;
            want(integers[i] == sum);
            want(narrow[i] == small_sum(comm->size, i));
            want_sum(floats[i], sum_in_rank_order(comm->size, i));
        }
    }
    return 0;
}

static int scatter_sums(struct comm *comm, void *user)
{
    (void)user;
    float send[RANKS_MAX * 16], recv[16] = {0};
    uint16_t narrow[RANKS_MAX * 16], narrow_sums[16] = {0};
    size_t counts[RANKS_MAX], total = 0, mine_at = 0;
    for (uint32_t j = 0; j < comm->size; j++) {
        counts[j] = (j * 5) % 16;
        mine_at += j < comm->rank ? counts[j] : 0;
        total += counts[j];
    }
    for (size_t i = 0; i < total; i++) {
        send[i] = float_of(comm->rank, i);
        narrow[i] = narrow_of(small_of(comm->rank, i));
    }
    ERR_TRY(comm_reduce_scatter_floats(comm, send, recv, counts, sizeof(float)));
    ERR_TRY(comm_reduce_scatter_floats(comm, narrow, narrow_sums, counts, sizeof(uint16_t)));
    for (size_t i = 0; i < counts[comm->rank]; i++) {
        want_sum(recv[i], sum_in_rank_order(comm->size, mine_at + i));
        want(narrow_sums[i] == small_sum(comm->size, mine_at + i));
    }
    return 0;
}

/* ---- lost ranks ---- */

static atomic_int num_lost;

/* Rank 1 ends with an error in a round that it chooses, between collectives. The buffers are on the
 * heap and freed at once, so that the address sanitizer detects a late reader. */
static int fail_in_round(struct comm *comm, void *user)
{
    const int *round_of_failure = user;
    struct comm *half = NULL;
    int rc = comm_split(comm, &half, comm->rank % 2, 0);
    for (int round = 0; rc == 0; round++) {
        if (comm->rank == 1 && round == *round_of_failure) {
            rc = report_error(ERR_IO, NULL, "made to fail");
            break;
        }
        size_t count = 4096;
        int64_t *data = calloc(count, sizeof(*data));
        rc = comm_all_reduce_i64(half, data, count);
        if (rc == 0)
            rc = comm_all_reduce_i64(comm, data, count);
        free(data);
    }
    if (rc == ERR_UNAVAILABLE)
        atomic_fetch_add(&num_lost, 1);
    if (half != NULL)
        comm_free(half);
    return rc;
}

TEST(test_comm_local__a_rank_that_fails_wakes_all_others)
{
    for (int round = 0; round < 12; round++) {
        num_lost = 0;
        assert_int_equal(comm_local_run(6, fail_in_round, &round), ERR_IO);
        assert_int_equal(num_lost, 5);
    }
}

/* Rank 0 ends well while the others still talk in a group without it. */
static int leave_early(struct comm *comm, void *user)
{
    (void)user;
    struct comm *group = NULL;
    ERR_TRY(comm_split(comm, &group, comm->rank == 0, 0));
    for (int round = 0; round < ROUNDS && comm->rank != 0; round++) {
        if (round == 1)
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        ERR_TRY(comm_barrier(group));
    }
    comm_free(group);
    if (comm->rank != 0)
        want(comm_barrier(comm) == ERR_UNAVAILABLE);
    return 0;
}

TEST(test_comm_local__a_rank_that_is_done_breaks_only_its_own_groups)
{
    assert_int_equal(comm_local_run(4, leave_early, NULL), 0);
    assert_int_equal(num_wrong, 0);
}

static int abort_on_rank_2(struct comm *comm, void *user)
{
    (void)user;
    if (comm->rank == 2)
        comm_abort(comm, EXIT_RUN_AGAIN);
    return comm_barrier(comm);
}

TEST(test_comm_local__abort_ends_everyones_next_wait)
{
    assert_int_equal(comm_local_run(4, abort_on_rank_2, NULL), ERR_ABORTED);
    assert_int_equal(comm_local_run(0, abort_on_rank_2, NULL), ERR_INVALID);
}

/* A rank's own lanes, and its thread, wait for a message that comes when it has failed. */
struct waiting {
    struct comm *world;
    pthread_t thread;
    unsigned char data[8];
};

static int wait_for_1(struct comm *world, unsigned char *data)
{
    int rc = comm_receive_on(world, 1, COMM_TAG_STAGES, data, 8, NULL, "receive");
    want(rc == ERR_UNAVAILABLE && report_message()[0] == '\0');
    return rc;
}

static void *wait_beside(void *user)
{
    struct waiting *w = user;
    (void)wait_for_1(w->world, w->data);
    return NULL;
}

static void wait_until_it_waits(struct flight *flight)
{
    struct flight_record record = {0};
    while (!flight_find(flight, flight_last(flight), &record) || record.state != FLIGHT_STARTED)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

/* Rank 0 fails while one of its threads waits. It has the reason, however often it reports it;
 * later ranks have none. */
static int fail_beside_a_wait(struct comm *comm, void *user)
{
    struct flight_options options = {.num_records = 8, .timeout_seconds = 20, .folder = ""};
    struct waiting w = {.world = comm};
    (void)user;
    ERR_TRY(flight_set(comm->flight, &options));
    if (comm->rank > 1)
        (void)wait_for_1(comm, w.data);
    if (comm->rank == 1)
        want(comm_barrier(comm) == ERR_UNAVAILABLE && report_message()[0] == '\0');
    if (comm->rank > 0) {
        int later = comm_fail(comm, report_error(ERR_SPACE, NULL, "said too late"));
        want(later == ERR_UNAVAILABLE && report_message()[0] == '\0');
        return later;
    }
    want(pthread_create(&w.thread, NULL, wait_beside, &w) == 0);
    wait_until_it_waits(comm->flight);
    for (int i = 0; i < 2; i++)
        want(comm_fail(comm, report_error(ERR_IO, NULL, "made to fail")) == ERR_IO &&
             strcmp(report_line(), "made to fail") == 0);
    pthread_join(w.thread, NULL);
    return ERR_IO;
}

TEST(test_comm_local__a_rank_that_cannot_go_on_ends_all_waits_before_it_ends)
{
    num_wrong = 0;
    assert_int_equal(comm_local_run(4, fail_beside_a_wait, NULL), ERR_IO);
    assert_int_equal(num_wrong, 0);
}

/* ---- MPI ---- */

/* The others would learn it from comm_abort, which this program does not call: so they wait until
 * the message has come all the same, and the rank is not met again. */
static int fail_with_mpi(struct comm *world)
{
    static struct waiting w;
    struct comm_request request = {0};
    w.world = world;
    if (world->size == 1)
        return 0;
    if (world->rank == 1) {
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        int rc = comm_send(world, 0, COMM_TAG_STAGES, w.data, sizeof(w.data), &request);
        return rc == 0 ? comm_wait(world, &request) : rc;
    }
    if (world->rank > 1)
        return 0;
    want(pthread_create(&w.thread, NULL, wait_beside, &w) == 0);
    wait_until_it_waits(world->flight);
    want(comm_fail(world, report_error(ERR_IO, NULL, "made to fail")) == ERR_IO);
    pthread_join(w.thread, NULL);
    want(world->is_lost);
    return 0;
}

#define FAR_BYTES ((size_t)3 << 30) /* between the parts of two ranks: beyond int */

static unsigned char *reserve(size_t bytes)
{
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return data == MAP_FAILED ? NULL : data;
}

/* Places beyond 2 GiB in memory that is reserved, not used: few pages of it are touched. */
static int far_places(struct comm *comm, void *user)
{
    (void)user;
    size_t bytes[RANKS_MAX], at[RANKS_MAX], total = comm->size * FAR_BYTES;
    unsigned char *send = reserve(total), *recv = reserve(total);
    if (send == NULL || recv == NULL)
        return report_errno(ERR_MEMORY, "could not reserve addresses", "mmap");
    for (uint32_t j = 0; j < comm->size; j++) {
        bytes[j] = 192;
        at[j] = j * FAR_BYTES;
        fill(send + at[j], bytes[j], comm->rank, j);
    }
    int rc = comm_all_to_all_v(comm, send, bytes, at, recv, bytes, at);
    for (uint32_t j = 0; j < comm->size && rc == 0; j++)
        want_filled(recv + at[j], bytes[j], j, comm->rank);
    if (rc == 0)
        rc = comm_all_gather_v(comm, send, bytes[0], recv, bytes, at);
    for (uint32_t j = 0; j < comm->size && rc == 0; j++)
        want_filled(recv + at[j], bytes[j], j, 0);
    at[0] = 1; /* no multiple of 64: does not fit */
    if (comm->size > 1)
        want(comm_all_gather_v(comm, send, bytes[0], recv, bytes, at) == ERR_INVALID);
    munmap(send, total);
    munmap(recv, total);
    return rc;
}

/* ---- messages ---- */

#define TAGS 3u
#define MESSAGES 4u /* of a tag */

/* Every rank sends one neighbour several messages of several tags. It receives those of the other
 * neighbour by tag, the last first; within a tag in the order of sending. */
static int messages_by_tag(struct comm *comm, void *user)
{
    (void)user;
    static _Thread_local unsigned char sent[TAGS][MESSAGES][PART_MAX];
    unsigned char got[PART_MAX];
    struct comm_request requests[TAGS][MESSAGES];
    uint32_t to = (comm->rank + 1) % comm->size, from = (comm->rank + comm->size - 1) % comm->size;
    if (comm->size == 1)
        return 0;
    for (uint32_t i = 0; i < MESSAGES; i++)
        for (uint32_t tag = 0; tag < TAGS; tag++) {
            size_t bytes = count_of(i, comm->rank, tag);
            fill(sent[tag][i], bytes, comm->rank, tag * MESSAGES + i);
            ERR_TRY(comm_send(comm, to, (int)tag + COMM_TAG_STAGES, sent[tag][i], bytes,
                              &requests[tag][i]));
        }
    for (uint32_t tag = TAGS; tag-- > 0;)
        for (uint32_t i = 0; i < MESSAGES; i++) {
            size_t bytes = count_of(i, from, tag);
            ERR_TRY(comm_receive(comm, from, (int)tag + COMM_TAG_STAGES, got, bytes));
            want_filled(got, bytes, from, tag * MESSAGES + i);
        }
    for (uint32_t tag = 0; tag < TAGS; tag++)
        for (uint32_t i = 0; i < MESSAGES; i++)
            ERR_TRY(comm_wait(comm, &requests[tag][i]));
    return comm_barrier(comm); /* a rank that leaves earlier breaks the group */
}

/* The sender may change its data as soon as wait returns; the receiver takes its time. */
static int send_and_overwrite(struct comm *comm, void *user)
{
    (void)user;
    unsigned char data[PART_MAX];
    struct comm_request request;
    if (comm->rank == 0) {
        fill(data, sizeof(data), 0, 1);
        ERR_TRY(comm_send(comm, 1, COMM_TAG_TIED, data, sizeof(data), &request));
        ERR_TRY(comm_wait(comm, &request));
        memset(data, 0, sizeof(data));
        return comm_barrier(comm);
    }
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    ERR_TRY(comm_receive(comm, 0, COMM_TAG_TIED, data, sizeof(data)));
    want_filled(data, sizeof(data), 0, 1);
    return comm_barrier(comm);
}

TEST(test_comm_local__a_send_is_over_when_it_is_received)
{
    num_wrong = 0;
    assert_int_equal(comm_local_run(2, send_and_overwrite, NULL), 0);
    assert_int_equal(num_wrong, 0);
}

/* One rank ends while another waits for its message, and a third for its message to be taken. */
static int wait_for_the_lost(struct comm *comm, void *user)
{
    (void)user;
    unsigned char data[8] = {0};
    static struct comm_request request; /* of rank 2 */
    if (comm->rank == 0)
        return ERR_IO;
    if (comm->rank == 1)
        return comm_receive(comm, 0, COMM_TAG_TIED, data, sizeof(data));
    ERR_TRY(comm_send(comm, 0, COMM_TAG_TIED, data, sizeof(data), &request));
    int rc = comm_wait(comm, &request);
    memset(&request, 0xff, sizeof(request)); /* it is this rank's again */
    return rc;
}

TEST(test_comm_local__a_lost_rank_ends_waits_for_messages)
{
    assert_int_equal(comm_local_run(3, wait_for_the_lost, NULL), ERR_IO);
}

/* ---- calls that differ, and calls beside others ---- */

static int calls_differ(struct comm *comm, void *user)
{
    (void)user;
    int64_t value = 1;
    if (comm->size == 1)
        return 0;
    int rc = comm->rank == 0 ? comm_barrier(comm) : comm_all_reduce_i64(comm, &value, 1);
    const char *text = report_line(), *site = strstr(text, "trainer_comm.c:");
    want(rc == ERR_MISMATCH && strstr(text, "barrier") != NULL);
    want(strstr(text, "all_reduce of integers") != NULL);
    want(site != NULL && strstr(site + 1, "trainer_comm.c:") != NULL);
    value = comm->rank;
    ERR_TRY(comm_all_reduce_i64(comm, &value, 1)); /* no rank is a call late */
    want(value == (int64_t)comm->size * (comm->size - 1) / 2);
    return 0;
}

/* Two communicators of the same ranks: `behind` belongs to a thread beside the rank's own. */
struct beside {
    struct comm *behind;
    pthread_t thread;
    int rc;
};

static void *sum_beside(void *user)
{
    struct beside *b = user;
    int64_t value = 1;
    b->rc = comm_all_reduce_i64(b->behind, &value, 1);
    want(value == b->behind->size);
    return NULL;
}

static bool is_under_way(struct flight *flight, uint64_t id)
{
    struct flight_record record = {0};
    return flight_find(flight, id, &record) && record.state == FLIGHT_STARTED;
}

/* The sum that a thread began ends only when rank 0 calls it, after the calls that the ranks make
 * meanwhile. Those need not wait for it, and the recorder shows it as under way. */
static int calls_behind(struct comm *comm, void *user)
{
    struct beside b = {0};
    (void)user;
    if (comm->size == 1)
        return 0;
    ERR_TRY(comm_split(comm, &b.behind, 0, comm->rank));
    uint64_t id = flight_last(comm->flight) + 1;
    if (comm->rank > 0) {
        want(pthread_create(&b.thread, NULL, sum_beside, &b) == 0);
        while (!is_under_way(comm->flight, id))
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    int rc = 0;
    for (uint32_t i = 0; i < ROUNDS && rc == 0; i++) {
        int64_t value = comm->rank;
        rc = comm_all_reduce_i64(comm, &value, 1);
        want(rc != 0 || value == (int64_t)comm->size * (comm->size - 1) / 2);
        want(comm->rank == 0 || i + 1 == ROUNDS || is_under_way(comm->flight, id));
    }
    if (comm->rank == 0)
        sum_beside(&b);
    else
        pthread_join(b.thread, NULL);
    want(!is_under_way(comm->flight, id));
    comm_free(b.behind);
    return rc != 0 ? rc : b.rc;
}

/* Of MPI the first calls alone are compared. */
static const struct {
    const char *name;
    int (*run)(struct comm *, void *);
} rounds[] = {
    {"calls that differ are told with both sites", calls_differ},
    {"all_to_all moves every byte to its place", all_to_all_rounds},
    {"all_gather and broadcast reach everyone", gather_rounds},
    {"sums are exact in integers and in rank order in floats", sum_counts},
    {"a sum that is scattered, too", scatter_sums},
    {"split makes groups by colour in order of key", split_twice},
    {"messages are received by tag in the order of sending", messages_by_tag},
    {"a group goes on while another waits", calls_behind},
};
#define NUM_ROUNDS (sizeof(rounds) / sizeof(rounds[0]))

TEST(test_comm_local__every_call_is_right_for_any_number_of_ranks)
{
    for (size_t i = 0; i < NUM_ROUNDS * NUM_SIZES; i++) {
        num_wrong = 0;
        int rc = comm_local_run(sizes[i % NUM_SIZES], rounds[i / NUM_SIZES].run, NULL);
        if (rc != 0 || num_wrong != 0)
            fail_msg("%u ranks, %s: %s; %d findings", sizes[i % NUM_SIZES],
                     rounds[i / NUM_SIZES].name, report_line(), num_wrong);
    }
}

static int run_under_mpi(void)
{
    struct comm *world;
    int rc = comm_mpi_open(&world);
    sums_in_rank_order = false;
    for (size_t i = 0; i < NUM_ROUNDS && rc == 0; i++)
        rc = rounds[i].run(world, NULL);
    if (rc == 0)
        rc = far_places(world, NULL);
    if (rc == 0)
        rc = fail_with_mpi(world);
    if (rc != 0 || num_wrong != 0)
        fprintf(stderr, "%s; %d findings\n", report_line(), num_wrong);
    if (rc != 0)
        return 1;
    comm_free(world);
    return num_wrong != 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--mpi") == 0)
        return run_under_mpi();
    return suite_run(NULL, NULL);
}
