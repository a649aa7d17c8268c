/* network.h - connections from other machines; see network.c. */
#ifndef HOLDFAST_CKPTD_NETWORK_H
#define HOLDFAST_CKPTD_NETWORK_H

struct service;
struct network;

/* A socket that listens there; `key` names the setting in errors. ERR_INVALID, ERR_BUSY, ERR_IO. */
int network_listen(int *out, const char *text, const char *key);
/* Nothing when tls.listen is not set. After the RPC server was opened. */
int network_open(struct service *service);
void network_close(struct service *service);

#endif
