/* bulk_handles.h - what another node has open here (peers/handles.h), read and written over the
 * bulk plane; see bulk_handles.c. On the connection's thread. */
#ifndef HOLDFAST_CKPTD_BULK_BULK_HANDLES_H
#define HOLDFAST_CKPTD_BULK_BULK_HANDLES_H

#include "ckptd/peers/handles.h"
#include "proto/bulk/wire.h"

struct bulk_handle {
    struct storage *storage;
    struct handles *handles;
    char who[PRINCIPAL_NAME_MAX]; /* the node */
    struct handle *handle;        /* of the request being served */
    void *room;                   /* of a PUT; made by the first */
};

/* As bulk_ops of proto/bulk/server.h. */
int bulk_handle_get_begin(struct bulk_handle *opened, const struct bulk_request *request);
int bulk_handle_get_block(struct bulk_handle *opened, uint64_t offset, uint64_t bytes, void *room);
void bulk_handle_get_end(struct bulk_handle *opened);
int bulk_handle_put_begin(struct bulk_handle *opened, const struct bulk_request *request,
                          void **to);
int bulk_handle_put_end(struct bulk_handle *opened, const struct bulk_request *request, int error);
void bulk_handle_close(struct bulk_handle *opened);

#endif
