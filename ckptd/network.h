/* network.h - connections from other machines; see network.c. */
#ifndef HOLDFAST_CKPTD_NETWORK_H
#define HOLDFAST_CKPTD_NETWORK_H

struct service;
struct network;

/* Nothing when tls.listen is not set. After the RPC server was opened. */
int network_open(struct service *service);
void network_close(struct service *service);

#endif
