/* why.h - explains why no server answers at an address over TLS. */
#ifndef HOLDFAST_TLS_WHY_H
#define HOLDFAST_TLS_WHY_H

#include "proto/base/address.h"

/* Connects with the files of `directory` and reports which step of a connection fails, or all
 * possible reasons. `name`: of the server, as the user wrote it. Always returns an error,
 * ERR_UNAVAILABLE. SIGPIPE is ignored meanwhile. Blocks, for some seconds at most; any thread. */
int tls_explain_failure(const char *name, const struct address *server, const char *directory);

#endif
