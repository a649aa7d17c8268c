/* rpc_frames.c - see rpc_frames.h. */
#include "proto/wire/rpc_frames.h"

#include <string.h>

static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
#define PREFACE_BYTES (sizeof preface - 1)

enum frame_type {
    FRAME_DATA = 0,
    FRAME_HEADERS = 1,
    FRAME_RESET = 3,
    FRAME_SETTINGS = 4,
    FRAME_PING = 6,
    FRAME_CONTINUATION = 9
};
enum { FLAG_ACK = 1, FLAG_END_STREAM = 1, FLAG_END_HEADERS = 4 };

struct frame {
    uint32_t bytes, stream;
    uint8_t type, flags;
};

/* The next frame head within data[*at, bytes); *at moves after it. False: no complete head. */
static bool next_frame(struct frame *out, struct rpc_frame_reader *reader, const uint8_t *data,
                       size_t bytes, size_t *at)
{
    while (*at < bytes) {
        if (reader->payload_left > 0) {
            size_t here = bytes - *at;
            here = here < reader->payload_left ? here : reader->payload_left;
            reader->payload_left -= (uint32_t)here;
            *at += here;
            continue;
        }
        if (reader->head_bytes == 0)
            reader->begun_ms = reader->now_ms;
        reader->head[reader->head_bytes++] = data[(*at)++];
        if (reader->head_bytes < sizeof reader->head)
            continue;
        const uint8_t *h = reader->head;
        out->bytes = (uint32_t)h[0] << 16 | (uint32_t)h[1] << 8 | h[2];
        out->type = h[3];
        out->flags = h[4];
        out->stream =
            ((uint32_t)h[5] << 24 | (uint32_t)h[6] << 16 | (uint32_t)h[7] << 8 | h[8]) & 0x7fffffff;
        reader->head_bytes = 0;
        reader->payload_left = reader->payload_bytes = out->bytes;
        return true;
    }
    return false;
}

/* An open stream, or NULL. */
static struct rpc_stream *find_stream(struct rpc_frames *frames, uint32_t id)
{
    for (uint32_t i = 0; i < frames->num_open; i++)
        if (frames->open[i].id == id)
            return &frames->open[i];
    return NULL;
}

/* The stream's request is complete, or canceled. */
static void finish_request(struct rpc_frames *frames, struct rpc_stream *stream)
{
    frames->unfinished -= stream->bytes;
    stream->bytes = 0;
}

static void close_stream(struct rpc_frames *frames, uint32_t id)
{
    struct rpc_stream *stream = find_stream(frames, id);
    if (!stream)
        return;
    finish_request(frames, stream);
    *stream = frames->open[--frames->num_open];
}

static void handle_data(struct rpc_frames *frames, const struct frame *frame)
{
    struct rpc_stream *stream = find_stream(frames, frame->stream);
    if (!stream)
        return;
    stream->bytes += frame->bytes;
    frames->unfinished += frame->bytes;
    stream->is_ended = (frame->flags & FLAG_END_STREAM) != 0;
    if (stream->is_ended)
        finish_request(frames, stream);
}

/* The first HEADERS of a stream open it; later ones are trailers. */
static void handle_headers(struct rpc_frames *frames, const struct frame *frame)
{
    if (frame->stream > frames->last_stream) {
        frames->last_stream = frame->stream;
        frames->open[frames->num_open++] =
            (struct rpc_stream){.id = frame->stream, .begun_ms = frames->client.begun_ms};
    }
    struct rpc_stream *stream = find_stream(frames, frame->stream);
    if (stream)
        stream->is_ended = (frame->flags & FLAG_END_STREAM) != 0;
}

/* NULL, or the limit that the client's frame breaks. */
static const char *handle_frame(struct rpc_frames *frames, const struct frame *frame)
{
    bool is_block = frame->type == FRAME_HEADERS || frame->type == FRAME_CONTINUATION;
    if (frame->type == FRAME_SETTINGS && frame->bytes > RPC_SETTINGS_BYTES_MAX)
        return "it sent too many settings at once";
    if (frame->type == FRAME_RESET)
        close_stream(frames, frame->stream);
    if (frame->type == FRAME_DATA)
        handle_data(frames, frame);
    if (frame->type == FRAME_HEADERS && frame->stream > frames->last_stream &&
        frames->num_open == RPC_STREAMS_OPEN_MAX)
        return "it opened too many streams";
    if (frame->type == FRAME_HEADERS)
        handle_headers(frames, frame);
    if (!is_block)
        return NULL;
    /* Checked before the length is added: a block in one frame counts alone. */
    uint32_t before = frame->type == FRAME_HEADERS ? 0 : frames->block_bytes;
    if (frame->bytes > RPC_HEADER_BLOCK_BYTES_MAX - before)
        return "its headers were too long";
    /* The cost of frames bounds endless empty CONTINUATION frames. */
    bool is_whole = (frame->flags & FLAG_END_HEADERS) != 0;
    frames->block_bytes = is_whole ? 0 : before + frame->bytes;
    frames->block_stream = is_whole ? 0 : frame->stream;
    return NULL;
}

static int64_t cost_of(const struct rpc_frames *frames, const struct frame *frame)
{
    if (frame->type == FRAME_DATA)
        return RPC_COST_FRAME + frame->bytes / RPC_DATA_COST_BYTES;
    bool opens = frame->type == FRAME_HEADERS && frame->stream > frames->last_stream;
    return opens ? RPC_COST_CALL : RPC_COST_FRAME;
}

static bool is_answered(const struct frame *frame)
{
    return frame->type == FRAME_PING || frame->type == FRAME_SETTINGS;
}

/* May the client's frame pass now? */
static bool may_pass(struct rpc_frames *frames, const struct frame *frame)
{
    bool asks = is_answered(frame) && (frame->flags & FLAG_ACK) == 0;
    frames->wants_more = frame->type == FRAME_DATA && frame->bytes > 0 &&
                         (frames->unfinished >= frames->allowance ||
                          frame->bytes > frames->allowance - frames->unfinished);
    if (frames->wants_more || frames->budget <= 0 ||
        (asks && frames->num_unanswered >= RPC_UNANSWERED_MAX))
        return false;
    frames->budget -= cost_of(frames, frame);
    frames->num_unanswered += asks;
    return true;
}

size_t rpc_frames_from_client(struct rpc_frames *frames, const uint8_t *data, size_t bytes,
                              const char **out_why)
{
    size_t at = 0;
    *out_why = NULL;
    for (; at < bytes && frames->preface_bytes < PREFACE_BYTES; at++)
        if (data[at] != (uint8_t)preface[frames->preface_bytes++]) {
            *out_why = "it does not speak HTTP/2";
            return at;
        }
    struct frame frame;
    while (next_frame(&frame, &frames->client, data, bytes, &at)) {
        if (!may_pass(frames, &frame)) { /* parse the last byte of its head again */
            frames->client.head_bytes = sizeof frames->client.head - 1;
            frames->client.payload_left = 0;
            return at - 1;
        }
        *out_why = handle_frame(frames, &frame);
        if (*out_why)
            return at;
    }
    return at;
}

void rpc_frames_from_server(struct rpc_frames *frames, const uint8_t *data, size_t bytes)
{
    size_t at = 0;
    struct frame frame;
    while (next_frame(&frame, &frames->server, data, bytes, &at)) {
        bool ends = (frame.type == FRAME_HEADERS || frame.type == FRAME_DATA) &&
                    (frame.flags & FLAG_END_STREAM) != 0;
        if (ends || frame.type == FRAME_RESET)
            close_stream(frames, frame.stream);
        if (frame.type == FRAME_DATA)
            frames->budget -= frame.bytes / RPC_DATA_COST_BYTES;
        if (is_answered(&frame) && (frame.flags & FLAG_ACK) != 0 && frames->num_unanswered > 0)
            frames->num_unanswered--;
    }
}

static int64_t overdue_ms(const struct rpc_frames *frames, int64_t begun_ms, uint32_t bytes)
{
    return frames->client.now_ms - begun_ms - (int64_t)bytes * 1000 / RPC_BYTES_PER_SECOND;
}

int64_t rpc_frames_overdue_ms(const struct rpc_frames *frames)
{
    const struct rpc_frame_reader *reader = &frames->client;
    int64_t its = 0, most;
    if (reader->head_bytes > 0 || reader->payload_left > 0)
        its = overdue_ms(frames, reader->begun_ms, reader->payload_bytes - reader->payload_left);
    most = its > 0 ? its : 0;
    for (uint32_t i = 0; i < frames->num_open; i++) {
        const struct rpc_stream *stream = &frames->open[i];
        its = overdue_ms(frames, stream->begun_ms, stream->bytes);
        if ((!stream->is_ended || stream->id == frames->block_stream) && its > most)
            most = its;
    }
    return most;
}
