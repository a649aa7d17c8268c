/* entered.h - private to ckptd/bulk/: a connection of the bulk plane, shared by its sources. On the
 * connection's thread. */
#ifndef HOLDFAST_CKPTD_BULK_ENTERED_H
#define HOLDFAST_CKPTD_BULK_ENTERED_H

#include "ckptd/peers/handles.h"
#include "proto/bulk/server.h"
#include "proto/format/manifest.h"
#include "storage/storage.h"

#include <stddef.h>
#include <stdint.h>

/* The files of a stored checkpoint; bulk_read.c. */
struct bulk_read {
    struct storage *storage;
    struct manifest_summary summary;
    struct storage_object *file; /* of shard `part`; NULL: none is open */
    uint32_t part;
    uint64_t file_bytes;
    void *manifest; /* while one is read */
    size_t manifest_bytes;
};

/* A handle that another node has opened here (peers/handles.h); bulk_handles.c. */
struct bulk_handle {
    struct storage *storage;
    struct handles *handles;
    char who[PRINCIPAL_NAME_MAX]; /* the node */
    struct handle *handle;        /* of the request being served */
    void *room;                   /* buffer of a PUT; made by the first */
};

/* A stored checkpoint, a session, or another node's handle. */
struct bulk_entered {
    const struct bulk_ops *source; /* by the kind of its ticket */
    struct bulk_read stored;
    struct proxy_rank *proxy;
    struct {
        void *at;
        uint64_t bytes;
    } map; /* of a GET from a session, during the request */
    struct bulk_handle opened;
};

void bulk_read_close(struct bulk_read *stored);
void bulk_handle_close(struct bulk_handle *opened);

/* GETs and PUTs of each source; without enter and leave. A slot that is NULL: such a ticket does
 * not allow that. */
extern const struct bulk_ops stored_source, session_source, opened_source;

#endif
