/* meter.h - private to storage/: the functions of meter.c for storage.c. */
#ifndef HOLDFAST_STORAGE_METER_H
#define HOLDFAST_STORAGE_METER_H

#include "storage/engine/backend.h"
#include "storage/engine/measured.h"

/* NULL: no memory; then no request is measured. */
struct storage_meter *storage_meter_new(void);
void storage_meter_free(struct storage_meter *meter);
/* A request is submitted; storage_done() ends it. */
void storage_meter_begin(struct storage_meter *meter, struct storage_request *request);
/* A try of a bucket's request has ended; `meter` NULL: while the store is being opened. */
void storage_meter_count(struct storage_meter *meter, enum storage_measure what, uint64_t us);

#endif
