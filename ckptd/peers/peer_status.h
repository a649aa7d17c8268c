/* peer_status.h - what the other nodes tell of themselves, for Status; see peer_status.c. On the
 * service thread.
 */
#ifndef HOLDFAST_CKPTD_PEERS_PEER_STATUS_H
#define HOLDFAST_CKPTD_PEERS_PEER_STATUS_H

#include <stdint.h>

struct service;
struct json_t;

/* A node that sends a longer status is not heard. */
#define PEER_STATUS_BYTES_MAX (64u << 10)
#define PEER_STATUS_ALARMS_MAX 16u /* of a status that other nodes show; so it stays below */
#define PEER_STATUS_SAVES_MAX 64u

int peer_status_open(struct service *service);   /* behind join_open; asks all peers; ERR_MEMORY */
void peer_status_close(struct service *service); /* behind loop_close */
/* Asks that peer, unless it is being asked; nobody waits. */
void peer_status_ask(struct service *service, uint32_t peer);
/* Asks those whose answer is older than a second: for the next Status. */
void peer_status_refresh(struct service *service);

/* The last answer, and `seconds_ago`; null: there was none. */
struct json_t *peer_status_describe(const struct service *service, uint32_t peer);
/* Per plane how far away it is (null: not measured), what went there and came, and at what rate
 * while it did. */
struct json_t *peer_status_links(const struct service *service, uint32_t peer);

/* Of the text of a Status what is told of that node itself; NULL with an error. */
int peer_status_read(struct json_t **out, const char *text);

#endif
