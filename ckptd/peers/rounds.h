/* rounds.h - polls the peers periodically; see rounds.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_PEERS_ROUNDS_H
#define HOLDFAST_CKPTD_PEERS_ROUNDS_H

struct service;

int rounds_open(struct service *service); /* call after replicate_open(); ERR_MEMORY */
void rounds_close(struct service *service);

#endif
