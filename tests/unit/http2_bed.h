/* http2_bed.h - a peer that sends HTTP/2 frame by frame, so that it can violate gRPC's rules. */
#ifndef HOLDFAST_TESTS_HTTP2_BED_H
#define HOLDFAST_TESTS_HTTP2_BED_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#define HTTP2_PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#define HTTP2_FRAME_MAX 16384u /* without other settings */
#define HTTP2_WINDOW 65535     /* likewise */
enum { HTTP2_DATA = 0, HTTP2_HEADERS = 1, HTTP2_RESET = 3, HTTP2_SETTINGS = 4, HTTP2_PING = 6 };
enum { HTTP2_WINDOWS = 8 };
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

/* A literal header that is not indexed. */
static inline size_t http2_put_header(uint8_t *out, const char *name, const char *value)
{
    size_t at = 0;
    out[at++] = 0;
    at += http2_put_text(out + at, name, strlen(name));
    return at + http2_put_text(out + at, value, strlen(value));
}

/* The headers of a gRPC call of `method`; returns the number of bytes. */
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

/* A signal interrupts a call on a socket with a time limit, also the kernel's signal that a
 * thread's former ring is gone. */
static inline bool http2_receive(int fd, uint8_t *out, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t count = recv(fd, out + done, bytes - done, 0);
        if (count <= 0 && !(count < 0 && errno == EINTR))
            return false;
        done += count > 0 ? (size_t)count : 0;
    }
    return true;
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

static inline uint32_t http2_number(const uint8_t *four)
{
    return (uint32_t)four[0] << 24 | (uint32_t)four[1] << 16 | (uint32_t)four[2] << 8 | four[3];
}

/* True for the server's settings. Then *out_window is the initial window of a new stream. */
static inline bool http2_is_settings(const uint8_t head[9], const uint8_t *data, size_t bytes,
                                     int64_t *out_window)
{
    enum { INITIAL_WINDOW = 4 };
    if (head[3] != HTTP2_SETTINGS || (head[4] & HTTP2_ACK) != 0)
        return false;
    for (size_t i = 0; i + 6 <= bytes; i += 6)
        if (data[i] == 0 && data[i + 1] == INITIAL_WINDOW)
            *out_window = http2_number(data + i + 2);
    return true;
}

/* Reads up to the server's settings. */
static inline bool http2_await_settings(int fd, int64_t *out_window)
{
    uint8_t head[9], data[HTTP2_FRAME_MAX];
    size_t bytes;
    *out_window = HTTP2_WINDOW;
    while (http2_receive_frame(fd, head, data, &bytes))
        if (http2_is_settings(head, data, bytes, out_window))
            return true;
    return false;
}

/* Sends a gRPC message of `claimed` bytes without its last `kept`, as fast as the server allows;
 * `window` is that of a new stream. Returns the number of bytes sent before the server refused. */
static inline uint64_t http2_pour(int fd, uint32_t stream, int64_t window, uint32_t claimed,
                                  uint32_t kept)
{
    static uint8_t data[HTTP2_FRAME_MAX];
    const uint8_t prefix[5] = {0, (uint8_t)(claimed >> 24), (uint8_t)(claimed >> 16),
                               (uint8_t)(claimed >> 8), (uint8_t)claimed};
    int64_t of_new = window, of_all = HTTP2_WINDOW, sent = sizeof prefix;
    uint8_t head[9], byte;
    size_t bytes;
    if (!http2_send_frame(fd, HTTP2_DATA, 0, stream, prefix, sizeof prefix))
        return 0;
    while (sent < (int64_t)claimed - kept) {
        int64_t most = window < of_all ? window : of_all;
        most -= sent;
        if (most > 0 && recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 1) {
            most = most < HTTP2_FRAME_MAX ? most : HTTP2_FRAME_MAX;
            if (!http2_send_frame(fd, HTTP2_DATA, 0, stream, data, (size_t)most))
                break;
            sent += most;
            continue;
        }
        if (!http2_receive_frame(fd, head, data, &bytes))
            break;
        uint32_t of = http2_number(head + 5);
        int64_t before = of_new;
        if (http2_is_settings(head, data, bytes, &of_new))
            window += of_new - before;
        else if (head[3] == HTTP2_WINDOWS)
            *(of == 0 ? &of_all : &window) += http2_number(data);
        else if (of == stream && (head[3] == HTTP2_RESET || (head[4] & HTTP2_END_STREAM) != 0))
            break;
    }
    return (uint64_t)sent;
}

/* Reads until the stream ends. True: the server sent a message. Else it refused, or *out_silent:
 * nothing more came within the socket's time limit. */
static inline bool http2_is_answered(int fd, uint32_t stream, bool *out_silent)
{
    uint8_t head[9], data[HTTP2_FRAME_MAX];
    size_t bytes;
    bool answered = false;
    *out_silent = false;
    while (http2_receive_frame(fd, head, data, &bytes)) {
        if (http2_number(head + 5) != stream)
            continue;
        answered |= head[3] == HTTP2_DATA && bytes > 0;
        if (head[3] == HTTP2_RESET || (head[4] & HTTP2_END_STREAM) != 0)
            return answered;
    }
    *out_silent = true;
    return answered;
}

#endif
