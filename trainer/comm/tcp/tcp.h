/* tcp.h - processes that a launcher such as torchrun started find each other over TCP, without MPI.
 *
 * The communicator that comes of it carries what is in the host's memory: the bootstrap of
 * comm_nccl_open. Rank 0 has the hub (hub.c), a thread of its own: each rank has a connection to it
 * for each of its communicators, sends what it calls, and gets what the group has of it. So a rank
 * that ends is noticed at once, and every wait of the others ends. It is for ids, sizes and small
 * tables: messages between two ranks and sums of floats are refused, because GPUs have NCCL.
 *
 *     struct tcp_options options;
 *     ERR_TRY(tcp_options_of_environment(&options));
 *     options.timeout_seconds = 300;
 *     ERR_TRY(comm_tcp_open(&world, &options));
 *
 * Machines have one byte order. A peer is believed who it says it is, as NCCL believes it: the port
 * belongs on the network of the run alone. With a MASTER_ADDR of this machine's loopback the hub
 * listens there only. */
#ifndef HOLDFAST_TRAINER_COMM_TCP_TCP_H
#define HOLDFAST_TRAINER_COMM_TCP_TCP_H

#include "trainer/comm/comm.h"

#define TCP_RANKS_MAX 4096u
#define TCP_KEY_MAX 128u

struct tcp_options {
    uint32_t rank, size;
    const char *host, *port; /* MASTER_ADDR and MASTER_PORT; stay as they are until it is open */
    char store_key[TCP_KEY_MAX]; /* "": rank 0 listens at `port`. Else a store of torchrun listens
                                  * there, and rank 0 writes its own port under this key */
    int64_t timeout_seconds;     /* until all ranks are there; 0: for ever */
};
/* RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and what torchrun says of its store. ERR_INVALID. */
int tcp_options_of_environment(struct tcp_options *out);

/* The world. Collective. ERR_UNAVAILABLE: rank 0, or the ranks that are named, did not come;
 * ERR_INVALID: the hub has this rank already, or was told another size; ERR_BUSY: the port. */
int comm_tcp_open(struct comm **out, const struct tcp_options *options);

#endif
