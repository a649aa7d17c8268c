/* calls.h - the methods that ckptd answers; see calls.c. */
#ifndef HOLDFAST_CKPTD_FRONT_CALLS_H
#define HOLDFAST_CKPTD_FRONT_CALLS_H

#include "proto/wire/rpc.h"

extern const struct rpc_method
    service_calls[]; /* ended by name == NULL; their user is the service */

#endif
