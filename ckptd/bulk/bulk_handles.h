/* bulk_handles.h - what another node has open here (peers/handles.h), read and written over the
 * bulk plane; see bulk_handles.c. On the connection's thread. */
#ifndef HOLDFAST_CKPTD_BULK_BULK_HANDLES_H
#define HOLDFAST_CKPTD_BULK_BULK_HANDLES_H

#include "ckptd/peers/handles.h"

struct bulk_handle {
    struct storage *storage;
    struct handles *handles;
    char who[PRINCIPAL_NAME_MAX]; /* the node */
    struct handle *handle;        /* of the request being served */
    void *room;                   /* of a PUT; made by the first */
};

void bulk_handle_close(struct bulk_handle *opened);

#endif
