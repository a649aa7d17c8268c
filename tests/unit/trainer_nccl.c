/* trainer_nccl.c - communicators of NCCL between simulated GPUs (tests/simgpu/nccl.c).
 *
 * Goal: every byte in the memory of GPUs arrives, and sums of floats are those of the group, in
 * every order that CUDA allows and in groups of any cut. Ranks that call different operations are
 * named with both places. A missing rank is waited for until the time limit. Each failed call of
 * NCCL, once or for ever, becomes an error on every rank, and no rank waits for ever. Method: ranks
 * are threads, each with a GPU; bytes are a function of sender, receiver and place. The released
 * object is linked. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "tests/simgpu/simgpu.h"
#include "tests/unit/comm_rounds.h"
#include "tests/unit/suite.h"
#include "trainer/comm/flight.h"
#include "trainer/comm/tcp/tcp.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RANKS 4u
#define PART 96u
#define BYTES (RANKS * PART)

static atomic_int num_failed;
static char said[RANKS][512]; /* a rank's error */

/* ---- A rank with a GPU ---- */

struct gpu {
    struct device *device;
    struct lane *lane;        /* of the communicators */
    struct lane *other;       /* a call's end is its end for every stream */
    unsigned char *from, *to; /* ON_DEVICE, BYTES each */
    unsigned char *host;      /* page-locked, 2 BYTES */
};

static int open_gpu(struct gpu *g, uint32_t rank)
{
    struct device_options options = {.index = rank, .is_shared = true};
    ERR_TRY(device_open(&g->device, device_find("cuda"), &options));
    ERR_TRY(lane_open(&g->lane, g->device, "test", LANE_COMPUTES));
    ERR_TRY(lane_open(&g->other, g->device, "other", LANE_COMMUNICATES));
    ERR_TRY(device_alloc(g->device, (void **)&g->from, BYTES, ON_DEVICE));
    ERR_TRY(device_alloc(g->device, (void **)&g->to, BYTES, ON_DEVICE));
    return device_alloc(g->device, (void **)&g->host, 2 * BYTES, PINNED);
}

static void close_gpu(struct gpu *g)
{
    lane_close(g->other);
    lane_close(g->lane);
    device_close(g->device);
}

/* Bytes that `from` has for `to`. */
static size_t part_of(uint32_t from, uint32_t to, bool is_even)
{
    return is_even ? PART : 1 + (from * 29 + to * 13) % PART;
}

/* One exchange of all with all, or a gather (the parts for 0 go to every rank). */
static int exchange(struct gpu *g, struct comm *comm, bool is_gather, bool is_even)
{
    size_t send[RANKS], send_at[RANKS], recv[RANKS], recv_at[RANKS];
    unsigned char *back = g->host + BYTES;
    memset(g->host, 0, BYTES);
    for (uint32_t j = 0; j < comm->size; j++) {
        send[j] = part_of(comm->rank, is_gather ? 0 : j, is_even);
        recv[j] = part_of(j, is_gather ? 0 : comm->rank, is_even);
        send_at[j] = is_gather ? 0 : (comm->size - 1 - j) * PART;
        recv_at[j] = j * PART;
        for (size_t i = 0; i < send[j]; i++)
            g->host[send_at[j] + i] = byte_of(comm->rank, is_gather ? 0 : j, i);
    }
    lane_copy(g->lane, g->from, g->host, BYTES);
    lane_zero(g->lane, g->to, BYTES);
    ERR_TRY(is_gather ? comm_all_gather_v(comm, g->from, send[0], g->to, recv, recv_at)
                      : comm_all_to_all_v(comm, g->from, send, send_at, g->to, recv, recv_at));
    lane_zero(g->other, g->from, BYTES); /* ours again */
    lane_copy(g->other, back, g->to, BYTES);
    ERR_TRY(lane_settle(g->other));
    for (uint32_t j = 0; j < comm->size; j++)
        for (size_t i = 0; i < PART; i++)
            want(back[j * PART + i] ==
                 (i < recv[j] ? byte_of(j, is_gather ? 0 : comm->rank, i) : 0));
    return 0;
}

static int broadcast(struct gpu *g, struct comm *comm, uint32_t root)
{
    for (size_t i = 0; i < BYTES; i++)
        g->host[i] = comm->rank == root ? byte_of(root, 0, i) : 0;
    lane_copy(g->lane, g->to, g->host, BYTES);
    ERR_TRY(comm_broadcast(comm, g->to, BYTES, root));
    lane_copy(g->other, g->host, g->to, BYTES);
    ERR_TRY(lane_settle(g->other));
    for (size_t i = 0; i < BYTES; i++)
        want(g->host[i] == byte_of(root, 0, i));
    return 0;
}

/* Whole numbers: their sums are exact in any order, of bf16 too. */
static float number_of(uint32_t from, size_t i, size_t element)
{
    return element == 2 ? (float)((from * 5 + i) % 61) : (float)(from * 1000 + i);
}

/* As float, or its upper half as bf16. */
static void put(unsigned char *numbers, size_t i, float x, size_t element)
{
    memcpy(numbers + i * element, (const char *)&x + sizeof(x) - element, element);
}

static float number_at(const unsigned char *numbers, size_t i, size_t element)
{
    float x = 0;
    memcpy((char *)&x + sizeof(x) - element, numbers + i * element, element);
    return x;
}

/* One reduce-scatter to parts of these sizes, then one sum in place of the sent data. */
static int sums(struct gpu *g, struct comm *comm, bool is_even, size_t element)
{
    size_t counts[RANKS], at = 0, num = BYTES / element;
    unsigned char *back = g->host + BYTES;
    float all[BYTES / 2] = {0};
    for (uint32_t r = 0; r < comm->size; r++) {
        counts[r] = is_even ? PART / element : part_of(r, 0, false) / element;
        at += r < comm->rank ? counts[r] : 0;
        for (size_t i = 0; i < num; i++)
            all[i] += number_of(r, i, element);
    }
    for (size_t i = 0; i < num; i++)
        put(g->host, i, number_of(comm->rank, i, element), element);
    lane_copy(g->lane, g->from, g->host, BYTES);
    lane_zero(g->lane, g->to, BYTES);
    ERR_TRY(comm_reduce_scatter_floats(comm, g->from, g->to, counts, element));
    lane_copy(g->other, back, g->to, BYTES);
    ERR_TRY(lane_settle(g->other));
    for (size_t i = 0; i < num; i++)
        want(number_at(back, i, element) == (i < counts[comm->rank] ? all[at + i] : 0));
    ERR_TRY(comm_all_reduce_floats(comm, g->from, num, element));
    lane_copy(g->other, back, g->from, BYTES);
    ERR_TRY(lane_settle(g->other));
    for (size_t i = 0; i < num; i++)
        want(number_at(back, i, element) == all[i]);
    return 0;
}

/* In the group of all ranks, then in that of those with the same parity. */
static int exchanges(struct gpu *g, struct comm *world)
{
    struct comm *group[2] = {NULL, NULL};
    int rc = comm_split(world, &group[0], 0, world->rank);
    if (rc == 0)
        rc = comm_split(world, &group[1], world->rank % 2, RANKS - world->rank);
    for (int i = 0; i < 2 && rc == 0; i++) {
        group[i]->device_lane = g->lane;
        for (int k = 0; k < 4 && rc == 0; k++)
            rc = exchange(g, group[i], k / 2, k % 2);
        if (rc == 0)
            rc = broadcast(g, group[i], group[i]->size - 1);
        for (int k = 0; k < 4 && rc == 0; k++)
            rc = sums(g, group[i], k % 2, k < 2 ? sizeof(float) : sizeof(uint16_t));
    }
    comm_free(group[1]);
    comm_free(group[0]);
    return rc;
}

/* Each sends to the next one and receives from the one in front: all at the same time. */
static int ring(struct gpu *g, struct comm *comm)
{
    struct comm_request request = {0};
    uint32_t next = (comm->rank + 1) % comm->size,
             from = (comm->rank + comm->size - 1) % comm->size;
    for (uint32_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < BYTES; i++)
            g->host[i] = byte_of(comm->rank, round, i);
        lane_copy(g->lane, g->from, g->host, BYTES);
        ERR_TRY(comm_send(comm, next, COMM_TAG_RING, g->from, BYTES, &request));
        ERR_TRY(comm_receive(comm, from, COMM_TAG_RING, g->to, BYTES));
        ERR_TRY(comm_wait(comm, &request));
        lane_copy(g->other, g->host, g->to, BYTES);
        ERR_TRY(lane_settle(g->other));
        for (size_t i = 0; i < BYTES; i++)
            want(g->host[i] == byte_of(from, round, i));
    }
    return 0;
}

/* One way: a send waits for the earlier work of its lane, no send waits for its receive, and each
 * may be waited for alone. */
static int stages(struct gpu *g, struct comm *pair)
{
    struct comm_request requests[RANKS] = {0};
    for (uint32_t round = 0; round < 2; round++) {
        for (size_t i = 0; i < BYTES; i++)
            g->host[i] = pair->rank == 0 ? byte_of(round, 0, i) : 0;
        lane_copy(g->lane, pair->rank == 0 ? g->from : g->to, g->host, BYTES);
        for (uint32_t k = 0; k < RANKS && pair->rank == 0; k++)
            ERR_TRY(comm_send(pair, 1, COMM_TAG_STAGES + (int)k, g->from + k * PART, PART,
                              &requests[k]));
        for (uint32_t k = RANKS; k-- > 0 && pair->rank == 0;)
            ERR_TRY(comm_wait(pair, &requests[k]));
        lane_zero(g->other, g->from, BYTES);
        if (pair->rank == 1)
            ERR_TRY(lane_settle(g->lane)); /* the other lane receives, too */
        for (uint32_t k = 0; k < RANKS && pair->rank == 1; k++)
            ERR_TRY(comm_receive_on(pair, 0, COMM_TAG_STAGES + (int)k, g->to + k * PART, PART,
                                    k % 2 ? g->lane : g->other, "receive"));
        ERR_TRY(lane_settle(g->lane));
        lane_copy(g->other, g->host, g->to, BYTES);
        ERR_TRY(lane_settle(g->other));
        for (size_t i = 0; i < BYTES && pair->rank == 1; i++)
            want(g->host[i] == byte_of(round, 0, i));
    }
    return 0;
}

static int messages(struct gpu *g, struct comm *world)
{
    struct comm *all = NULL, *pair = NULL;
    int rc = comm_split(world, &all, 0, world->rank);
    if (rc == 0)
        rc = comm_split(world, &pair, world->rank / 2, world->rank);
    if (rc == 0) {
        all->device_lane = pair->device_lane = g->lane;
        rc = ring(g, all);
    }
    if (rc == 0)
        rc = stages(g, pair);
    comm_free(pair);
    comm_free(all);
    return rc;
}

/* In a group of all ranks. */
static int in_group(struct gpu *g, struct comm *world, int (*work)(struct gpu *, struct comm *))
{
    struct comm *group = NULL;
    int rc = comm_split(world, &group, 0, world->rank);
    if (rc == 0) {
        group->device_lane = g->lane;
        rc = work(g, group);
    }
    comm_free(group);
    return rc;
}

static int end_here(void)
{
    return report_error(ERR_IO, NULL, "this rank ends");
}

/* A send without a receive: its wait ends when the other rank ends. */
static int send_to_nobody(struct gpu *g, struct comm *group)
{
    struct comm_request request = {0};
    if (group->rank != 0)
        return end_here();
    ERR_TRY(comm_send(group, 1, COMM_TAG_STAGES, g->from, PART, &request));
    return comm_wait(group, &request);
}
static int nobody_receives(struct gpu *g, struct comm *world)
{
    return in_group(g, world, send_to_nobody);
}

/* The last rank gathers where the others exchange. */
static int gather_at_last(struct gpu *g, struct comm *group)
{
    return exchange(g, group, group->rank == RANKS - 1, true);
}
static int something_else(struct gpu *g, struct comm *world)
{
    return in_group(g, world, gather_at_last);
}

/* The last rank has less to add. */
static int add_less(struct gpu *g, struct comm *group)
{
    size_t counts[RANKS] = {4, 4, 4, group->rank == RANKS - 1 ? 3 : 4};
    lane_zero(g->lane, g->from, BYTES);
    return comm_reduce_scatter_floats(group, g->from, g->to, counts, sizeof(float));
}
static int sums_of_less(struct gpu *g, struct comm *world)
{
    return in_group(g, world, add_less);
}

/* The last rank ends without the exchange: late, or lost. */
static int all_but_last(struct gpu *g, struct comm *group)
{
    return group->rank < RANKS - 1 ? exchange(g, group, false, true) : end_here();
}
static int one_ends(struct gpu *g, struct comm *world)
{
    return in_group(g, world, all_but_last);
}

/* The last rank cannot continue, and is there until the others have ended. */
static int one_fails(struct gpu *g, struct comm *world)
{
    struct comm *group = NULL;
    int rc = comm_split(world, &group, 0, world->rank);
    if (rc == 0 && world->rank < RANKS - 1) {
        group->device_lane = g->lane;
        rc = exchange(g, group, false, true);
    } else if (rc == 0) {
        rc = comm_fail(world, report_error(ERR_IO, NULL, "this rank cannot go on"));
        for (int ms = 0; ms < 20000 && num_failed < (int)RANKS - 1; ms++)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    comm_free(group);
    return rc;
}

static char tcp_port[8]; /* of ranks that meet over TCP; "": they are threads alone */

static int rank_main(struct comm *bootstrap, void *user);

/* A thread that learns about the others only over TCP. */
static int rank_over_tcp(struct comm *threads, void *user)
{
    struct tcp_options options = {.rank = threads->rank,
                                  .size = threads->size,
                                  .host = "127.0.0.1",
                                  .port = tcp_port,
                                  .timeout_seconds = 20};
    struct comm *world = NULL;
    int rc = comm_tcp_open(&world, &options);
    if (rc == 0)
        rc = rank_main(world, user);
    if (rc != 0 && world != NULL)
        comm_abort(world, EXIT_RUN_AGAIN);
    comm_free(world);
    return rc;
}

static int rank_main(struct comm *bootstrap, void *user)
{
    int (*const *work)(struct gpu *, struct comm *) = user;
    struct flight_options options = {.num_records = 64, .timeout_seconds = 20, .folder = ""};
    struct gpu g = {0};
    struct comm *world = NULL;
    int rc = flight_set(bootstrap->flight, &options);
    if (rc == 0)
        rc = open_gpu(&g, bootstrap->rank);
    if (rc == 0)
        rc = comm_nccl_open(&world, bootstrap);
    if (rc == 0)
        rc = (*work)(&g, world);
    if (rc != 0) {
        atomic_fetch_add(&num_failed, 1);
        snprintf(said[bootstrap->rank], sizeof(said[0]), "%s", report_line());
    }
    comm_free(world);
    if (g.device != NULL && g.other != NULL)
        close_gpu(&g);
    return rc;
}

static int run(int (*work)(struct gpu *, struct comm *), const char *settings)
{
    char text[128];
    num_wrong = num_failed = 0;
    memset(said, 0, sizeof(said));
    snprintf(text, sizeof(text), "devices=%u,%s", RANKS, settings);
    simgpu_set(text);
    return comm_local_run(RANKS, tcp_port[0] != '\0' ? rank_over_tcp : rank_main, &work);
}

static bool is_said(const char *text)
{
    for (uint32_t r = 0; r < RANKS; r++)
        if (strstr(said[r], text) != NULL)
            return true;
    return false;
}

/* ---- Tests ---- */

static void want_bytes(int (*work)(struct gpu *, struct comm *), int seeds)
{
    for (int seed = 0; seed < seeds; seed++) {
        char settings[32];
        snprintf(settings, sizeof(settings), "seed=%d", seed);
        if (run(work, settings) != 0)
            fail_msg("%s, %s, %s, %s", said[0], said[1], said[2], said[3]);
        assert_int_equal(num_wrong, 0);
    }
}

/* All ranks end, and none because it has waited too long. */
static void want_end_of_all(int (*work)(struct gpu *, struct comm *))
{
    assert_int_equal(run(work, "seed=0"), ERR_IO);
    assert_int_equal(num_failed, RANKS);
    assert_false(is_said("longer than comm.train_timeout_seconds"));
}

TEST(test_nccl__every_byte_arrives_in_any_order_of_streams)
{
    want_bytes(exchanges, 6);
    want_bytes(messages, 6);
}

TEST(test_nccl__a_rank_that_ends_ends_the_others_and_their_messages)
{
    want_end_of_all(nobody_receives);
    want_end_of_all(one_ends);
}

TEST(test_nccl__ranks_that_call_something_else_are_named)
{
    assert_int_equal(run(something_else, "seed=0"), ERR_MISMATCH);
    assert_true(is_said("all_to_all at tests/unit/trainer_nccl.c"));
    assert_true(is_said("all_gather at tests/unit/trainer_nccl.c"));
    assert_int_equal(run(sums_of_less, "seed=0"), ERR_MISMATCH);
    assert_true(is_said("makes reduce_scatter at tests/unit/trainer_nccl.c"));
}

TEST(test_nccl__a_rank_that_cannot_go_on_ends_the_others_before_it_ends)
{
    assert_int_equal(run(one_fails, "seed=0"), ERR_IO);
    assert_int_equal(num_failed, RANKS);
    for (uint32_t r = 0; r < RANKS - 1; r++)
        assert_string_equal(said[r], "");
    assert_string_equal(said[RANKS - 1], "this rank cannot go on");
}

TEST(test_nccl__each_call_that_fails_becomes_an_error)
{
    static const char *const calls[] = {
        "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError",
        "ncclGroupStart",  "ncclGroupEnd",           "ncclSend",
        "ncclRecv",        "ncclAllGather",          "ncclAllReduce",
        "ncclReduce",      "ncclReduceScatter",
    };
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        for (int is_for_ever = 0; is_for_ever < 2; is_for_ever++) {
            char settings[64];
            snprintf(settings, sizeof(settings), "seed=1,fail=%s:%d%s", calls[i], i == 0 ? 1 : 2,
                     is_for_ever ? "+" : "");
            if (run(exchanges, settings) == 0)
                fail_msg("%s: nobody noticed", settings);
            if (!is_said("NCCL: ") || is_said("longer than comm.train_timeout_seconds"))
                fail_msg("%s: \"%s\"", settings, said[0]);
        }
    }
}

TEST(test_nccl__ranks_that_meet_over_tcp_have_the_same_bytes_and_end_alike)
{
    take_port(tcp_port);
    want_bytes(exchanges, 3);
    want_bytes(messages, 3);
    want_end_of_all(one_ends);
    tcp_port[0] = '\0';
}

int main(void)
{
    if (comm_nccl_open == NULL || simgpu_set == NULL) {
        printf("NVIDIA's headers are missing\n");
        return 77;
    }
    return suite_run(NULL, NULL);
}
