/* tcp.h - connects the processes of a launcher such as torchrun over TCP, without MPI.
 *
 * The communicator moves data in host memory: it is the bootstrap of comm_nccl_open. Rank 0 runs
 * the hub (hub.c), a thread. Each rank has a connection to it for each of its communicators, sends
 * its calls, and receives the group's results. So a rank that ends is noticed at once, and every
 * wait of the others ends. It is for ids, sizes and small tables: messages between two ranks and
 * sums of floats are refused, because GPUs have NCCL.
 *
 *     struct tcp_options options;
 *     ERR_TRY(tcp_options_of_environment(&options));
 *     options.timeout_seconds = 300;
 *     ERR_TRY(comm_tcp_open(&world, &options));
 *
 * All machines must have the same byte order. Peers are not authenticated, as in NCCL: the port
 * must be reachable only on the run's network. If MASTER_ADDR is this machine's loopback, the hub
 * listens only there. */
#ifndef HOLDFAST_TRAINER_COMM_TCP_TCP_H
#define HOLDFAST_TRAINER_COMM_TCP_TCP_H

#include "trainer/comm/comm.h"

#define TCP_RANKS_MAX 4096u
#define TCP_KEY_MAX 128u

struct tcp_options {
    uint32_t rank, size;
    const char *host, *port; /* MASTER_ADDR and MASTER_PORT; must not change until it is open */
    /* "": rank 0 listens at `port`. Otherwise a store of torchrun listens there, and rank 0 writes
     * its port under this key. */
    char store_key[TCP_KEY_MAX];
    int64_t timeout_seconds; /* until all ranks are connected; 0: no limit */
};
/* Reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and torchrun's variables of its store.
 * ERR_INVALID. */
int tcp_options_of_environment(struct tcp_options *out);

/* The world. Collective. ERR_UNAVAILABLE: rank 0, or the named ranks, did not come; ERR_INVALID:
 * the hub has this rank already, or has another size; ERR_BUSY: the port is in use. */
int comm_tcp_open(struct comm **out, const struct tcp_options *options);

#endif
