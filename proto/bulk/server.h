/* server.h - the server of the bulk plane: accepts, verifies, and moves blocks between sockets and
 * the memory that its user names. bulk.h describes the plane, wire.h the messages.
 *
 * One thread per connection, so that a slow peer delays no other; their number is bounded. Before
 * its ticket is accepted, a connection is one of BULK_CONNECTIONS_EACH of its address, and of
 * num_connections in total, where a newcomer replaces another (tls/crowd.h). Afterwards it is one
 * of BULK_CONNECTIONS_EACH of its identity, or of its address if it has none. A hello, a request
 * and a block must complete within BULK_STALL_MS plus the time of its bytes at the slowest allowed
 * rate (tls/stream.h). The server reads the files of the directory again when they change (tls.h).
 * It ends every connection when the authority or the revocation list changes. */
#ifndef HOLDFAST_BULK_SERVER_H
#define HOLDFAST_BULK_SERVER_H

#include "proto/base/principal.h"
#include "proto/bulk/bulk.h"
#include "proto/bulk/wire.h"

#define BULK_CONNECTIONS_EACH 64u
#define BULK_ROOM_BESIDE 8192u /* more than a block, for whole pages */

struct tls_stream;
struct bulk_server;
/* An accepted connection: the user's state for its ticket. */
struct bulk_entered;

/* The user's functions for tickets. All run on the connection's thread. An error is sent to the
 * peer with its text. */
struct bulk_ops {
    /* `peer` NULL: the connection is plain and has no identity. ERR_DENIED. */
    int (*enter)(void *user, struct bulk_entered **out, const uint8_t *ticket,
                 const struct principal *peer);
    void (*leave)(struct bulk_entered *entered);
    /* Checks that the run of a GET may be read; then gives each block, in `room` (BULK_BLOCK_BYTES
     * and BULK_ROOM_BESIDE, aligned to 4096), or at *out. get_end follows each successful
     * get_begin. */
    int (*get_begin)(struct bulk_entered *entered, const struct bulk_request *request);
    int (*get_block)(struct bulk_entered *entered, const struct bulk_request *request,
                     uint64_t offset, uint64_t bytes, void *room, const void **out);
    void (*get_end)(struct bulk_entered *entered);
    /* Gives the memory for the bytes of a PUT; put_end reports that they have arrived, `error` 0,
     * or not. `cut`: ends the connection, from any thread, until put_end. */
    int (*put_begin)(struct bulk_entered *entered, const struct bulk_request *request, void **to,
                     struct tls_stream *cut);
    int (*put_end)(struct bulk_entered *entered, const struct bulk_request *request, int error);
    /* HAVE, END, WINDOW, LEAVE: fills in the answer. */
    int (*ask)(struct bulk_entered *entered, const struct bulk_request *request,
               struct bulk_answer *answer);
    /* (optional) Charges RPC_COST_... to a peer's budget. False: it is spent: the connection is
     * closed, a request waits. Any thread. Default: no limit. */
    bool (*may_cost)(void *user, const struct principal *peer, uint32_t cost);
};

struct bulk_server_options {
    const struct bulk_ops *ops;
    void *user;
    int listener;          /* a listening socket; the server owns it, also when it fails */
    const char *directory; /* NULL: plain, without a handshake and an identity */
    uint32_t num_connections;
};
/* ERR_INVALID, ERR_DENIED, ERR_NOT_FOUND: from the files; ERR_MEMORY, ERR_IO. */
int bulk_server_open(struct bulk_server **out, const struct bulk_server_options *options);
/* Ends every connection, and waits for them. NULL is fine. */
void bulk_server_close(struct bulk_server *server);
struct bulk_server_counts {
    uint64_t bytes_in, bytes_out, ns_in, ns_out; /* the time in which connections moved them */
    uint32_t num_connections, num_refused;
};
void bulk_server_count(struct bulk_server *server, struct bulk_server_counts *out);

#endif
