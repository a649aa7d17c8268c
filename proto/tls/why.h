/* why.h - why does nobody answer at an address over TLS? */
#ifndef HOLDFAST_TLS_WHY_H
#define HOLDFAST_TLS_WHY_H

#include "proto/base/address.h"

/* Connects with the files of `directory` and reports which step of a connection fails, or all that
 * may have been. `name`: of the server, in the words of the user. Always an error, ERR_UNAVAILABLE.
 * SIGPIPE is ignored meanwhile. Blocks, at most some seconds; any thread. */
int tls_say_why(const char *name, const struct address *server, const char *directory);

#endif
