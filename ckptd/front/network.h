/* network.h - connections from other machines; see network.c. */
#ifndef HOLDFAST_CKPTD_FRONT_NETWORK_H
#define HOLDFAST_CKPTD_FRONT_NETWORK_H

struct service;

/* Is the certificate of that directory one that ckptd may use? It names a node, or no identity of
 * ours. ERR_DENIED names the one that it has; else errors as tls_directory_look. */
int network_check_certificate(const char *directory);
/* Nothing when tls.listen is not set. After the RPC server was opened. */
int network_open(struct service *service);
void network_close(struct service *service);

#endif
