/* rpc_guard.h - the relay between clients and the RPC library: it authenticates clients and bounds
 * the memory that they can make the library use. Private to rpc*.c.
 *
 * The library gets one end of a socket pair; one thread of the guard relays between the other end
 * and the client, by TLS or plain (tls/stream.h), and parses the heads of the frames
 * (rpc_frames.h). So the guard enforces every bound before the library sees a byte, for every kind
 * of socket:
 *
 *   - a client that does not read: the guard reads nothing from it while bytes for it wait, and
 *     closes its connection after RPC_STALL_MS;
 *   - total work of one user: frames and bytes of all of its connections are charged to one budget
 *     (rpc_budget.h); the rest waits in the client's socket, and new connections are refused;
 *   - large requests: a connection may send RPC_SMALL_BYTES of incomplete requests, and
 *     RPC_LARGE_BYTES while it has one of RPC_TICKETS tickets, for which it waits. One unprivileged
 *     user has at most three quarters of them. The guard closes a connection that wants more, or
 *     has not ended its requests within RPC_TICKET_MS and the time of their bytes at
 *     RPC_BYTES_PER_SECOND. (Shares of a common number of bytes can deadlock: requests that each
 *     have a part wait for each other.);
 *   - too many streams, settings or header bytes, or another protocol: closed;
 *   - silent connections: closed when no request begins within `silent_ms`, or one is not complete
 *     within that and the time of its bytes at RPC_BYTES_PER_SECOND. Time in which the guard holds
 *     the connection back does not count, nor do bytes of incomplete TLS records;
 *   - no free place: of the user with most connections, the one without an open stream for the
 *     longest time is closed; the last RPC_PLACES_RESERVED are for privileged users;
 *   - strangers (clients that have not authenticated yet): TLS_HANDSHAKES_MAX at once,
 *     TLS_HANDSHAKES_EACH of one address, TLS_HANDSHAKE_MS long; then a newcomer replaces another
 *     (tls/crowd.h). A stranger's address pays for the handshake at its first byte.
 *
 * The guard logs each connection that it closes for its behaviour: user, process, reason. Memory:
 * RPC_RELAY_BYTES per direction and connection at most, none while both sides read, and an
 * incomplete TLS record. */
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
    uint32_t num_places; /* connections at the same time, without strangers */
    uint32_t silent_ms;
    uint32_t budget_per_second, budget_burst; /* of rpc_budget.h */
    const char *tls_directory; /* (optional) with files to verify TCP clients by; borrowed */
    void *user;
    /* Opens an end of a new connection to the library for an admitted peer: a non-blocking socket,
     * which the guard then owns. Called on any thread, with the guard's mutex. */
    int (*connect)(void *user, int *out, const struct principal *peer);
};
/* Errors of tls_keys_open_server; ERR_MEMORY, ERR_IO */
int rpc_guard_open(struct rpc_guard **out, const struct rpc_guard_options *options);
/* Charges the budget of that peer's user before the work is done. ERR_BUSY: the budget is spent;
 * ERR_MEMORY. */
int rpc_guard_charge(struct rpc_guard *guard, const struct principal *peer, uint32_t cost);
/* Takes over a non-blocking socket, also when it fails. It belongs to that peer, or to a stranger
 * at the address `from`, who is admitted after TLS has verified it. ERR_BUSY: all places are taken;
 * errors of `connect`; ERR_MEMORY, ERR_IO. */
int rpc_guard_adopt(struct rpc_guard *guard, int socket, const struct principal *peer);
int rpc_guard_adopt_stranger(struct rpc_guard *guard, int socket, const char *from);
/* As tls_keys_end_s. */
int64_t rpc_guard_tls_end_s(const struct rpc_guard *guard);
/* Closes every connection, joins the thread, frees. NULL is fine. */
void rpc_guard_close(struct rpc_guard *guard);

#endif
