/* tls.h - connections over TCP that are encrypted and whose both ends are known: TLS 1.3, each end
 * with a certificate of the same authority.
 *
 * A directory holds what one end needs, as PEM:
 *
 *     certificate.pem   its own, with the chain behind it
 *     key.pem           readable by its owner alone
 *     authority.pem     of whom it believes certificates
 *     revoked.pem       (optional) that authority's list of those that count no more
 *
 * The server's end is the relay: it does the handshake, verifies, finds the identity (principal.h),
 * and hands over one end of a socket pair that carries the plain bytes. So who speaks HTTP/2 behind
 * it needs to know nothing of TLS. One thread serves all connections.
 *
 * The files are looked at every TLS_LOOK_MS: new ones hold for connections from then on, without a
 * restart; files that cannot be used are logged, and the old ones go on. When the authority or the
 * list of the revoked changes, every connection is ended, so that each is verified again.
 *
 * Bounds: `num_connections` at once; TLS_HANDSHAKES_MAX of them in the handshake,
 * TLS_HANDSHAKES_EACH of one address, TLS_HANDSHAKE_MS long at most; then a newcomer takes the
 * place of one that is not finished, a silent one first. Each holds TLS_BUFFER_BYTES in each
 * direction and reads nothing more while that is full. */
#ifndef HOLDFAST_TLS_H
#define HOLDFAST_TLS_H

#include "proto/base/principal.h"

#include <stdint.h>

#define TLS_LOOK_MS 1000
#define TLS_HANDSHAKE_MS 10000
#define TLS_HANDSHAKES_MAX 64u
#define TLS_HANDSHAKES_EACH 16u
#define TLS_BUFFER_BYTES 8192u
#define TLS_PATH_MAX 512u

/* DIRECTORY/NAME. */
void tls_path(char out[TLS_PATH_MAX], const char *directory, const char *name);
/* The directory that a client uses: $HOLDFAST_TLS, else /etc/holdfast/tls. */
const char *tls_client_directory(void);

/* Until when the files of a directory are good: their certificate, or the last of the authorities,
 * if that ends sooner; seconds since 1970. Errors as tls_relay_open. */
int tls_directory_look(int64_t *out_end_s, const char *directory);
/* Whom its own certificate names. ERR_NOT_FOUND: nobody that we know; else errors as above. */
int tls_directory_identify(struct principal *out, const char *directory);

struct tls_relay;
struct tls_relay_options {
    const char *directory; /* borrowed, as long as the relay */
    uint32_t num_connections;
    void *user;
    /* (optional) May that address have a handshake more? Asked at its first byte; an error refuses
     * it. On the relay's thread. Default: all may. */
    int (*may_begin)(void *user, const char *from);
    /* A peer that was verified. `socket`, which does not block, is the callee's. On the relay's
     * thread. */
    void (*verified)(void *user, int socket, const struct principal *principal);
};
/* ERR_INVALID, ERR_DENIED, ERR_NOT_FOUND: of the files; ERR_IO, ERR_MEMORY. */
int tls_relay_open(struct tls_relay **out, const struct tls_relay_options *options);
/* Takes over a connected socket, which does not block. `from`: its address, for the log and the
 * bounds. Any thread. */
void tls_relay_adopt(struct tls_relay *relay, int socket, const char *from);
/* As tls_directory_look, of the files that are in use now. Any thread. */
int64_t tls_relay_end_s(const struct tls_relay *relay);
/* Ends every connection. NULL is fine. */
void tls_relay_close(struct tls_relay *relay);

#endif
