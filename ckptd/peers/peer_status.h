/* peer_status.h - the status of the other nodes, as they report it, for Status; see peer_status.c.
 * On the service thread. */
#ifndef HOLDFAST_CKPTD_PEERS_PEER_STATUS_H
#define HOLDFAST_CKPTD_PEERS_PEER_STATUS_H

#include <stdbool.h>
#include <stdint.h>

struct service;
struct json_t;

/* A longer status of a node is rejected. */
#define PEER_STATUS_BYTES_MAX (64u << 10)
/* Alarms of a node that other nodes show, so that the status stays below the limit. */
#define PEER_STATUS_ALARMS_MAX 16u
#define PEER_STATUS_SAVES_MAX 64u
/* A clock that is further off is an alarm; deploy/prometheus has the same bound. */
#define PEER_STATUS_CLOCK_S 30.0

/* Call after join_open(); asks all peers; ERR_MEMORY. */
int peer_status_open(struct service *service);
void peer_status_close(struct service *service); /* call after loop_close() */
/* Asks that peer, unless a request to it is in progress. Does not wait. */
void peer_status_ask(struct service *service, uint32_t peer);
/* Asks the peers whose answer is older than a second, for the next Status. */
void peer_status_refresh(struct service *service);

/* The last answer, with `seconds_ago`; null: there was none. */
struct json_t *peer_status_describe(const struct service *service, uint32_t peer);
/* Its clock less ours, to half the time of a call; false: unknown, or the node is silent. */
bool peer_status_clock(double *ahead_s, const struct service *service, uint32_t peer);
/* Per plane: the round trip (null: not measured), the bytes sent and received, and the rate during
 * transfers. */
struct json_t *peer_status_links(const struct service *service, uint32_t peer);

/* Extracts from the text of a Status the fields about that node itself; NULL with an error. */
int peer_status_read(struct json_t **out, const char *text);

#endif
