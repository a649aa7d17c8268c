/* rpc_guard.h - stands between accepted connections and the RPC library and bounds what a client
 * can make the library hold. Private to proto/rpc*.c.
 *
 * The library gets one end of a socket pair; one thread of the guard relays between the other end
 * and the client, and looks at the heads of the frames (rpc_frames.h). So every bound is kept
 * before the library sees a byte, whatever socket the client came by:
 *
 *   - a client that does not read: nothing more is read from it while bytes for it wait; after
 *     RPC_STALL_MS its connection is closed;
 *   - floods of small frames (pings, settings, resets, empty data): RPC_FRAMES_BURST at once, then
 *     RPC_FRAMES_PER_SECOND; the rest waits in the client's socket;
 *   - all that one user does: `budget_per_second` of all of its connections (rpc_budget.h); the
 *     rest waits likewise, and new connections are refused;
 *   - large requests: a connection sends RPC_SMALL_BYTES of requests that are not whole, and
 *     RPC_LARGE_BYTES while it has one of RPC_TICKETS tickets, for which it waits; three quarters
 * of them at most are of one user who is not privileged. One that wants more, or has not ended its
 *     requests within RPC_TICKET_MS and what their bytes take at RPC_BYTES_PER_SECOND, is closed;
 *   - too many streams, settings or header bytes, or another protocol: closed;
 *   - silent connections: closed when no request came within `silent_ms`, or one that has begun is
 *     not whole within that and what its bytes take at RPC_BYTES_PER_SECOND, the time that the
 *     guard holds it back aside. Records of TLS that are not whole (tls/relay.c) are no bytes here;
 *   - all places taken: the connection that has had no open stream for the longest time makes room,
 *     of the user who has most; the last RPC_PLACES_RESERVED are for privileged users.
 *
 * A connection that is closed for its behaviour is named in the log: user, process, reason.
 * Memory: RPC_RELAY_BYTES per direction and connection at most, none while both sides read. */
#ifndef HOLDFAST_PROTO_WIRE_RPC_GUARD_H
#define HOLDFAST_PROTO_WIRE_RPC_GUARD_H

#include "proto/base/principal.h"

#include <stdbool.h>
#include <stdint.h>

#define RPC_RELAY_BYTES 8192u
#define RPC_STALL_MS 30000
#define RPC_FRAMES_BURST 8192
#define RPC_FRAMES_PER_SECOND 2000
#define RPC_PLACES_RESERVED 16u
#define RPC_SMALL_BYTES (32u << 10)
#define RPC_LARGE_BYTES (8u << 20)
#define RPC_TICKETS 4u
#define RPC_TICKET_MS 5000

struct rpc_guard;
struct rpc_guard_options {
    uint32_t num_places; /* connections at once */
    uint32_t silent_ms;
    uint32_t budget_per_second, budget_burst; /* of rpc_budget.h */
};
/* ERR_MEMORY, ERR_IO */
int rpc_guard_open(struct rpc_guard **out, const struct rpc_guard_options *options);
/* Takes so much from the budget of that peer's user, before it costs more than that. ERR_BUSY:
 * nothing is left; ERR_MEMORY. */
int rpc_guard_charge(struct rpc_guard *guard, const struct principal *peer, uint32_t cost);
/* A place for one more connection of that peer, if need be another's. ERR_BUSY: there is none. */
int rpc_guard_make_room(struct rpc_guard *guard, const struct principal *peer);
/* Relays between `client` and `library`, non-blocking sockets that are the guard's from here on,
 * also when it fails. ERR_MEMORY, ERR_IO. */
int rpc_guard_add(struct rpc_guard *guard, int client, int library, const struct principal *peer);
/* Closes every connection, joins the thread, frees. NULL is fine. */
void rpc_guard_close(struct rpc_guard *guard);

#endif
