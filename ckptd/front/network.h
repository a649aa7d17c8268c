/* network.h - connections from other machines; see network.c. */
#ifndef HOLDFAST_CKPTD_FRONT_NETWORK_H
#define HOLDFAST_CKPTD_FRONT_NETWORK_H

struct service;

/* May ckptd use the certificate of that directory? It must name a node, or no identity of Holdfast.
 * ERR_DENIED: the message has the identity; else errors as of tls_directory_check. */
int network_check_certificate(const char *directory);
/* Does nothing if tls.listen is not set. Call after the RPC server was opened. */
int network_open(struct service *service);
void network_close(struct service *service);

#endif
