/* tls.h - encrypted and mutually authenticated TCP connections: TLS 1.3, each end with a
 * certificate of the same authority.
 *
 * A directory holds the files of one end, as PEM:
 *
 *     certificate.pem   its own, followed by the chain
 *     key.pem           readable by its owner alone
 *     authority.pem     the authorities whose certificates it accepts
 *     revoked.pem       (optional) that authority's revocation list
 *
 * stream.h has the connections. A server checks the files every TLS_REFRESH_MS: new ones apply to
 * connections from then on, without a restart; unusable files are logged, and the old ones stay in
 * use. When the authority or the revocation list changes, the server ends every connection, so that
 * each is verified again. crowd.h bounds strangers in their handshake. */
#ifndef HOLDFAST_TLS_H
#define HOLDFAST_TLS_H

#include "proto/base/principal.h"

#include <stdint.h>

#define TLS_REFRESH_MS 1000
#define TLS_HANDSHAKE_MS 10000
#define TLS_HANDSHAKES_MAX 64u
#define TLS_HANDSHAKES_EACH 16u
#define TLS_PATH_MAX 512u

/* DIRECTORY/NAME. */
void tls_path(char out[TLS_PATH_MAX], const char *directory, const char *name);
/* The directory that a client uses: $HOLDFAST_TLS, else /etc/holdfast/tls. */
const char *tls_client_directory(void);

/* Until when the files of a directory are valid: the expiry of the certificate, or of the last
 * authority, whichever is sooner; seconds since 1970. ERR_INVALID, ERR_DENIED, ERR_NOT_FOUND,
 * ERR_MEMORY. */
int tls_directory_check(int64_t *out_end_s, const char *directory);
/* The identity in its own certificate. ERR_NOT_FOUND: none of ours; else errors as above. */
int tls_directory_identify(struct principal *out, const char *directory);

#endif
