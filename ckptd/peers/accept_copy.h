/* accept_copy.h - a checkpoint that another node has sent becomes one of this ckptd's; see
 * accept_copy.c.
 *
 *     accept_copy_publish(&arrival, ...) ──► is_commit: accept_copy_announce(&arrival) ──►
 * done(&arrival)
 */
#ifndef HOLDFAST_CKPTD_PEERS_ACCEPT_COPY_H
#define HOLDFAST_CKPTD_PEERS_ACCEPT_COPY_H

#include "ckptd/refresh/refresh.h"
#include "proto/format/manifest.h"

#include <stdbool.h>
#include <stddef.h>

struct service;
struct storage;

struct accept_copy {
    struct service *service;
    const char *from;                /* identity of the node that sent it */
    bool is_commit;                  /* a checkpoint has come, or what a part of one lacked */
    bool is_in_memory;               /* that one */
    struct manifest_summary summary; /* of a commit */
    void (*done)(struct accept_copy *arrival);
    struct refresh_waiter look;
};

/* On the crew: its manifest, to be published under `key`, which is that of `place`. serve.P1
 *: ERR_STALE. */
int accept_copy_publish(struct accept_copy *arrival, struct storage *storage, const char *key,
                        const struct manifest_summary *place, const void *text, size_t bytes);
/* On the service thread, behind a commit: it is listed, loaded and retained from now on. Then
 * done(). */
void accept_copy_announce(struct accept_copy *arrival);

#endif
