/* ask.h - opens the bulk plane of a ckptd through its control plane: gets a ticket, the plane's
 * address, and new tickets while it is open.
 *
 *     struct bulk_asker asker = {.rpc = rpc, .server = "n2:7070", .directory = "/etc/...",
 *                                .session = session};
 *     bulk_open_asker(&bulk, &asker);
 *     ...
 *     bulk_close(bulk); */
#ifndef HOLDFAST_BULK_ASK_H
#define HOLDFAST_BULK_ASK_H

#include "proto/bulk/bulk.h"

struct rpc_client;

struct bulk_asker {
    struct rpc_client *rpc; /* any thread of the bulk uses it */
    const char *server;     /* "host:port" of the control plane */
    const char *directory;  /* files of the TLS plane, unless bytes are plain */
    uint64_t session;       /* 0: for the handles that the calling node opens by the method Peer */
    uint32_t num_connections;
};
/* The asker must stay unchanged until bulk_close(). Errors of the call OpenBulk (ERR_INVALID: that
 * ckptd has no bulk plane), of bulk_address() and of bulk_open(). */
int bulk_open_asker(struct bulk **out, const struct bulk_asker *asker);

#endif
