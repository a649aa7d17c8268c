/* refresh_gate.h - calls that look before they are handled; see refresh_gate.c. */
#ifndef HOLDFAST_CKPTD_TIERS_REFRESH_GATE_H
#define HOLDFAST_CKPTD_TIERS_REFRESH_GATE_H

#include "proto/wire/rpc.h"

struct service;

/* Handles the call behind a look at the store's directory, and at every other tier whose last look
 * is older than that; -1: at all. What comes of the looks does not matter: what is known is
 * answered. */
void refresh_first(struct service *service, int64_t max_age_ms, struct rpc_call *call,
                   const ProtobufCMessage *request,
                   void (*handle)(struct service *service, struct rpc_call *call,
                                  const ProtobufCMessage *request));

#endif
