/* accept_copy.h - accepts a checkpoint that another node has sent into this ckptd's store; see
 * accept_copy.c.
 *
 *     accept_copy_publish(&arrival, ...) ──► is_commit: accept_copy_announce(&arrival) ──►
 * done(&arrival) */
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
    bool is_commit;                  /* a checkpoint has come, or the shards that a part lacked */
    bool is_in_memory;               /* that checkpoint is in memory */
    struct manifest_summary summary; /* valid when is_commit */
    void (*done)(struct accept_copy *arrival);
    struct refresh_waiter look;
};

/* On the crew: publishes the copy's manifest under `key`, which is the manifest key of `place`.
 * serve.P1: ERR_STALE. */
int accept_copy_publish(struct accept_copy *arrival, struct storage *storage, const char *key,
                        const struct manifest_summary *place, const void *text, size_t bytes);
/* On the service thread, after a commit: lists the checkpoint, so that ckptd loads and retains it
 * from now on. Then calls done(). */
void accept_copy_announce(struct accept_copy *arrival);

#endif
