/* wire.h - the messages of the bulk plane; bulk.h describes the plane.
 *
 * All numbers are little-endian, as on every machine that this runs on. A connection begins with
 * the client's hello, which is answered. Then come requests, answered in order; a client may send
 * BULK_AHEAD of them before it reads the first answer. An answer with an error carries its text,
 * `bytes` long, at most BULK_TEXT_MAX. Otherwise:
 *
 *     GET     a run of bytes; one answer per block of BULK_BLOCK_BYTES from `offset` on (the last
 *             may be shorter), with its hash, followed by the block's bytes
 *     PUT     one block, whose bytes follow the request; the answer confirms that it has arrived
 *             and is verified
 *     HAVE    has the PUT or END of that number arrived? `bytes` of the answer is 1 or 0. Sent
 *             before a block is repeated. If it arrives meanwhile the repeated PUT fails with
 *             ERR_EXISTS, which also means success.
 *     END     no more PUTs of the save will come
 *     WINDOW  the window of the session's image (proto/wire/arena.h), as soon as its count of
 *             changes is not `number`, or after `bytes` milliseconds, at most BULK_WINDOW_MS
 *     LEAVE   the client leaves and does not come back: its session need not wait for it
 *
 * Hashes are XXH3-64 of the bytes (checksum_bytes). On request, blocks of a GET over TLS come
 * without one, because TLS verifies them; plain bytes always have it. An older release requests,
 * and grants, nothing. */
#ifndef HOLDFAST_BULK_WIRE_H
#define HOLDFAST_BULK_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#define BULK_PROTOCOL "holdfast-bulk/1" /* in the handshake */
#define BULK_MAGIC 0x314b4c42u          /* "BLK1" */
#define BULK_TEXT_MAX 512u
#define BULK_UNHASHED 1u /* GET: the hash of an answer is 0 */
#define BULK_AHEAD 32u
#define BULK_GET_BYTES_MAX (64u << 20)
#define BULK_NUMBERS_MAX (1u << 24) /* PUTs of one save */
#define BULK_WINDOW_MS 1000u

enum bulk_verb {
    BULK_GET = 1,
    BULK_PUT = 2,
    BULK_HAVE = 3,
    BULK_END = 4,
    BULK_WINDOW = 5,
    BULK_LEAVE = 6,
    NUM_BULK_VERBS
};

struct bulk_hello {
    uint32_t magic, wants; /* BULK_UNHASHED */
    uint8_t ticket[16];
};

struct bulk_request {
    uint32_t magic;
    uint32_t verb;
    uint32_t part;       /* GET of an object: its part; else the segment */
    uint32_t generation; /* of that segment */
    uint64_t offset;     /* in the part, or in the segment */
    uint64_t bytes;
    uint64_t save;       /* PUT, HAVE, END: of BeginSave */
    uint64_t image_byte; /* PUT: the position of `offset` in the image */
    uint32_t image;      /* PUT, END: slot number */
    uint32_t number;     /* PUT, HAVE, END: of the block in the save, from 0 */
    uint64_t hash;       /* PUT: of the bytes */
};

struct bulk_answer {
    uint32_t magic;
    int32_t error;
    uint64_t offset, bytes, hash;
    uint64_t window_save, window_end;
    uint32_t window_changes;
    uint32_t grants; /* of a hello: the granted wants */
    uint64_t zero2;
};
_Static_assert(sizeof(struct bulk_hello) == 24, "as it goes over the wire");
_Static_assert(sizeof(struct bulk_request) == 64, "as it goes over the wire");
_Static_assert(sizeof(struct bulk_answer) == 64, "as it goes over the wire");

/* Is the request valid, whatever its object? ERR_CORRUPT: then the connection is over, because the
 * begin of the next request is unknown. */
int bulk_check_request(const struct bulk_request *request);
/* The same for an answer to `request`. A block of a GET is answered at `offset`. */
int bulk_check_answer(const struct bulk_answer *answer, const struct bulk_request *request,
                      uint64_t offset);

#endif
