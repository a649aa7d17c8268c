/* rpc_frames.h - parses the frame heads of one HTTP/2 connection and bounds its requests. Pure:
 * bytes in, numbers out; no I/O, no clock, no allocation.
 *
 * The relay passes all bytes of a connection, in both directions, to this parser first. It ignores
 * payloads. Pings and settings wait while RPC_UNANSWERED_MAX of them have no answer yet, because
 * the server holds some kilobytes for each (measured with gRPC 1.51: 1.5 KiB a ping).
 *
 * rpc_frames_overdue_ms() reports a frame or request that takes longer than its bytes may. Without
 * it a client that sends a byte a second keeps its place for ever.
 *
 * Every frame is charged to the budget of its user (rpc_budget.h): about the server's processor
 * time for it, in units of 10 microseconds. Data of answers are charged, too, but never wait.
 *
 * Source of the format: RFC 9113, sections 3.4, 4.1 and 6. */
#ifndef HOLDFAST_PROTO_WIRE_RPC_FRAMES_H
#define HOLDFAST_PROTO_WIRE_RPC_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RPC_STREAMS_OPEN_MAX 256u         /* of a connection; gRPC refuses streams over its limit */
#define RPC_HEADER_BLOCK_BYTES_MAX 16384u /* HEADERS with its CONTINUATION frames */
#define RPC_SETTINGS_BYTES_MAX 192u       /* of one SETTINGS frame: 32 settings */
#define RPC_UNANSWERED_MAX 16
/* The slowest rate that is in time; a connection of 100 KB/s is. */
#define RPC_BYTES_PER_SECOND 65536

/* Costs; others are in rpc.h. Measured on a 2-core Zen 5 machine, in processor time of a whole
 * ckptd. */
#define RPC_COST_FRAME 1
#define RPC_COST_CALL 16          /* HEADERS that open a stream */
#define RPC_DATA_COST_BYTES 1024u /* of data, in either direction, at the cost of a frame */

struct rpc_frame_reader {
    uint8_t head[9];
    uint32_t head_bytes, payload_left, payload_bytes;
    int64_t now_ms, begun_ms; /* the caller's clock; the begin of the incomplete frame */
};

struct rpc_stream {
    uint32_t id;
    uint32_t bytes; /* of its request, until that is complete */
    bool is_ended;  /* the client has ended its side of the stream */
    int64_t begun_ms;
};

struct rpc_frames {
    struct rpc_frame_reader client, server;
    int64_t budget; /* set by the caller: the budget left of its user; no frame passes at 0 */
    int32_t num_unanswered; /* unanswered pings and settings of the client */
    uint32_t allowance;     /* set by the caller: most bytes of incomplete requests */
    uint32_t unfinished;    /* bytes of incomplete requests */
    bool wants_more;        /* data waits for a larger allowance */
    uint32_t preface_bytes; /* received bytes of the client's preface */
    uint32_t block_bytes;   /* of the header block under way */
    uint32_t block_stream;  /* its stream; 0: no block is under way */
    uint32_t last_stream;   /* the newest stream of the client */
    struct rpc_stream open[RPC_STREAMS_OPEN_MAX]; /* not yet ended by the server or by a reset */
    uint32_t num_open;
};

/* Parses bytes from the client. Returns how many of them may pass now. The caller passes the others
 * again, from the first that did not pass, when there is a budget or an answer. *out_why is NULL,
 * or static text: the connection breaks a limit and must be closed. */
size_t rpc_frames_from_client(struct rpc_frames *frames, const uint8_t *data, size_t bytes,
                              const char **out_why);
/* Parses bytes from the server, which may end streams. */
void rpc_frames_from_server(struct rpc_frames *frames, const uint8_t *data, size_t bytes);
/* The longest overdue time of a frame or request that the client has not completed. It is the time
 * since its begin, less the time for its bytes at RPC_BYTES_PER_SECOND. By client.now_ms, which the
 * caller sets. */
int64_t rpc_frames_overdue_ms(const struct rpc_frames *frames);

#endif
