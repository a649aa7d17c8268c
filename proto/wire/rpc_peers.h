/* rpc_peers.h - the connections of a server: the peer of each, and how much memory for requests and
 * answers it holds. Private to rpc*.c.
 *
 * gRPC takes over a socket and afterwards names only its number. So this table keeps each peer by
 * that number until the socket is closed. Numbers are used in turn, not the lowest free one. So a
 * call whose connection has just ended is not taken for a call of the next connection.
 * Thread-safe. */
#ifndef HOLDFAST_PROTO_WIRE_RPC_PEERS_H
#define HOLDFAST_PROTO_WIRE_RPC_PEERS_H

#include "proto/base/principal.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define RPC_BROKEN_MAX 256u /* incomplete requests of a connection */

/* Memory that a connection makes the server hold: unpacked requests until they are answered,
 * answers until the client has read them. */
enum rpc_held { RPC_HELD_REQUESTS, RPC_HELD_ANSWERS, NUM_RPC_HELD };

struct rpc_peer {
    int fd;
    ino_t inode; /* of the socket: with another inode the number belongs to another connection */
    struct principal peer;
    uint32_t num_broken; /* requests that the client began and did not finish */
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
/* Makes a new connection between the RPC library and the guard: a socket pair, owned by the caller.
 * The library's end gets a number under which `peer` is stored. ERR_BUSY: there are `max` already;
 * ERR_IO. */
int rpc_peers_connect(struct rpc_peers *peers, int *out_library, int *out_guard,
                      const struct principal *peer);
/* The number of the connection that gRPC calls `name`; -1: it is not in the table. */
int rpc_peers_number(const char *name);
/* The peer of that connection, which may have ended. ERR_NOT_FOUND. */
int rpc_peers_find(struct rpc_peers *peers, struct rpc_peer *out, int number);
/* Reserves `bytes` of `max` for that connection. False: they are not free, or its unprivileged user
 * then holds more than three quarters of `max`. */
bool rpc_peers_hold(struct rpc_peers *peers, int number, enum rpc_held kind, size_t bytes,
                    size_t max);
void rpc_peers_let_go(struct rpc_peers *peers, int number, enum rpc_held kind, size_t bytes);
/* Counts an incomplete request, for a call of that connection which still holds it. Shuts down a
 * connection with RPC_BROKEN_MAX of them. */
void rpc_peers_blame(struct rpc_peers *peers, int number);

#endif
