/* rpc_peers.h - the connections of a server: who is at the other end, and what they hold of the
 * memory for requests and answers. Private to proto/rpc*.c.
 *
 * gRPC takes a socket over and says no more of it than its number. So what is known of a peer is
 * kept here, by that number, until the socket is gone. Numbers go round instead of being the lowest
 * that is free: a call whose connection has just ended is not taken for one of the next connection.
 * Thread-safe. */
#ifndef HOLDFAST_PROTO_WIRE_RPC_PEERS_H
#define HOLDFAST_PROTO_WIRE_RPC_PEERS_H

#include "proto/base/principal.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define RPC_BROKEN_MAX 256u /* a client that gives up does so after it has sent its request */

/* What a connection makes the server hold: unpacked requests until they are answered, answers until
 * the client has read them. */
enum rpc_held { RPC_HELD_REQUESTS, RPC_HELD_ANSWERS, NUM_RPC_HELD };

struct rpc_peer {
    int fd;
    ino_t inode; /* of the socket: another one under the same number is another connection */
    struct principal peer;
    uint32_t num_broken; /* requests that it began and did not finish */
    size_t held[NUM_RPC_HELD];
};

struct rpc_peers {
    pthread_mutex_t mutex;
    struct rpc_peer *list;
    uint32_t count, max;
    int next_fd; /* where the search for a number begins */
};

/* ERR_MEMORY */
int rpc_peers_init(struct rpc_peers *out, uint32_t max);
void rpc_peers_deinit(struct rpc_peers *peers);
/* A new connection between the RPC library and the guard: a socket pair, whose ends are the
 * caller's. The library's has a number of its own, by which `peer` is known. ERR_BUSY: there are
 * `max` already; ERR_IO. */
int rpc_peers_connect(struct rpc_peers *peers, int *out_library, int *out_guard,
                      const struct principal *peer);
/* The number of the connection that gRPC calls `name`; -1: it is none of ours. */
int rpc_peers_number(const char *name);
/* Who is, or was, at the other end of that connection. ERR_NOT_FOUND. */
int rpc_peers_find(struct rpc_peers *peers, struct rpc_peer *out, int number);
/* Takes `bytes` of `max` for that connection. False: they are not there, or its user would hold
 * more than three quarters of them and is not privileged. */
bool rpc_peers_hold(struct rpc_peers *peers, int number, enum rpc_held kind, size_t bytes,
                    size_t max);
void rpc_peers_let_go(struct rpc_peers *peers, int number, enum rpc_held kind, size_t bytes);
/* Counts a request that did not arrive whole, for a call of that connection which still holds it.
 * A connection with RPC_BROKEN_MAX of them is shut down. */
void rpc_peers_blame(struct rpc_peers *peers, int number);

#endif
