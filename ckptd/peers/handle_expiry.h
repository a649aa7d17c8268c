/* handle_expiry.h - ends handles that another node released, or whose client has been silent; see
 * handle_expiry.c. */
#ifndef HOLDFAST_CKPTD_PEERS_HANDLE_EXPIRY_H
#define HOLDFAST_CKPTD_PEERS_HANDLE_EXPIRY_H

#include <stdbool.h>

struct service;
struct crew;
struct handle;
struct handles;

/* Takes out the handles of silent clients, chained, for handle_expiry_end(). Any thread. */
struct handle *handle_expiry_take_silent(struct service *service, struct handles *handles);
/* Closes and frees a chain of handles. Releases their leases; with `stays` the lease files remain.
 * Blocks. */
void handle_expiry_end(struct service *service, struct handle *first, bool stays);
/* Takes out the silent handles and has the crew end them. On the service thread. */
void handle_expiry_sweep(struct service *service, struct handles *handles, struct crew *crew);

#endif
