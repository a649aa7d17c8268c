/* stream.h - a connection: TLS 1.3 with a certificate on both sides (files as in tls.h), or,
 * without keys, plain.
 *
 * Bytes move between the socket and the caller's memory, without a thread or a further buffer. A
 * thread with one connection uses the calls with a deadline; a thread with many uses
 * tls_stream_begin and the calls after it, which never wait.
 *
 * Threads: a stream has one user at a time, except for tls_stream_cut; keys may be shared. A write
 * to a peer that has gone raises SIGPIPE: it must be blocked or ignored. */
#ifndef HOLDFAST_TLS_STREAM_H
#define HOLDFAST_TLS_STREAM_H

#include "proto/base/principal.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The files of a directory, read. */
struct tls_keys;
/* `protocol`: the protocol after the handshake; both sides must name the same. Both strings are
 * borrowed as long as the keys. ERR_INVALID, ERR_DENIED, ERR_NOT_FOUND: from the files;
 * ERR_MEMORY. */
int tls_keys_open_server(struct tls_keys **out, const char *directory, const char *protocol);
int tls_keys_open_client(struct tls_keys **out, const char *directory, const char *protocol);
void tls_keys_close(struct tls_keys *keys); /* NULL is fine */
/* Reads changed files again. Logs unusable ones and keeps the old. True: the authority or the
 * revocation list has changed, so open connections must be verified again. */
bool tls_keys_refresh(struct tls_keys *keys);
/* As tls_directory_check(), for the files in use. Any thread. */
int64_t tls_keys_end_s(const struct tls_keys *keys);

struct tls_stream;
/* Takes over a connected socket, also when it fails, and performs the handshake. `keys` NULL:
 * plain. `host`: for a client, the name in the server's certificate; for a server NULL. `out_peer`
 * may be NULL; for a plain connection, and for a server's certificate without an identity, it is
 * the role reader of no run. ERR_DENIED: from the peer, or our own files, with the reason;
 * ERR_TIMEOUT, ERR_UNAVAILABLE, ERR_MEMORY. */
int tls_stream_open(struct tls_stream **out, struct tls_keys *keys, int socket, const char *host,
                    uint32_t timeout_ms, struct principal *out_peer);
void tls_stream_close(struct tls_stream *stream); /* NULL is fine */
/* Ends the calls of another thread on the stream. */
void tls_stream_cut(struct tls_stream *stream);
/* The slowest allowed rate of a connection over time. A peer that sends a byte a second never
 * stalls; with this it occupies its thread no longer than a stalled one. A link of 100 KB/s may
 * have several. */
#define TLS_STREAM_BYTES_PER_SECOND 16384u
/* Moves all `bytes`. ERR_TIMEOUT: no byte moved for the time, or all took longer than it plus their
 * time at TLS_STREAM_BYTES_PER_SECOND. ERR_UNAVAILABLE: the connection is over. */
int tls_stream_read(struct tls_stream *stream, void *out, size_t bytes, uint32_t timeout_ms);
int tls_stream_write(struct tls_stream *stream, const void *data, size_t bytes,
                     uint32_t timeout_ms);
/* 0: there is something to read; ERR_TIMEOUT: not within the time. */
int tls_stream_wait(struct tls_stream *stream, uint32_t timeout_ms);
/* ---- without waiting ---- */

/* As tls_stream_open, but the handshake is yet to be done by tls_stream_shake. */
int tls_stream_begin(struct tls_stream **out, struct tls_keys *keys, int socket, const char *host);
/* 1: the handshake is done, *out_peer as in tls_stream_open; 0: call it again when one of
 * *out_events (of poll) has come; or an error of tls_stream_open. */
int tls_stream_shake(struct tls_stream *stream, struct principal *out_peer, short *out_events);
/* The number of moved bytes; 0: none now, wait for *out_events; ERR_UNAVAILABLE: it is over.
 * Unwritten bytes must be written next. */
ssize_t tls_stream_read_some(struct tls_stream *stream, void *out, size_t bytes, short *out_events);
ssize_t tls_stream_write_some(struct tls_stream *stream, const void *data, size_t bytes,
                              short *out_events);
/* Are there decrypted bytes, which the socket does not signal? */
bool tls_stream_has_pending(const struct tls_stream *stream);

/* The round trip to the peer as the kernel measures it; 0: unknown. */
double tls_stream_rtt_seconds(const struct tls_stream *stream);

#endif
