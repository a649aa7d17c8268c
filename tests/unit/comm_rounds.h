/* comm_rounds.h - rounds of calls that every communicator must do correctly: all_to_all,
 * all_gather, broadcast, groups and their sums.
 *
 * Bytes are a function of (sender, receiver, position), so every received byte is checked; counts
 * are random. Threads count errors in num_wrong, which the test's thread checks. */
#ifndef HOLDFAST_TESTS_COMM_ROUNDS_H
#define HOLDFAST_TESTS_COMM_ROUNDS_H

#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "trainer/comm/comm.h"

#include <arpa/inet.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RANKS_MAX 9u
#define ROUNDS 40
#define PART_MAX 300u

/* Counted by the threads; all tests expect 0. */
static atomic_int num_wrong;

static inline void want(bool condition)
{
    if (!condition)
        atomic_fetch_add(&num_wrong, 1);
}

static inline uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A free port of this machine. */
static inline void take_port(char out[8])
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(own);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&own, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &size), 0);
    snprintf(out, 8, "%u", ntohs(own.sin_port));
    close(fd);
}

/* Bytes that `from` sends `to` in a round, the same on both sides. */
static inline size_t count_of(uint32_t round, uint32_t from, uint32_t to)
{
    return mix(round * 1000003u + from * 1009u + to + 1) % PART_MAX;
}

static inline unsigned char byte_of(uint32_t from, uint32_t to, size_t i)
{
    return (unsigned char)mix(from * 7919u + to * 104729u + i);
}

static inline void fill(unsigned char *data, size_t count, uint32_t from, uint32_t to)
{
    for (size_t i = 0; i < count; i++)
        data[i] = byte_of(from, to, i);
}

static inline void want_filled(const unsigned char *data, size_t count, uint32_t from, uint32_t to)
{
    for (size_t i = 0; i < count; i++)
        want(data[i] == byte_of(from, to, i));
}

/* ---- calls that move bytes ---- */

static inline int all_to_all_rounds(struct comm *comm, void *user)
{
    (void)user;
    static _Thread_local unsigned char send[RANKS_MAX * PART_MAX], recv[RANKS_MAX * PART_MAX];
    size_t send_bytes[RANKS_MAX], send_at[RANKS_MAX], recv_bytes[RANKS_MAX], recv_at[RANKS_MAX];
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t j = 0; j < comm->size; j++) {
            send_at[j] = (comm->size - 1 - j) * PART_MAX; /* backwards: places are free */
            recv_at[j] = j * PART_MAX;
            send_bytes[j] = count_of(round, comm->rank, j);
            recv_bytes[j] = count_of(round, j, comm->rank);
            fill(send + send_at[j], send_bytes[j], comm->rank, j);
        }
        memset(recv, 0, sizeof(recv));
        ERR_TRY(comm_all_to_all_v(comm, send, send_bytes, send_at, recv, recv_bytes, recv_at));
        for (uint32_t j = 0; j < comm->size; j++) {
            want_filled(recv + recv_at[j], recv_bytes[j], j, comm->rank);
            want(recv[recv_at[j] + PART_MAX - 1] == 0); /* nothing beyond the count */
        }
    }
    return 0;
}

static inline int gather_rounds(struct comm *comm, void *user)
{
    (void)user;
    static _Thread_local unsigned char send[PART_MAX], recv[RANKS_MAX * PART_MAX];
    size_t bytes[RANKS_MAX], at[RANKS_MAX];
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t j = 0; j < comm->size; j++) {
            bytes[j] = count_of(round, j, 0);
            at[j] = j * PART_MAX;
        }
        fill(send, bytes[comm->rank], comm->rank, round);
        ERR_TRY(comm_all_gather_v(comm, send, bytes[comm->rank], recv, bytes, at));
        for (uint32_t j = 0; j < comm->size; j++)
            want_filled(recv + at[j], bytes[j], j, round);
        uint32_t root = round % comm->size;
        memset(send, 0, sizeof(send));
        if (comm->rank == root)
            fill(send, PART_MAX, root, round + 1);
        ERR_TRY(comm_broadcast(comm, send, PART_MAX, root));
        want_filled(send, PART_MAX, root, round + 1);
    }
    return 0;
}

/* ---- groups ---- */

static inline int split_twice(struct comm *comm, void *user)
{
    (void)user;
    struct comm *third = NULL, *reversed = NULL;
    ERR_TRY(comm_split(comm, &third, comm->rank % 3, comm->rank));
    ERR_TRY(comm_split(comm, &reversed, 7, comm->size - comm->rank));
    want(third->rank == comm->rank / 3);
    want(third->size == (comm->size - comm->rank % 3 + 2) / 3);
    want(reversed->size == comm->size && reversed->rank == comm->size - 1 - comm->rank);
    for (int round = 0; round < ROUNDS; round++) {
        int64_t members[2] = {1, comm->rank}, all = 1;
        ERR_TRY(comm_all_reduce_i64(third, members, 2));
        ERR_TRY(comm_all_reduce_i64(reversed, &all, 1));
        want(members[0] == third->size && all == comm->size);
        int64_t sum = 0;
        for (uint32_t j = comm->rank % 3; j < comm->size; j += 3)
            sum += j;
        want(members[1] == sum);
    }
    comm_free(third);
    comm_free(reversed);
    return comm_barrier(comm);
}

#endif
