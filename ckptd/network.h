/* network.h - connections from other machines; see network.c. */
#ifndef HOLDFAST_CKPTD_NETWORK_H
#define HOLDFAST_CKPTD_NETWORK_H

#include <stdbool.h>
#include <stdint.h>

/* Files that end within so many days are an alarm. */
#define NETWORK_END_DAYS 14

struct service;
struct network;

/* A socket that listens there; `key` names the setting in errors. ERR_INVALID, ERR_BUSY, ERR_IO. */
int network_listen(int *out, const char *text, const char *key);
/* Is the certificate of that directory one that ckptd may use? It names a node, or no identity of
 * ours. ERR_DENIED names the one that it has; else errors as tls_relay_open. */
int network_check_certificate(const char *directory);
/* Nothing when tls.listen is not set. After the RPC server was opened. */
int network_open(struct service *service);
void network_close(struct service *service);
/* Until the files of tls.directory end, so that nobody is let in any more; below 0: they have.
 * False: there is no listener. */
bool network_seconds_left(int64_t *out, const struct service *service);

#endif
