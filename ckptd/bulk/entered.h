/* entered.h - private to ckptd/bulk/: a connection of the bulk plane, as its sources share it. On
 * the connection's thread. */
#ifndef HOLDFAST_CKPTD_BULK_ENTERED_H
#define HOLDFAST_CKPTD_BULK_ENTERED_H

#include "ckptd/bulk/bulk_handles.h"
#include "ckptd/bulk/bulk_read.h"
#include "ckptd/bulk/proxy_rank.h"
#include "proto/bulk/server.h"

/* Of a stored checkpoint, of a session, or of what a node has opened. */
struct bulk_entered {
    const struct bulk_ops *source; /* what its ticket is good for */
    struct bulk_read stored;
    struct proxy_rank *proxy;
    struct proxy_rank_map map; /* of the GET being served */
    struct bulk_handle opened;
};

/* GETs and PUTs of `opened`; without enter and leave. */
extern const struct bulk_ops opened_source;

#endif
