/* rpc_frames.h - what one HTTP/2 connection asks for, read off its frame heads. Pure: bytes in,
 * numbers out; no I/O, no clock, no memory of its own.
 *
 * Who relays the bytes of a connection shows them here first, in both directions. Payloads are not
 * looked at. Pings and settings wait while RPC_UNANSWERED_MAX of them have no answer yet: the
 * server holds some kilobytes for each (measured with gRPC 1.51: 1.5 KiB a ping).
 *
 * What takes longer than its bytes may, a frame or a request, is told (rpc_frames_overdue_ms): else
 * a client that sends a byte a second would keep its place for ever.
 *
 * Every frame has a cost, taken from the budget of its user (rpc_budget.h): about what it
 * takes of the server's processors, in units of 10 microseconds. Data of answers cost, too, but
 * pass.
 *
 * Source of the format: RFC 9113, sections 3.4, 4.1 and 6. */
#ifndef HOLDFAST_PROTO_WIRE_RPC_FRAMES_H
#define HOLDFAST_PROTO_WIRE_RPC_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RPC_STREAMS_OPEN_MAX 256u /* of a connection; gRPC refuses those over its own limit */
#define RPC_HEADER_BLOCK_BYTES_MAX 16384u /* HEADERS with its CONTINUATION frames */
#define RPC_SETTINGS_BYTES_MAX 192u       /* of one SETTINGS frame: 32 settings */
#define RPC_UNANSWERED_MAX 16
#define RPC_BYTES_PER_SECOND 65536 /* a connection of 100 KB/s is in time */

/* Costs; others are in rpc.h. Measured on a 2-core Zen 5 machine, in processor time of a whole
 * ckptd. */
#define RPC_COST_FRAME 1
#define RPC_COST_CALL 16          /* HEADERS that open a stream */
#define RPC_DATA_COST_BYTES 1024u /* of data, in either direction: as much as a frame */

struct rpc_frame_reader {
    uint8_t head[9];
    uint32_t head_bytes, payload_left, payload_bytes;
    int64_t now_ms, begun_ms; /* the caller's clock; when the frame that is not whole began */
};

struct rpc_stream {
    uint32_t id;
    uint32_t bytes; /* of its request, until that is whole */
    bool is_ended;  /* the client has said that nothing more of it comes */
    int64_t begun_ms;
};

struct rpc_frames {
    struct rpc_frame_reader client, server;
    int64_t budget;         /* the caller's, what its user may still spend; none passes at 0 */
    int32_t num_unanswered; /* pings and settings of the client */
    uint32_t allowance;     /* the caller's: bytes of requests that are not whole */
    uint32_t unfinished;    /* as many there are */
    bool wants_more;        /* data waits for a larger allowance */
    uint32_t preface_bytes; /* of the client's greeting that came */
    uint32_t block_bytes;   /* of the header block that is not ended */
    uint32_t block_stream;  /* whose that is; 0: there is none */
    uint32_t last_stream;   /* the newest that the client opened */
    struct rpc_stream open[RPC_STREAMS_OPEN_MAX]; /* that the server has not ended, nor a reset */
    uint32_t num_open;
};

/* Bytes from the client. Returns how many of them may pass now; the others are to be shown again,
 * from the first that did not pass, when there is a budget or an answer. *out_why is NULL, or
 * static text: the connection breaks a limit and is to be closed. */
size_t rpc_frames_from_client(struct rpc_frames *frames, const uint8_t *data, size_t bytes,
                              const char **out_why);
/* Bytes from the server: streams that it ends are open no more. */
void rpc_frames_from_server(struct rpc_frames *frames, const uint8_t *data, size_t bytes);
/* Of what the client has begun and not ended, a frame or a request: the longest that one has taken,
 * less what its bytes may take at RPC_BYTES_PER_SECOND. By client.now_ms, which the caller sets. */
int64_t rpc_frames_overdue_ms(const struct rpc_frames *frames);

#endif
