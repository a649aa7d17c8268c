/* plane.h - the bulk plane of ckptd, opened and closed, and its tickets; see plane.c. */
#ifndef HOLDFAST_CKPTD_BULK_PLANE_H
#define HOLDFAST_CKPTD_BULK_PLANE_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;
struct json_t;

/* Nothing when tls.bulk is not set. */
int plane_open(struct service *service);
void plane_close(struct service *service);
/* For Status: what came in and went out, and at what rate while it did; null: there is no plane. */
struct json_t *plane_describe(const struct service *service);
void plane_open_bulk(struct service *service, struct rpc_call *call,
                     const Holdfast__V1__OpenBulkRequest *request);

#endif
