/* scan.h - what the store holds, read at a start; see scan.c. Blocks. */
#ifndef HOLDFAST_CKPTD_KEEP_SCAN_H
#define HOLDFAST_CKPTD_KEEP_SCAN_H

#include "proto/format/manifest.h"
#include "proto/format/places.h"

#include <stdint.h>

struct service;
struct run;

/* Fills the catalog: runs, attempts, checkpoints; removes rubbish. Before the service runs. */
int scan_store(struct service *service);
/* A look at its files as at a start; *out_places, NULL is allowed, to be freed. ERR_NOT_FOUND; what
 * is wrong with it. Any thread. */
int scan_look(struct manifest_summary *out, struct places *out_places, struct run *run,
              uint64_t step, uint64_t attempt);

#endif
