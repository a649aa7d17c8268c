/* listen.h - who may connect; see listen.c. */
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
    struct image *left[SLOTS_PER_RANK]; /* in hand of a rank whose session is over */
    bool parted;
    struct timer timer; /* until the first request */
    size_t received;
    struct arena_request request;
};
#define RPC_CONNECTIONS_BESIDE 64u /* of gRPC, beside one for each session: tools */
int listen_open(struct service *service);
void listen_close(struct service *service);
/* We end the session, not the peer: the connection stays until the peer hangs up when it holds
 * images in `left`. */
void listen_part(struct connection *connection, struct image *const *left);

#endif
