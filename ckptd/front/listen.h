/* listen.h - the sockets on which clients connect; see listen.c. */
#ifndef HOLDFAST_CKPTD_FRONT_LISTEN_H
#define HOLDFAST_CKPTD_FRONT_LISTEN_H

#include "ckptd/core/loop.h"
#include "ckptd/memory/session.h"
#include "proto/wire/arena.h"

#include <stdbool.h>
#include <sys/types.h>

struct service;
struct session;
struct image;

struct connection {
    struct connection *next;
    struct service *service;
    int fd;
    struct watch watch;
    struct session *session;
    /* Images that the rank of an ended session may still be using. */
    struct image *left[SLOTS_PER_RANK];
    bool parted;
    struct timer timer; /* until the first request */
    size_t received;
    struct arena_request request;
};
#define RPC_CONNECTIONS_BESIDE 64u /* gRPC connections besides one for each session: tools */
int listen_open(struct service *service);
void listen_close(struct service *service);
/* Ends the session from ckptd's side: if it has images in `left`, the connection stays until the
 * peer closes it. */
void listen_part(struct connection *connection, struct image *const *left);

#endif
