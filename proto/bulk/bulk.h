/* bulk.h - bytes in bulk between two machines: the client of ckptd's bulk plane.
 *
 * The control plane (OpenBulk of ckpt.proto) gives a ticket: 16 random bytes that name what may be
 * read or written, good for one identity and for a short time. With it a client opens several
 * connections over TLS 1.3, with the certificate that it asked with, and asks for blocks:
 *
 *     struct bulk *bulk;
 *     bulk_open(&bulk, &(struct bulk_options){.address = "n2:7071", .directory = "/etc/...",
 *                                             .ticket = ticket, .num_connections = 4});
 *     bulk_get(bulk, &(struct bulk_get){.part = shard, .offset = 0, .bytes = n, .to = memory}, ms);
 *     bulk_close(bulk);
 *
 * What a ticket's parts are:
 *     a stored checkpoint (of run, step and attempt): part i is the file of shard i, and
 *         BULK_MANIFEST its manifest; ends at the file's end. The bytes are as the disk gave them:
 *         who gets them proves them by the manifest (store/shard.c), as of any other tier.
 *     what a node has opened here (method Peer): `save` is the handle, for GET and PUT; both are of
 *         whole blocks of the storage, and a PUT is written when it is answered.
 *     a session of a rank: PUT into segments that BeginSave lent, GET from those that LoadShard
 *         lent; part is the segment.
 *
 * Bytes go straight between socket and memory, in blocks of BULK_BLOCK_BYTES, each with a hash that
 * the receiver proves; over TLS the records of what is got prove it already. A connection that is
 * cut, or whose block does not fit its hash, is opened again; what is there is not sent again.
 *
 * Bounds: a block that makes no way for BULK_STALL_MS, or too little (tls/stream.h), or a peer that
 * cannot be reached for so long, ends what needs it with ERR_UNAVAILABLE. Memory: the caller's, and
 * 64 KiB a connection. Threads: one per connection, all signals blocked; every function from any
 * thread, but bulk_close last. */
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
/* Where the bulk plane of the ckptd at `server` ("host:port") is, which told "host:port" or
 * ":port". ERR_INVALID; ERR_DENIED: plain bytes would leave this machine, whatever a ckptd says. */
int bulk_address(char *out, size_t size, const char *server, const char *told, bool is_plain);

struct bulk;
struct bulk_options {
    const char *address;   /* "host:port" */
    const char *directory; /* files of the TLS plane (proto/tls/tls.h); NULL: plain, no identity */
    const uint8_t *ticket; /* BULK_TICKET_BYTES; copied */
    uint32_t num_connections; /* 0: 4 */
    /* (optional) A ticket that is no longer good is replaced: writes a new one. Any thread of the
     * client, one at a time. */
    int (*renew)(void *user, uint8_t ticket[BULK_TICKET_BYTES]);
    void *user;
};
/* Connects when there is something to do. ERR_INVALID: the address; errors of
 * tls_keys_open_client; ERR_MEMORY. */
int bulk_open(struct bulk **out, const struct bulk_options *options);
/* Ends what is under way, with ERR_ABORTED. NULL is fine. */
void bulk_close(struct bulk *bulk);

struct bulk_get {
    uint32_t part, generation;
    uint64_t offset, bytes, save;
    void *to;
};
/* Returns when all the bytes are there and proven; on an error anything may be there.
 * ERR_NOT_FOUND: no such part, or it has not so many bytes; ERR_DENIED: the ticket;
 * ERR_UNAVAILABLE, ERR_TIMEOUT, ERR_CORRUPT. */
int bulk_get(struct bulk *bulk, const struct bulk_get *get, uint32_t timeout_ms);
/* The same of many at once. A peer counts those of less than BULK_LITTLE_BYTES. */
int bulk_get_all(struct bulk *bulk, const struct bulk_get *gets, uint32_t count,
                 uint32_t timeout_ms);

/* Returns when all the bytes are written behind the handle. As bulk_get. */
int bulk_write(struct bulk *bulk, uint64_t handle, uint64_t offset, const void *from,
               uint64_t bytes, uint32_t timeout_ms);

/* A block of a save on its way: at most BULK_BLOCK_BYTES. `number`s count from 0 in each save. The
 * bytes must stay as they are until it is done. bytes 0: no more will come, once all before it are
 * there. */
struct bulk_put {
    uint32_t segment, generation, image, number;
    uint64_t offset, bytes, save, image_byte;
    const void *from;
};
/* Queues it; waits while BULK_QUEUE_MAX are on their way. The error of the save so far: then
 * nothing is sent any more until the next save. */
#define BULK_QUEUE_MAX 256u
int bulk_put(struct bulk *bulk, const struct bulk_put *put);
/* Until all that was put is there. Then 0, or the first error since the last flush. */
int bulk_flush(struct bulk *bulk);
/* Gives up what was put and is not there. */
void bulk_drop(struct bulk *bulk);
/* As arena_window_wait and _get, of the session's image. */
int bulk_window(struct bulk *bulk, struct arena_window *out, uint32_t changes, uint32_t wait_ms);
/* Tells that nobody comes again; then bulk_close. Takes a second at most. */
void bulk_leave(struct bulk *bulk);
/* What it has moved since it was opened. */
struct bulk_counts {
    uint64_t bytes_got, bytes_put, bytes_again; /* again: that had to be sent or asked for twice */
    uint32_t num_cuts;                          /* connections that ended under way */
    double rtt_seconds; /* of the connection that was answered last; 0: not known */
};
void bulk_count(struct bulk *bulk, struct bulk_counts *out);
/* 0: as far as anybody knows it can be reached; else why not. Costs nothing. */
int bulk_check(struct bulk *bulk);

#endif
