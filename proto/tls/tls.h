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
 * stream.h has the connections. A server looks at the files every TLS_LOOK_MS: new ones hold for
 * connections from then on, without a restart; files that cannot be used are logged, and the old
 * ones go on. When the authority or the list of the revoked changes, every connection is ended, so
 * that each is verified again. Strangers in their handshake are bounded by crowd.h.
 */
#ifndef HOLDFAST_TLS_H
#define HOLDFAST_TLS_H

#include "proto/base/principal.h"

#include <stdint.h>

#define TLS_LOOK_MS 1000
#define TLS_HANDSHAKE_MS 10000
#define TLS_HANDSHAKES_MAX 64u
#define TLS_HANDSHAKES_EACH 16u
#define TLS_PATH_MAX 512u

/* DIRECTORY/NAME. */
void tls_path(char out[TLS_PATH_MAX], const char *directory, const char *name);
/* The directory that a client uses: $HOLDFAST_TLS, else /etc/holdfast/tls. */
const char *tls_client_directory(void);

/* Until when the files of a directory are good: their certificate, or the last of the authorities,
 * if that ends sooner; seconds since 1970. ERR_INVALID, ERR_DENIED, ERR_NOT_FOUND, ERR_MEMORY. */
int tls_directory_look(int64_t *out_end_s, const char *directory);
/* Whom its own certificate names. ERR_NOT_FOUND: nobody that we know; else errors as above. */
int tls_directory_identify(struct principal *out, const char *directory);

#endif
