/* bulk.h - moves bytes in bulk between two machines: the client of ckptd's bulk plane.
 *
 * The control plane (OpenBulk of ckpt.proto) issues a ticket: 16 random bytes for certain objects,
 * valid for one identity and for a short time. With it a client opens several connections over TLS
 * 1.3, with the same certificate as for OpenBulk, and requests blocks:
 *
 *     struct bulk *bulk;
 *     bulk_open(&bulk, &(struct bulk_options){.address = "n2:7071", .directory = "/etc/...",
 *                                             .ticket = ticket, .num_connections = 4});
 *     bulk_get(bulk, &(struct bulk_get){.part = shard, .offset = 0, .bytes = n, .to = memory}, ms);
 *     bulk_close(bulk);
 *
 * The parts of a ticket:
 *     a stored checkpoint (of run, step and attempt): part i is the file of shard i, and
 *         BULK_MANIFEST its manifest; ends at the file's end. The bytes are unverified: the reader
 *         verifies them by the manifest (store/shard.c), as from any other tier.
 *     objects that a node has opened here (method Peer): `save` is the handle, for GET and PUT;
 *         both are of whole blocks of the storage, and a PUT is written when it is answered.
 *     a session of a rank: PUT into segments that BeginSave lent, GET from those that LoadShard
 *         lent; part is the segment.
 *
 * Bytes move straight between socket and memory, in blocks of BULK_BLOCK_BYTES, each with a hash
 * that the receiver verifies; over TLS the records already verify received blocks. The client opens
 * a connection again when it was cut, or when a block does not match its hash. Blocks that have
 * arrived are not sent again.
 *
 * Bounds: if a block makes no progress for BULK_STALL_MS, or too little (tls/stream.h), or the peer
 * is unreachable for so long, the calls that need it return ERR_UNAVAILABLE. Memory: the caller's,
 * and 64 KiB per connection. Threads: one per connection, all signals blocked. Call any function
 * from any thread, but bulk_close last. */
#ifndef HOLDFAST_BULK_H
#define HOLDFAST_BULK_H

#include "proto/wire/arena.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BULK_BLOCK_BYTES (1u << 20)
#define BULK_TICKET_BYTES 16u
#define BULK_MANIFEST UINT32_MAX
#define BULK_CONNECTIONS_MAX 16u
#define BULK_STALL_MS 5000u
#define BULK_LITTLE_BYTES (64u << 10)

#define BULK_ADDRESS_MAX 300u
/* The address of the bulk plane of the ckptd at `server` ("host:port"), which sent "host:port" or
 * ":port". ERR_INVALID; ERR_DENIED: plain bytes must not leave this machine, regardless of ckptd's
 * answer. */
int bulk_address(char *out, size_t size, const char *server, const char *told, bool is_plain);

struct bulk;
struct bulk_options {
    const char *address;   /* "host:port" */
    const char *directory; /* files of the TLS plane (proto/tls/tls.h); NULL: plain, no identity */
    const uint8_t *ticket; /* BULK_TICKET_BYTES; copied */
    uint32_t num_connections; /* 0: 4 */
    /* (optional) Replaces a ticket that is no longer valid: writes a new one. Runs on any thread of
     * the client, one at a time. */
    int (*renew)(void *user, uint8_t ticket[BULK_TICKET_BYTES]);
    void *user;
};
/* Connects at the first request. ERR_INVALID: the address; errors of tls_keys_open_client;
 * ERR_MEMORY. */
int bulk_open(struct bulk **out, const struct bulk_options *options);
/* Ends requests under way with ERR_ABORTED. NULL is fine. */
void bulk_close(struct bulk *bulk);

struct bulk_get {
    uint32_t part, generation;
    uint64_t offset, bytes, save;
    void *to;
};
/* Returns when all bytes have arrived and are verified; after an error the memory is undefined.
 * ERR_NOT_FOUND: no such part, or it is shorter; ERR_DENIED: the ticket; ERR_UNAVAILABLE,
 * ERR_TIMEOUT, ERR_CORRUPT. */
int bulk_get(struct bulk *bulk, const struct bulk_get *get, uint32_t timeout_ms);
/* The same for many at once. A peer limits the number of those below BULK_LITTLE_BYTES. */
int bulk_get_all(struct bulk *bulk, const struct bulk_get *gets, uint32_t count,
                 uint32_t timeout_ms);

/* Returns when all bytes are written to the handle's object. Errors as of bulk_get. */
int bulk_write(struct bulk *bulk, uint64_t handle, uint64_t offset, const void *from,
               uint64_t bytes, uint32_t timeout_ms);

/* A block of a save: at most BULK_BLOCK_BYTES. `number`s count from 0 in each save. The bytes must
 * not change until it is done. bytes 0: the end of the save, after all earlier blocks have
 * arrived. */
struct bulk_put {
    uint32_t segment, generation, image, number;
    uint64_t offset, bytes, save, image_byte;
    const void *from;
};
/* Queues it; waits while BULK_QUEUE_MAX are under way. Returns the save's error so far: after one
 * no block is sent until the next save. */
#define BULK_QUEUE_MAX 256u
int bulk_put(struct bulk *bulk, const struct bulk_put *put);
/* Waits until all blocks have arrived. 0, or the first error since the last flush. */
int bulk_flush(struct bulk *bulk);
/* Drops blocks that have not arrived. */
void bulk_drop(struct bulk *bulk);
/* Like arena_window_wait and _get, for the session's image. */
int bulk_window(struct bulk *bulk, struct arena_window *out, uint32_t changes, uint32_t wait_ms);
/* Tells ckptd that this client does not come back; call bulk_close after it. Takes a second at
 * most. */
void bulk_leave(struct bulk *bulk);
/* Counts since it was opened. */
struct bulk_counts {
    uint64_t bytes_got, bytes_put,
        bytes_again;    /* again: of blocks that were sent or requested twice */
    uint32_t num_cuts;  /* connections that broke with requests under way */
    double rtt_seconds; /* of the connection with the latest answer; 0: unknown */
};
void bulk_count(struct bulk *bulk, struct bulk_counts *out);
/* 0: it is reachable as far as is known; else the reason. Costs nothing. */
int bulk_check(struct bulk *bulk);

#endif
