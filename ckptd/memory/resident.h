/* resident.h - a checkpoint of the catalog together with its images. On the service thread. */
#ifndef HOLDFAST_CKPTD_MEMORY_RESIDENT_H
#define HOLDFAST_CKPTD_MEMORY_RESIDENT_H

#include "proto/wire/ckpt.pb-c.h"

#include <stdbool.h>

struct checkpoint;

/* Takes it out of the catalog's list, and frees its images; false, without a change, while it is in
 * use. Then call catalog_drop() or catalog_enter(). */
bool resident_take_out(struct checkpoint *checkpoint);
/* For replies; strings are borrowed from the checkpoint. */
void resident_summary(Holdfast__V1__CheckpointSummary *out, struct checkpoint *checkpoint);

#endif
