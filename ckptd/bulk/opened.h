/* opened.h - what another node has open here (nodes/handles.h), read and written over the bulk
 * plane; see opened.c. On the connection's thread. */
#ifndef HOLDFAST_CKPTD_BULK_OPENED_H
#define HOLDFAST_CKPTD_BULK_OPENED_H

#include "ckptd/nodes/handles.h"
#include "proto/bulk/wire.h"

struct opened {
    struct storage *storage;
    struct handles *handles;
    char who[PRINCIPAL_NAME_MAX]; /* the node */
    struct handle *handle;        /* of the request being served */
    void *room;                   /* of a PUT; made by the first */
};

/* As bulk_ops of proto/bulk/server.h. */
int opened_get_begin(struct opened *opened, const struct bulk_request *request);
int opened_get_block(struct opened *opened, uint64_t offset, uint64_t bytes, void *room);
void opened_get_end(struct opened *opened);
int opened_put_begin(struct opened *opened, const struct bulk_request *request, void **to);
int opened_put_end(struct opened *opened, const struct bulk_request *request, int error);
void opened_close(struct opened *opened);

#endif
