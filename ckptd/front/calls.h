/* calls.h - the RPC methods of ckptd; see calls.c. */
#ifndef HOLDFAST_CKPTD_FRONT_CALLS_H
#define HOLDFAST_CKPTD_FRONT_CALLS_H

#include "proto/wire/rpc.h"

extern const struct rpc_method
    service_calls[]; /* terminated by name == NULL; their user is the service */

#endif
