/* rpc_guard.h - the relay between clients and the RPC library: it finds out who a client is, and
 * bounds what it can make the library hold. Private to proto/rpc*.c.
 *
 * The library gets one end of a socket pair; one thread of the guard relays between the other end
 * and the client, by TLS or plain (tls/stream.h), and looks at the heads of the frames
 * (rpc_frames.h). So every bound is kept before the library sees a byte, whatever socket the client
 * came by:
 *
 *   - a client that does not read: nothing more is read from it while bytes for it wait; after
 *     RPC_STALL_MS its connection is closed;
 *   - all that one user does: frames and bytes of all of its connections take from one budget
 *     (rpc_budget.h); the rest waits in the client's socket, and new connections are refused;
 *   - large requests: a connection sends RPC_SMALL_BYTES of requests that are not whole, and
 *     RPC_LARGE_BYTES while it has one of RPC_TICKETS tickets, for which it waits; three quarters
 *     of them at most are of one user who is not privileged. One that wants more, or has not ended
 *     its requests within RPC_TICKET_MS and what their bytes take at RPC_BYTES_PER_SECOND, is
 *     closed. (Shares of a common number of bytes would not do: requests that each have a part of
 *     them wait for each other.);
 *   - too many streams, settings or header bytes, or another protocol: closed;
 *   - silent connections: closed when no request came within `silent_ms`, or one that has begun is
 *     not whole within that and what its bytes take at RPC_BYTES_PER_SECOND, the time that the
 *     guard holds it back aside. Records of TLS that are not whole are no bytes here;
 *   - all places taken: the connection that has had no open stream for the longest time makes room,
 *     of the user who has most; the last RPC_PLACES_RESERVED are for privileged users;
 *   - strangers, who have not authenticated yet: TLS_HANDSHAKES_MAX at once, TLS_HANDSHAKES_EACH of
 *     one address, TLS_HANDSHAKE_MS long; then a newcomer takes the place of another (tls/crowd.h).
 *     At its first byte a stranger's address pays for the handshake.
 *
 * A connection that is closed for its behaviour is named in the log: user, process, reason.
 * Memory: RPC_RELAY_BYTES per direction and connection at most, none while both sides read, and a
 * record of TLS that is not whole. */
#ifndef HOLDFAST_PROTO_WIRE_RPC_GUARD_H
#define HOLDFAST_PROTO_WIRE_RPC_GUARD_H

#include "proto/base/principal.h"

#include <stdbool.h>
#include <stdint.h>

#define RPC_RELAY_BYTES 8192u
#define RPC_STALL_MS 30000
#define RPC_PLACES_RESERVED 16u
#define RPC_SMALL_BYTES (32u << 10)
#define RPC_LARGE_BYTES (8u << 20)
#define RPC_TICKETS 4u
#define RPC_TICKET_MS 5000

struct rpc_guard;
struct rpc_guard_options {
    uint32_t num_places; /* connections at once, beside strangers */
    uint32_t silent_ms;
    uint32_t budget_per_second, budget_burst; /* of rpc_budget.h */
    const char *tls_directory; /* (optional) strangers are verified by its files; borrowed */
    void *user;
    /* An end of a new connection to the library for a peer that comes in: a socket that does not
     * block, the guard's from here on. On any thread, with the guard's mutex. */
    int (*connect)(void *user, int *out, const struct principal *peer);
};
/* Errors of tls_keys_open_server; ERR_MEMORY, ERR_IO */
int rpc_guard_open(struct rpc_guard **out, const struct rpc_guard_options *options);
/* Takes so much from the budget of that peer's user, before it costs more than that. ERR_BUSY:
 * nothing is left; ERR_MEMORY. */
int rpc_guard_charge(struct rpc_guard *guard, const struct principal *peer, uint32_t cost);
/* Takes over a socket that does not block, also when it fails: of that peer, or of a stranger at
 * the address `from`, who may come in when TLS has verified who it is. ERR_BUSY: all places are
 * taken; errors of `connect`; ERR_MEMORY, ERR_IO. */
int rpc_guard_adopt(struct rpc_guard *guard, int socket, const struct principal *peer);
int rpc_guard_adopt_stranger(struct rpc_guard *guard, int socket, const char *from);
/* As tls_keys_end_s. */
int64_t rpc_guard_tls_end_s(const struct rpc_guard *guard);
/* Closes every connection, joins the thread, frees. NULL is fine. */
void rpc_guard_close(struct rpc_guard *guard);

#endif
