/* plane.h - opens and closes the bulk plane of ckptd, and issues its tickets; see plane.c. */
#ifndef HOLDFAST_CKPTD_BULK_PLANE_H
#define HOLDFAST_CKPTD_BULK_PLANE_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;
struct json_t;

/* Does nothing if tls.bulk is not set. */
int plane_open(struct service *service);
void plane_close(struct service *service);
/* For Status: the bytes received and sent, and the rates during transfers; null: no bulk plane. */
struct json_t *plane_describe(const struct service *service);
void plane_open_bulk(struct service *service, struct rpc_call *call,
                     const Holdfast__V1__OpenBulkRequest *request);

#endif
