/* told.h - what the other nodes tell of themselves, for Status; see told.c. On the service thread.
 */
#ifndef HOLDFAST_CKPTD_NODES_TOLD_H
#define HOLDFAST_CKPTD_NODES_TOLD_H

#include <stdint.h>

struct service;
struct json_t;

/* A node that sends a longer status is not heard. */
#define TOLD_BYTES_MAX (64u << 10)
#define TOLD_ALARMS_MAX 16u /* of a status that other nodes show; so it stays below */
#define TOLD_SAVES_MAX 64u

int told_open(struct service *service);   /* behind follow_open; asks all peers; ERR_MEMORY */
void told_close(struct service *service); /* behind loop_close */
/* Asks that peer, unless it is being asked; nobody waits. */
void told_ask(struct service *service, uint32_t peer);
/* Asks those whose answer is older than a second: for the next Status. */
void told_refresh(struct service *service);

/* The last answer, and `seconds_ago`; null: there was none. */
struct json_t *told_describe(const struct service *service, uint32_t peer);
/* Per plane how far away it is (null: not measured), what went there and came, and at what rate
 * while it did. */
struct json_t *told_links(const struct service *service, uint32_t peer);

/* Of the text of a Status what is told of that node itself; NULL with an error. */
int told_read(struct json_t **out, const char *text);

#endif
