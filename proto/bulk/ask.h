/* ask.h - the bulk plane of a ckptd, asked for over its control plane: a ticket, where the plane
 * is, and new tickets while it is open.
 *
 *     struct bulk_asker asker = {.rpc = rpc, .server = "n2:7070", .directory = "/etc/...",
 *                                .session = session};
 *     bulk_ask(&bulk, &asker);
 *     ...
 *     bulk_close(bulk); */
#ifndef HOLDFAST_BULK_ASK_H
#define HOLDFAST_BULK_ASK_H

#include "proto/bulk/bulk.h"

struct rpc_client;

struct bulk_asker {
    struct rpc_client *rpc; /* any thread of the bulk uses it */
    const char *server;     /* "host:port" of the control plane */
    const char *directory;  /* files of the TLS plane, where bytes are not plain */
    uint64_t session;       /* 0: for what the node that asks opens by the method Peer */
    uint32_t num_connections;
};
/* The asker stays as it is until bulk_close. Errors of the call OpenBulk (ERR_INVALID: that ckptd
 * has no such plane), of bulk_address and of bulk_open. */
int bulk_ask(struct bulk **out, const struct bulk_asker *asker);

#endif
