/* stream.h - a connection: TLS 1.3 with a certificate on both sides (tls.h says of which files),
 * or, without keys, plain.
 *
 * Bytes go between the socket and the caller's memory, without a thread or a buffer of ours
 * between. A thread that has one connection uses the calls with a deadline; a thread that serves
 * many uses tls_stream_begin and the calls after it, which never wait.
 *
 * Threads: a stream has one user at a time, but for tls_stream_cut; keys may be shared. Who writes
 * to a peer that has gone gets SIGPIPE: it must be blocked or ignored. */
#ifndef HOLDFAST_TLS_STREAM_H
#define HOLDFAST_TLS_STREAM_H

#include "proto/base/principal.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The files of a directory, read. */
struct tls_keys;
/* `protocol`: what is spoken behind the handshake; the other side must name the same. Both strings
 * are borrowed as long as the keys. ERR_INVALID, ERR_DENIED, ERR_NOT_FOUND: of the files;
 * ERR_MEMORY. */
int tls_keys_open_server(struct tls_keys **out, const char *directory, const char *protocol);
int tls_keys_open_client(struct tls_keys **out, const char *directory, const char *protocol);
void tls_keys_close(struct tls_keys *keys); /* NULL is fine */
/* Reads the files again where they have changed. Those that cannot be used are logged, and the old
 * ones go on. True: the authority or the list of the revoked is another, so connections that are
 * open must be verified again. */
bool tls_keys_look(struct tls_keys *keys);
/* As tls_directory_look, of the files that are in use now. Any thread. */
int64_t tls_keys_end_s(const struct tls_keys *keys);

struct tls_stream;
/* Takes over a connected socket, also when it fails, and shakes hands. `keys` NULL: plain.
 * `host`: of a client, whom the certificate must name; of a server NULL. `out_peer` may be NULL; of
 * a plain connection, and of a server's certificate without an identity, it is the role reader of
 * no run. ERR_DENIED: the peer, or our own files, say why; ERR_TIMEOUT, ERR_UNAVAILABLE,
 * ERR_MEMORY. */
int tls_stream_open(struct tls_stream **out, struct tls_keys *keys, int socket, const char *host,
                    uint32_t timeout_ms, struct principal *out_peer);
void tls_stream_close(struct tls_stream *stream); /* NULL is fine */
/* Ends what another thread does with the stream. */
void tls_stream_cut(struct tls_stream *stream);
/* Slower than this no connection is for long: a peer that sends a byte a second, and so never
 * stands still, holds up its thread no longer than one that does. A link of 100 KB/s may have
 * several. */
#define TLS_STREAM_BYTES_PER_SECOND 16384u
/* All `bytes`: none comes for the time, or they take longer than it and what they take at
 * TLS_STREAM_BYTES_PER_SECOND: ERR_TIMEOUT. ERR_UNAVAILABLE: the connection is over. */
int tls_stream_read(struct tls_stream *stream, void *out, size_t bytes, uint32_t timeout_ms);
int tls_stream_write(struct tls_stream *stream, const void *data, size_t bytes,
                     uint32_t timeout_ms);
/* 0: there is something to read; ERR_TIMEOUT: not within the time. */
int tls_stream_wait(struct tls_stream *stream, uint32_t timeout_ms);
/* ---- without waiting ---- */

/* As tls_stream_open, but the handshake is still to be done by tls_stream_shake. */
int tls_stream_begin(struct tls_stream **out, struct tls_keys *keys, int socket, const char *host);
/* 1: the handshake is done, *out_peer as tls_stream_open has it; 0: to be called again when one of
 * *out_events (of poll) has come; or an error of tls_stream_open. */
int tls_stream_shake(struct tls_stream *stream, struct principal *out_peer, short *out_events);
/* How many bytes were moved; 0: none now, wait for *out_events; ERR_UNAVAILABLE: it is over. What
 * could not be written is to be written next. */
ssize_t tls_stream_read_some(struct tls_stream *stream, void *out, size_t bytes, short *out_events);
ssize_t tls_stream_write_some(struct tls_stream *stream, const void *data, size_t bytes,
                              short *out_events);
/* Are there decrypted bytes, of which the socket does not tell? */
bool tls_stream_has_pending(const struct tls_stream *stream);

/* The round trip to the peer as the kernel measures it; 0: not known. */
double tls_stream_rtt_seconds(const struct tls_stream *stream);

#endif
