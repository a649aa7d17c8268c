/* connect.h - a socket of the bulk plane, as a client makes it; private to proto/bulk. */
#ifndef HOLDFAST_BULK_CONNECT_H
#define HOLDFAST_BULK_CONNECT_H

#include "proto/address.h"

/* Connected, and does not block. ERR_UNAVAILABLE. */
int bulk_connect(int *out, const struct address *address);

#endif
