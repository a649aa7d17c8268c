/* rounds.h - looks at the peers again and again; see rounds.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_PEERS_ROUNDS_H
#define HOLDFAST_CKPTD_PEERS_ROUNDS_H

struct service;

int rounds_open(struct service *service); /* behind replicate_open; ERR_MEMORY */
void rounds_close(struct service *service);

#endif
