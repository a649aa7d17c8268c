/* http2_bed.h - a peer that speaks HTTP/2 frame by frame, so that it can break gRPC's manners. */
#ifndef HOLDFAST_TESTS_HTTP2_BED_H
#define HOLDFAST_TESTS_HTTP2_BED_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#define HTTP2_PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#define HTTP2_FRAME_MAX 16384u /* without other settings */
enum { HTTP2_DATA = 0, HTTP2_HEADERS = 1, HTTP2_RESET = 3, HTTP2_SETTINGS = 4 };
enum { HTTP2_ACK = 1, HTTP2_END_STREAM = 1, HTTP2_END_HEADERS = 4 };

/* False: the server has hung up. */
static inline bool http2_send(int fd, const void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t count = send(fd, (const char *)data + done, bytes - done, MSG_NOSIGNAL);
        if (count <= 0)
            return false;
        done += (size_t)count;
    }
    return true;
}

static inline void http2_frame_head(uint8_t out[9], uint8_t type, uint8_t flags, uint32_t stream,
                                    size_t bytes)
{
    const uint8_t head[9] = {(uint8_t)(bytes >> 16),
                             (uint8_t)(bytes >> 8),
                             (uint8_t)bytes,
                             type,
                             flags,
                             (uint8_t)(stream >> 24),
                             (uint8_t)(stream >> 16),
                             (uint8_t)(stream >> 8),
                             (uint8_t)stream};
    memcpy(out, head, sizeof head);
}

static inline bool http2_send_frame(int fd, uint8_t type, uint8_t flags, uint32_t stream,
                                    const void *data, size_t bytes)
{
    uint8_t frame[9 + HTTP2_FRAME_MAX];
    http2_frame_head(frame, type, flags, stream, bytes);
    if (bytes > 0)
        memcpy(frame + 9, data, bytes);
    return http2_send(fd, frame, 9 + bytes);
}

static inline size_t http2_put_text(uint8_t *out, const char *text, size_t bytes)
{
    size_t at = 0, rest = bytes;
    if (rest < 127) {
        out[at++] = (uint8_t)rest;
    } else {
        out[at++] = 127;
        for (rest -= 127; rest >= 128; rest >>= 7)
            out[at++] = (uint8_t)(rest & 127) | 128;
        out[at++] = (uint8_t)rest;
    }
    memcpy(out + at, text, bytes);
    return at + bytes;
}

/* A literal that no table keeps. */
static inline size_t http2_put_header(uint8_t *out, const char *name, const char *value)
{
    size_t at = 0;
    out[at++] = 0;
    at += http2_put_text(out + at, name, strlen(name));
    return at + http2_put_text(out + at, value, strlen(value));
}

/* Those of a gRPC call of `method`; returns how many bytes. */
static inline size_t http2_put_call(uint8_t *out, const char *method)
{
    static const char *const pairs[][2] = {{":method", "POST"},
                                           {":scheme", "http"},
                                           {":authority", "localhost"},
                                           {"te", "trailers"},
                                           {"content-type", "application/grpc"}};
    size_t at = http2_put_header(out, ":path", method);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        at += http2_put_header(out + at, pairs[i][0], pairs[i][1]);
    return at;
}

static inline bool http2_receive(int fd, uint8_t *out, size_t bytes)
{
    return recv(fd, out, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

/* The next frame, its payload in `data`; false: none came. */
static inline bool http2_receive_frame(int fd, uint8_t head[9], uint8_t data[HTTP2_FRAME_MAX],
                                       size_t *out_bytes)
{
    if (!http2_receive(fd, head, 9))
        return false;
    *out_bytes = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
    return *out_bytes <= HTTP2_FRAME_MAX &&
           (*out_bytes == 0 || http2_receive(fd, data, *out_bytes));
}

/* Reads up to the server's settings. */
static inline bool http2_await_settings(int fd)
{
    uint8_t head[9], data[HTTP2_FRAME_MAX];
    size_t bytes;
    while (http2_receive_frame(fd, head, data, &bytes))
        if (head[3] == HTTP2_SETTINGS && (head[4] & HTTP2_ACK) == 0)
            return true;
    return false;
}

/* Reads until the stream ends. True: with a message of the server's; else it was refused, or
 * *out_silent: nothing more came in the time of the socket. */
static inline bool http2_is_answered(int fd, uint32_t stream, bool *out_silent)
{
    uint8_t head[9], data[HTTP2_FRAME_MAX];
    size_t bytes;
    bool answered = false;
    *out_silent = false;
    while (http2_receive_frame(fd, head, data, &bytes)) {
        uint32_t of =
            (uint32_t)head[5] << 24 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8];
        if (of != stream)
            continue;
        answered |= head[3] == HTTP2_DATA && bytes > 0;
        if (head[3] == HTTP2_RESET || (head[4] & HTTP2_END_STREAM) != 0)
            return answered;
    }
    *out_silent = true;
    return answered;
}

#endif
