/* peers.h - this node and its peers, for Status; see peers.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_PEERS_PEERS_H
#define HOLDFAST_CKPTD_PEERS_PEERS_H

struct service;
struct json_t;

/* JSON null where there are no peers. */
struct json_t *peers_describe(const struct service *service);
/* How far all runs lack replicas; likewise. */
struct json_t *peers_describe_lag(const struct service *service);

#endif
