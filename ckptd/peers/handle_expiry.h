/* handle_expiry.h - what others had open here, and let go of or leave by their silence; see
 * handle_expiry.c. */
#ifndef HOLDFAST_CKPTD_PEERS_HANDLE_EXPIRY_H
#define HOLDFAST_CKPTD_PEERS_HANDLE_EXPIRY_H

#include <stdbool.h>

struct service;
struct crew;
struct handle;
struct handles;

/* Those of silent clients, chained, for handle_expiry_end(). Any thread. */
struct handle *handle_expiry_take_silent(struct service *service, struct handles *handles);
/* Closes and frees a chain that was taken out; what they hold is released, or stays. Blocks. */
void handle_expiry_end(struct service *service, struct handle *first, bool stays);
/* Both, by the crew. On the service thread. */
void handle_expiry_sweep(struct service *service, struct handles *handles, struct crew *crew);

#endif
