/* context.h - what a handshake is done with, and who it was with; private to proto/tls. */
#ifndef HOLDFAST_TLS_CONTEXT_H
#define HOLDFAST_TLS_CONTEXT_H

#include "proto/base/principal.h"

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>

/* When the files changed last; 0 for one that is not there. */
struct tls_stamp {
    uint64_t own, trust; /* certificate and key; authority and revoked */
};
void tls_stamp(struct tls_stamp *out, const char *directory);
/* From the files of the directory. `protocol`: the only one that is spoken, as ALPN has it. Errors
 * as tls_directory_look. */
enum tls_side { TLS_SERVER, TLS_CLIENT };
int tls_context_open(SSL_CTX **out, const char *directory, enum tls_side side,
                     const char *protocol);
/* When the certificate ends, or all authorities have, if that is sooner; seconds since 1970. */
int64_t tls_context_end_s(SSL_CTX *context);
/* Who is at the other end of a handshake that is done. ERR_DENIED: its certificate names no
 * identity, or several. */
int tls_identify(struct principal *out, const SSL *ssl);
/* Small messages go at once, and a peer that vanishes without a word is found: by keep-alives, and
 * while bytes are under way by TCP_USER_TIMEOUT. Then the socket has an error. */
void tls_socket_set(int socket);
/* The first error that OpenSSL has queued, in its words; the rest is dropped. */
const char *tls_error_text(void);

#endif
