/* server.h - the other end of the bulk plane: accepts, verifies, and moves blocks between sockets
 * and the memory that its user names. bulk.h has the story, wire.h the messages.
 *
 * A thread per connection, so that a slow peer holds up nobody; their number is the bound. Until
 * its ticket was good a connection is one of BULK_CONNECTIONS_EACH of its address, and of
 * num_connections at all, where a newcomer takes the place of another (tls/crowd.h); then, one of
 * BULK_CONNECTIONS_EACH of its identity, or of its address where it has none. A hello, a
 * request and a block must come and go within BULK_STALL_MS and the time that its bytes take at the
 * slowest that is allowed (tls/stream.h). The files of the directory are read again when they
 * change (tls.h); every connection is ended when the authority or the list of the revoked changes.
 */
#ifndef HOLDFAST_BULK_SERVER_H
#define HOLDFAST_BULK_SERVER_H

#include "proto/base/principal.h"
#include "proto/bulk/bulk.h"
#include "proto/bulk/wire.h"

#define BULK_CONNECTIONS_EACH 64u
#define BULK_ROOM_BESIDE 8192u /* more than a block, for who reads whole pages */

struct tls_stream;
struct bulk_server;
/* A connection that came in: what its ticket was good for is the user's. */
struct bulk_entered;

/* What is behind the tickets. Everything on the connection's thread. An error is told to the peer
 * with its text. */
struct bulk_ops {
    /* `peer` NULL: the connection is plain and nobody is known. ERR_DENIED. */
    int (*enter)(void *user, struct bulk_entered **out, const uint8_t *ticket,
                 const struct principal *peer);
    void (*leave)(struct bulk_entered *entered);
    /* The run that a GET names may be read; then each block, into `room` (BULK_BLOCK_BYTES and
     * BULK_ROOM_BESIDE, aligned to 4096), or *out says where it is. get_end comes behind a
     * get_begin that returned 0. */
    int (*get_begin)(struct bulk_entered *entered, const struct bulk_request *request);
    int (*get_block)(struct bulk_entered *entered, const struct bulk_request *request,
                     uint64_t offset, uint64_t bytes, void *room, const void **out);
    void (*get_end)(struct bulk_entered *entered);
    /* Where the bytes of a PUT go; then that they are there, `error` 0, or are not. `cut`: ends the
     * connection, from any thread, until put_end. */
    int (*put_begin)(struct bulk_entered *entered, const struct bulk_request *request, void **to,
                     struct tls_stream *cut);
    int (*put_end)(struct bulk_entered *entered, const struct bulk_request *request, int error);
    /* HAVE, END, WINDOW, LEAVE: fills in what the answer says. */
    int (*ask)(struct bulk_entered *entered, const struct bulk_request *request,
               struct bulk_answer *answer);
    /* (optional) Takes RPC_COST_... from what a peer may cost. False: nothing is left now; the
     * connection is closed, a request waits. Any thread. Default: all may. */
    bool (*may_cost)(void *user, const struct principal *peer, uint32_t cost);
};

struct bulk_server_options {
    const struct bulk_ops *ops;
    void *user;
    int listener;          /* a socket that listens; the server's, also when it fails */
    const char *directory; /* NULL: plain, without a handshake and an identity */
    uint32_t num_connections;
};
/* ERR_INVALID, ERR_DENIED, ERR_NOT_FOUND: of the files; ERR_MEMORY, ERR_IO. */
int bulk_server_open(struct bulk_server **out, const struct bulk_server_options *options);
/* Ends every connection, and waits for them. NULL is fine. */
void bulk_server_close(struct bulk_server *server);
struct bulk_server_counts {
    uint64_t bytes_in, bytes_out, ns_in, ns_out; /* the time that connections spent moving them */
    uint32_t num_connections, num_refused;
};
void bulk_server_count(struct bulk_server *server, struct bulk_server_counts *out);

#endif
