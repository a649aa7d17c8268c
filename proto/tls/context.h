/* context.h - the TLS context of a handshake, and the identity of its peer; private to
 * proto/tls. */
#ifndef HOLDFAST_TLS_CONTEXT_H
#define HOLDFAST_TLS_CONTEXT_H

#include "proto/base/principal.h"

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>

/* Last change of the files; 0 for a missing one. */
struct tls_stamp {
    uint64_t own, trust; /* certificate and key; authority and revocation list */
};
void tls_stamp(struct tls_stamp *out, const char *directory);
/* Reads the files of the directory. `protocol`: the only accepted one, in ALPN. Errors as of
 * tls_directory_check(). */
enum tls_side { TLS_SERVER, TLS_CLIENT };
int tls_context_open(SSL_CTX **out, const char *directory, enum tls_side side,
                     const char *protocol);
/* The expiry of the certificate, or of the last authority, whichever is sooner; seconds since
 * 1970. */
int64_t tls_context_end_s(SSL_CTX *context);
/* The peer's identity after a complete handshake. ERR_DENIED: its certificate names no identity, or
 * several. */
int tls_identify(struct principal *out, const SSL *ssl);
/* Sends small messages at once, and detects a vanished peer: by keep-alives, and while bytes are
 * under way by TCP_USER_TIMEOUT. Then the socket has an error. */
void tls_socket_set(int socket);
/* The text of the first error that OpenSSL has queued; drops the rest. */
const char *tls_error_text(void);

#endif
